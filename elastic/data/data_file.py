"""The bytes of one data file, wherever it lies: memory-mapped on this machine, in ranges with a small cache elsewhere.

Promises  opening costs a look at the file, whatever its size; forks share the mapping, and connect by themselves.
          Storage that fails for a moment is asked again (elastic_checkpoint/storage). A file that ends before it should
          is an error, and never fewer bytes.
Leaves    what the bytes mean, and whether the file is still the one that a run began with, to its callers.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import xxhash

from elastic.errors import DataFileError
from elastic_checkpoint.storage import Missing, open_storage, redact, version
from elastic_checkpoint.storage.urls import refusal

_BLOCK_BYTES = 2**16
_BLOCKS = 64  # 4 MB in each process that reads
_CHUNK_BYTES = 8 * 2**20
_SAMPLES = 8


class DataFile:
    """A file in a folder, or at any fsspec URL. Raises DataFileError where there is none, or nothing in it.

    url      without credentials
    path     where it lies on this machine, or None
    version  differs once the file is written anew, see elastic_checkpoint/storage/base.py
    """

    def __init__(self, url: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> None:
        text = os.fspath(url)
        protocol, separator, rest = text.partition("://")
        self.path: str | None = None
        if not separator or protocol in ("file", "local"):
            self.path = os.path.abspath(os.path.expanduser(rest if separator else text))
        folder, _, self._key = (self.path or text).rpartition("/")
        self.url = redact(text)
        if (wrong := refusal(folder or "/", storage_options)) is not None:
            raise self.error(wrong.found, wrong.advice)
        self._storage = open_storage(folder or "/", dict(storage_options or {}))
        try:
            self.version = version(self._storage, self._key)
            self.size = self._storage.size(self._key)
        except (Missing, ValueError):
            raise self.error("there is no such file", "correct the path or the URL") from None
        if self.size == 0:
            raise self.error("it is empty", "write it again; whoever wrote it was cut short") from None
        self._memory = _mapped(self.path) if self.path is not None else None
        self._block = lru_cache(_BLOCKS)(self._read_block)

    def read(self, start: int, length: int) -> bytes:
        """Return so many bytes from `start` on. Raises DataFileError where the file ends before that."""
        data = self._memory[start : start + length] if self._memory is not None else self._read(start, length)
        if len(data) != length:
            raise self.error(
                f"it ends before byte {start + length:,}, and had {self.size:,} when it was opened",
                "a file must stay as it is while a run reads it: write other data under another name",
            )
        return data

    def chunks(self) -> Iterator[bytes]:
        """Yield all of the file's bytes, from the beginning."""
        for start in range(0, self.size, _CHUNK_BYTES):
            yield self.read(start, min(_CHUNK_BYTES, self.size - start))

    def sampled_digest(self) -> str:
        """Digest the size and some blocks, evenly spaced: another corpus has another digest, another byte need not."""
        apart = max(_BLOCK_BYTES, (self.size - _BLOCK_BYTES) // (_SAMPLES - 1))
        digest = xxhash.xxh3_128(str(self.size).encode())
        for start in range(0, self.size, apart):
            digest.update(self.read(start, min(_BLOCK_BYTES, self.size - start)))
        return digest.hexdigest()

    def version_now(self) -> str:
        return version(self._storage, self._key)

    def error(self, found: str, then: str) -> DataFileError:
        """Return an error about this file: what was found, and what to do then."""
        return DataFileError(f"{self.url}: {found}\n  state  nothing was read of it\n  next   {then}")

    def _read(self, start: int, length: int) -> bytes:
        """Read a range from storage; a short one comes from cached blocks."""
        if length > _BLOCK_BYTES:
            return self._storage.get(self._key, start, length)
        first, last = start // _BLOCK_BYTES, (start + length - 1) // _BLOCK_BYTES
        data = b"".join(self._block(number) for number in range(first, last + 1))
        begin = start - first * _BLOCK_BYTES
        return data[begin : begin + length]

    def _read_block(self, number: int) -> bytes:
        return self._storage.get(self._key, number * _BLOCK_BYTES, _BLOCK_BYTES)


def _mapped(path: str) -> mmap.mmap:
    with open(path, "rb", buffering=0) as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
