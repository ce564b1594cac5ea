"""Any record of a file by its number: lines, JSON lines, samples of a tar, records of one length.

An offsets array and a decoder: record i is the bytes between two offsets, made into an example. What kinds of files
differ in is how the offsets are found (computed, or by a scan whose result record_index.py keeps) and the decoder.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from torch.utils.data import Dataset

from elastic.data.data_file import DataFile
from elastic.data.record_index import Offsets, Scan, record_index
from elastic.errors import ConfigError

_COMPRESSED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstandard", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz"}
TAR_BLOCK = 512


class RecordKind(Protocol):
    """A kind of records: where a file has them, and what one becomes.

    name      short, in file names
    """

    @property
    def name(self) -> str: ...

    def locate(self, file: DataFile, cache: str | os.PathLike[str] | None) -> tuple[Sequence[int] | Offsets, str]:
        """Return the records' beginnings and the last one's end, and a digest of the file."""
        ...

    def decode(self, data: bytes) -> Any:
        """Make an example of a record's bytes. Raises ValueError where they are no such record."""
        ...


class RecordDataset(Dataset[Any]):
    """Records of one file as examples, in any order: `dataset[i]`.

    The classmethods open what is common. For a file of another kind hand over what finds its records. Several files
    are one data set as `torch.utils.data.ConcatDataset([RecordDataset.tar(url) for url in urls])`.

    Args:
        url: A file on this machine, or any fsspec URL.
        kind: What its records are.
        transform: Makes an example of a decoded record. A function that processes can pickle, if they are spawned.
        cache: The folder for the index of records; default beside the file, or ~/.cache/elastic.
        storage_options: For fsspec's filesystem: endpoint, credentials.

    Raises:
        DataFileError: There is no such file, or it is something else.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        kind: RecordKind,
        *,
        transform: Callable[[Any], Any] | None = None,
        cache: str | os.PathLike[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        options = {"transform": transform, "cache": cache, "storage_options": storage_options}
        # A loader process that is spawned opens the file by itself: neither descriptor nor index is pickled.
        self._again = partial(type(self), url, kind, **options)  # type: ignore[arg-type]
        self._kind = kind
        self._transform = transform
        self._file = DataFile(url, storage_options)
        self._offsets, self._digest = kind.locate(self._file, cache)

    @classmethod
    def text_lines(cls, url: str | os.PathLike[str], **options: Any) -> RecordDataset:
        """Open a text file: each line is a string, without its end; empty ones, too.

        Args:
            url: A file on this machine, or any fsspec URL.
            options: `transform`, `cache` and `storage_options`, see the class.

        Raises:
            DataFileError: There is no such file, or it is something else.
        """
        return cls(url, Scanned("lines", _lines, _text), **options)

    @classmethod
    def json_lines(cls, url: str | os.PathLike[str], **options: Any) -> RecordDataset:
        """Open a file of JSON lines: each one is a value; empty ones are left out.

        Args:
            url: A file on this machine, or any fsspec URL.
            options: `transform`, `cache` and `storage_options`, see the class.

        Raises:
            DataFileError: There is no such file, or it is something else.
        """
        return cls(url, Scanned("json-lines", _lines_with_text, json.loads), **options)

    @classmethod
    def tar(cls, url: str | os.PathLike[str], **options: Any) -> RecordDataset:
        """Open a tar of WebDataset's: files of one name up to its first dot, side by side in it, are one sample.

        It is a dict: "__key__" is that name, and what follows the dot (`jpg`, `cls`) has each file's bytes.

        Args:
            url: A file on this machine, or any fsspec URL.
            options: `transform`, `cache` and `storage_options`, see the class.

        Raises:
            DataFileError: There is no such file, or it is something else.
        """
        return cls(url, Scanned("tar", _samples, _sample), **options)

    @classmethod
    def fixed_length(
        cls, url: str | os.PathLike[str], record_bytes: int, *, skip_bytes: int = 0, **options: Any
    ) -> RecordDataset:
        """Open a file of records of so many bytes each, which are given as bytes.

        Args:
            url: A file on this machine, or any fsspec URL.
            record_bytes: How many each record has; 1 or more.
            skip_bytes: How many at the file's beginning belong to no record; 0 or more.
            options: `transform`, `cache` and `storage_options`, see the class.

        Raises:
            ConfigError: record_bytes or skip_bytes is out of bounds.
            DataFileError: There is no such file, or what is left of it after skip_bytes is not whole records.
        """
        return cls(url, FixedLength(record_bytes, skip_bytes), **options)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(f"record {index} of {len(self)}, counted from 0")
        start, end = int(self._offsets[index]), int(self._offsets[index + 1])
        data = self._file.read(start, max(0, end - start))
        try:
            record = self._kind.decode(data)
        except (ValueError, tarfile.TarError) as error:
            raise self._file.error(
                f"record {index}, bytes {start:,} to {end:,}, is none of kind {self._kind.name}: {error}",
                "repair the file; if it has been changed since it was opened, write other data under another name",
            ) from error
        return record if self._transform is None else self._transform(record)

    def data_identity(self) -> dict[str, Any]:
        """Return what tells this data from other data, whatever the file's name: a run goes on with no other."""
        return {"kind": self._kind.name, "records": len(self), "digest": self._digest}

    def __reduce__(self) -> tuple[Any, ...]:
        return self._again, ()


@dataclass(frozen=True)
class FixedLength:
    """Records of `record_bytes` each, after `skip_bytes` of something else. Their offsets need no file."""

    record_bytes: int
    skip_bytes: int = 0

    def __post_init__(self) -> None:
        if self.record_bytes < 1 or self.skip_bytes < 0:
            raise ConfigError(
                f"record_bytes={self.record_bytes}, skip_bytes={self.skip_bytes}; expected 1 or more, and 0 or more"
            )

    @property
    def name(self) -> str:
        return f"{self.record_bytes}-bytes"

    def locate(self, file: DataFile, cache: str | os.PathLike[str] | None) -> tuple[Sequence[int], str]:
        rest = file.size - self.skip_bytes
        if rest < self.record_bytes or rest % self.record_bytes:
            raise file.error(
                f"its {file.size:,} bytes, less {self.skip_bytes:,}, are no whole number of records of "
                f"{self.record_bytes:,}",
                "correct record_bytes or skip_bytes, or copy it again if it was cut short",
            )
        # A range: the offsets of a billion records need no memory. Nor is the file read, so samples are digested.
        return range(self.skip_bytes, file.size + 1, self.record_bytes), file.sampled_digest()

    def decode(self, data: bytes) -> bytes:
        return data


@dataclass(frozen=True)
class Scanned:
    """Records whose places are found by reading the file once, and kept beside it as an index (`cache=`).

    Attributes:
        name: That of the kind, in the index: another `scan` needs another one.
        scan: The file's bytes, in chunks of any size -> in ascending order, where each record begins, and the end of
            the last one: arrays of offsets, as they are known. One that processes can pickle, if they are spawned.
        decoder: A record's bytes -> the example; likewise.
    """

    name: str
    scan: Scan
    decoder: Callable[[bytes], Any]

    def locate(self, file: DataFile, cache: str | os.PathLike[str] | None) -> tuple[Offsets, str]:
        begin = file.read(0, min(8, file.size))
        for magic, packed in _COMPRESSED.items():
            if begin.startswith(magic):
                raise file.error(
                    f"it is compressed ({packed}), and can be read from its beginning alone",
                    "unpack it: any record is read at once then",
                )
        try:
            index = record_index(file, self.name, self.scan, cache)
        except tarfile.TarError as error:
            raise file.error(f"it is no whole tar: {error}", "pack or copy it again") from error
        return index.offsets, index.digest

    def decode(self, data: bytes) -> Any:
        return self.decoder(data)


def _lines(chunks: Iterator[bytes], *, empty: bool = True) -> Iterator[Offsets]:
    """Yield where lines begin, and where the last one ends; `empty=False` leaves out lines that hold nothing."""
    at = begin = 0  # where the chunk begins, and the line that is under way
    for chunk in chunks:
        ends = np.flatnonzero(np.frombuffer(chunk, np.uint8) == ord("\n")) + (at + 1)
        at += len(chunk)
        if len(ends):
            begins = np.concatenate(([begin], ends[:-1]))
            yield begins if empty else begins[ends - begins > 1]
            begin = int(ends[-1])
    yield np.array([begin, at] if begin < at else [at])


_lines_with_text = partial(_lines, empty=False)


def _text(line: bytes) -> str:
    """Decode a line, without its end. Raises ValueError where it is several."""
    text, _, rest = line.decode().partition("\n")
    if rest:
        raise ValueError("it is more than one line")
    return text.removesuffix("\r")


def _samples(chunks: Iterator[bytes]) -> Iterator[Offsets]:
    """Yield where the samples of a tar begin, and the end of the last one. Raises tarfile.TarError."""
    stream = _Stream(chunks)
    key, over, end = None, set[str](), 0
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in tar_members(archive):
            if not member.isfile():
                continue
            this = sample_key(member.name)[0]
            if this != key:
                if this in over:
                    raise tarfile.TarError(
                        f"files of {this} lie apart, with other samples between them; tar --sort=name lays them side "
                        "by side"
                    )
                key = this
                over.add(this)
                yield np.array([member.offset])
            end = member.offset_data + -(-member.size // TAR_BLOCK) * TAR_BLOCK
    # A whole tar goes on behind its last file, with blocks of zeros.
    if stream.at == end:
        raise tarfile.TarError("its end is missing")
    yield np.array([end])


def tar_members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield one member after the other, and keep none. Raises tarfile.TarError."""
    while archive.offset and (member := archive.next()) is not None:  # of an empty one Python 3.10 has no next to give
        archive.members.clear()  # type: ignore[attr-defined]  # it keeps all that it has seen
        yield member


def _sample(data: bytes) -> dict[str, Any]:
    """Return a sample's files by their extensions, and its name as "__key__"."""
    sample: dict[str, Any] = {}
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
        for member in archive:
            content = archive.extractfile(member) if member.isfile() else None
            if content is not None:
                sample["__key__"], extension = sample_key(member.name)
                sample[extension] = content.read()
    return sample


def sample_key(name: str) -> tuple[str, str]:
    """Split a file's name into its sample's and what it is in that: a/b.seg.png is seg.png of a/b."""
    folder, slash, file = name.rpartition("/")
    stem, _, extension = file.partition(".")
    return folder + slash + stem, extension


class _Stream(io.RawIOBase):
    """Chunks as a file that is read from beginning to end."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = memoryview(b"")
        self.at = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._rest:
            self._rest = memoryview(next(self._chunks, b""))
        count = min(len(buffer), len(self._rest))
        buffer[:count], self._rest = self._rest[:count], self._rest[count:]
        self.at += count
        return count
