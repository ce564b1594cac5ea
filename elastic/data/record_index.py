"""Where each record of a file begins: an array of offsets that is made once, kept, and memory-mapped.

    a header, one line of JSON padded to 1,024 bytes | n + 1 offsets, int64: the beginnings, and the end of the last

It lies beside the file, or in a cache folder where that cannot be written. It is written under another name and then
renamed, so that whoever finds it finds all of it, and builders beside each other do not clash: the last one's stays.
An index of another version of the file, or one that is not whole, is made again and never trusted.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import xxhash
from numpy.typing import NDArray

from elastic.data.data_file import DataFile

Offsets = NDArray[np.int64]
Scan = Callable[[Iterator[bytes]], Iterator[Offsets]]
"""Of a file's bytes: where its records begin, in order and in pieces, and at last where the last one ends."""

_FORMAT = "elastic record index 1"
_HEADER_BYTES = 1024
_OFFSET = np.dtype("<i8")
_CACHE = Path("~/.cache/elastic")
_LEFT_BEHIND_S = 3600.0  # a temporary file that nobody has written to for so long is that of a builder that was killed


@dataclass(frozen=True, eq=False)
class RecordIndex:
    """The places of a file's records.

    offsets  int64[n + 1], read only
    digest   of all of the file's bytes
    """

    offsets: Offsets
    digest: str


def record_index(file: DataFile, kind: str, scan: Scan, cache: str | os.PathLike[str] | None = None) -> RecordIndex:
    """Return the index that is there, or make one.

    kind   names what a scan looks for: each has an index of its own
    cache  the folder for it; None: that of the file, or else ~/.cache/elastic
    Raises DataFileError where the file is written to meanwhile, and what `scan` raises.
    """
    paths = _paths(file, kind, cache)
    for path in paths:
        found = _opened(path, file, kind)
        if found is not None:
            return found
    return _build(file, kind, scan, paths)


def _paths(file: DataFile, kind: str, cache: str | os.PathLike[str] | None) -> list[Path]:
    """Return where an index may lie, in the order in which they are tried."""
    named = file.path or file.url
    elsewhere = f"{hashlib.sha256(named.encode()).hexdigest()[:24]}.{kind}.index"
    if cache is not None:
        return [Path(cache).expanduser() / elsewhere]
    beside = [] if file.path is None else [Path(f"{file.path}.{kind}.index")]
    try:
        return [*beside, _CACHE.expanduser() / elsewhere]
    except RuntimeError:  # a user without a home, as containers have them
        return beside


def _opened(path: Path, file: DataFile, kind: str) -> RecordIndex | None:
    """Open the index at `path`; None where there is none, or one that is not of this file as it is."""
    try:
        with open(path, "rb") as stored:
            header = json.loads(stored.read(_HEADER_BYTES))
            records, digest = header.pop("records"), header.pop("digest")
            size = _HEADER_BYTES + _OFFSET.itemsize * (records + 1)
            if header != _header(file, kind) or os.fstat(stored.fileno()).st_size != size:
                return None
            offsets = np.memmap(stored, _OFFSET, "r", offset=_HEADER_BYTES, shape=(records + 1,))
        fits = 0 <= offsets[0] <= offsets[-1] <= file.size
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
    return RecordIndex(offsets, str(digest)) if fits else None


def _build(file: DataFile, kind: str, scan: Scan, paths: list[Path]) -> RecordIndex:
    """Make an index, and keep it where that can be written."""
    written, temporary, path = _created(paths)
    try:
        with written:
            index = _written(written, file, kind, scan)
            if temporary is not None and path is not None:
                with suppress(OSError):  # it serves this process all the same
                    # Renamed when it is whole: whoever finds an index finds all of it.
                    os.replace(temporary, path)
                    temporary = None
        return index
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _created(paths: list[Path]) -> tuple[BinaryIO, Path | None, Path | None]:
    """Open a file to write to; return its name and its later one, too, or None where no folder can be written."""
    for path in paths:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            _remove_left_behind(path)
            return open(temporary, "x+b"), temporary, path
    return tempfile.TemporaryFile(), None, None


def _remove_left_behind(path: Path) -> None:
    for temporary in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        with suppress(OSError):
            if time.time() - temporary.stat().st_mtime > _LEFT_BEHIND_S:
                temporary.unlink()


def _written(to: BinaryIO, file: DataFile, kind: str, scan: Scan) -> RecordIndex:
    """Scan a file, and write its index. Raises DataFileError where the file is written to meanwhile."""
    header, hashed = _header(file, kind), xxhash.xxh3_128()

    def chunks() -> Iterator[bytes]:
        for chunk in file.chunks():
            hashed.update(chunk)
            yield chunk

    to.seek(_HEADER_BYTES)
    count, source = 0, chunks()
    for offsets in scan(source):
        to.write(offsets.astype(_OFFSET).tobytes())
        count += len(offsets)
    for _ in source:  # what the scan had no need of is part of the digest
        pass
    if file.version_now() != file.version:
        raise file.error(
            "it was written to while its records were looked for",
            "start again when it is complete; a file must stay as it is while a run reads it",
        )
    if count < 2:
        raise file.error(f"it holds no record ({kind})", "correct the path, or what it is opened as")
    digest = hashed.hexdigest()
    line = json.dumps({**header, "records": count - 1, "digest": digest}).encode()
    to.seek(0)
    to.write(line.ljust(_HEADER_BYTES - 1) + b"\n")
    to.flush()
    os.fsync(to.fileno())  # a crash after this finds all of it, and before it no index
    return RecordIndex(np.memmap(to, _OFFSET, "r", offset=_HEADER_BYTES, shape=(count,)), digest)


def _header(file: DataFile, kind: str) -> dict[str, Any]:
    return {"format": _FORMAT, "kind": kind, "of": file.version}
