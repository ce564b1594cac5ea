"""Files that are read one after another, from any place on: lines, and the samples of WebDataset's archives.

Promises  a position is a place in one file: whoever goes on from it opens that one there, and reads nothing before.
          Files of one name up to its first dot, side by side in a tar, are one sample, as RecordDataset.tar has it.
          An archive that is cut short is found out, by name.
Leaves    which files, and where a stream stands among others, to streams.py.
"""

from __future__ import annotations

import tarfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import IO, Any, ClassVar

import fsspec
import xxhash

from elastic.data.records import TAR_BLOCK, sample_key, tar_members
from elastic.errors import ConfigError, DataFileError
from elastic_checkpoint.storage import redact


class Files(ABC):
    """Some files, one after the other. The state is the file's number, and where in it the next example begins.

    BEGIN  the position of a file's first example: plain values by name
    """

    BEGIN: ClassVar[dict[str, int]] = {"offset": 0}

    def __init__(
        self, urls: Sequence[str], decode: Callable[[Any], Any], storage_options: Mapping[str, Any] | None
    ) -> None:
        self._urls = list(urls)
        self._decode = decode
        self._options = dict(storage_options or {})
        self._file, self._at = 0, self.BEGIN

    def __iter__(self) -> Iterator[Any]:
        while self._file < len(self._urls):
            url = self._urls[self._file]
            with fsspec.open(url, "rb", **self._options) as opened:
                for found, at in self.found(opened, url, self._at):
                    self._at = at
                    yield self._decode(found)
            self._file, self._at = self._file + 1, self.BEGIN

    @abstractmethod
    def found(self, opened: IO[bytes], url: str, at: Mapping[str, int]) -> Iterator[tuple[Any, dict[str, int]]]:
        """Yield what lies in the file from that position on, each with the position behind it."""

    def state_dict(self) -> dict[str, int]:
        return {"file": self._file, **self._at}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self._file, self._at = state["file"], {name: state[name] for name in self.BEGIN}


class Lines(Files):
    """The lines of text files. A position is a byte."""

    def found(self, opened: IO[bytes], url: str, at: Mapping[str, int]) -> Iterator[tuple[bytes, dict[str, int]]]:
        end = opened.seek(at["offset"])
        while line := opened.readline():
            end += len(line)
            yield line.rstrip(b"\r\n"), {"offset": end}


class Samples(Files):
    """The samples of WebDataset's archives. A position is a byte."""

    def found(
        self, opened: IO[bytes], url: str, at: Mapping[str, int]
    ) -> Iterator[tuple[dict[str, Any], dict[str, int]]]:
        end = opened.seek(at["offset"])
        try:
            for sample, end in _samples(opened):
                yield sample, {"offset": end}
        except tarfile.TarError as error:
            raise DataFileError(
                f"{redact(url)}: it is no whole tar: {error}\n"
                f"  state  it was read to its byte {end:,}\n  next   pack or copy it again"
            ) from error


def identity_of_files(urls: Sequence[str], storage_options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return names in their order, and sizes: positions are places in files. Raises ConfigError if one is missing."""
    located = [fsspec.url_to_fs(url, **(storage_options or {})) for url in urls]
    found: dict[tuple[Any, str], int] = {}
    for system in {system for system, _ in located}:
        paths = [path for of, path in located if of == system]
        try:
            found |= {(system, path): size for path, size in zip(paths, system.sizes(paths), strict=True)}
        except FileNotFoundError as missing:
            raise ConfigError(f"{redact(str(missing))}\n  next  correct the paths or URLs of the streams") from None
    sizes = [found[one] for one in located]
    names = [url.split("/") for url in urls]
    folders = zip(*(name[:-1] for name in names), strict=False)
    shared = len([*takewhile(lambda parts: len(set(parts)) == 1, folders)])
    known = "".join(f"{'/'.join(name[shared:])}\n{size}\n" for name, size in zip(names, sizes, strict=True))
    digest = xxhash.xxh3_128_hexdigest(known.encode())
    return {"files": len(urls), "bytes": sum(sizes), "names and sizes": digest}


def _samples(file: IO[bytes]) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield each sample, and where the one behind it begins, or the archive's end mark. Raises tarfile.TarError."""
    sample: dict[str, Any] = {}
    end = file.tell()
    with tarfile.open(fileobj=file, mode="r:") as archive:
        for member in tar_members(archive):
            content = archive.extractfile(member) if member.isfile() else None
            if content is None:
                continue
            key, extension = sample_key(member.name)
            if sample and key != sample["__key__"]:
                yield sample, member.offset
                sample = {}
            sample |= {"__key__": key, extension: content.read()}
            end = member.offset_data + -(-member.size // TAR_BLOCK) * TAR_BLOCK
        # An archive that is cut short between two members would else read as whole.
        file.seek(end)
        if file.read(TAR_BLOCK) != bytes(TAR_BLOCK):
            raise tarfile.ReadError("its end is missing")
    if sample:
        yield sample, end
