"""Mosaic's MDS shards as examples, in any order, read without Mosaic's package.

    index.json    the shards in order: each one's file, how many samples it has, and the columns' names and encodings
    a shard       u32 samples | u32[samples + 1] where each begins, and the last one's end | what it was written with
    a sample      u32 for each column without a fixed size: its bytes | the columns' bytes in their order

All numbers are little-endian. Compressed shards, which have no random access, and encodings that are no plain values
are refused when the folder is opened: pickles, as what lies in a file is never run, and images, which need a decoder
(store their bytes). Names and bytes are those of mosaicml-streaming 0.13, streaming.base.format.mds.encodings.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property, lru_cache, partial
from itertools import accumulate
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray
from torch.utils.data import Dataset

from elastic.data.data_file import DataFile
from elastic.errors import DataFileError

Decode = Callable[[bytes], Any]

_U32 = np.dtype("<u4")
_SHAPE_TYPES = ("<u1", "<u2", "<u4", "<u8")
_NUMBERS = {
    8: "uint8",
    9: "int8",
    16: "uint16",
    17: "int16",
    18: "float16",
    32: "uint32",
    33: "int32",
    34: "float32",
    64: "uint64",
    65: "int64",
    66: "float64",
}
_OPEN = 256  # shards at a time: each is a descriptor, of which a process has 1,024 as a rule


@dataclass(frozen=True)
class _Column:
    """A column of a shard. size: of each of its values, in bytes; None: each has its own."""

    name: str
    size: int | None
    decode: Decode


@dataclass(frozen=True)
class _Shard:
    file: str
    size: int
    samples: int
    columns: tuple[_Column, ...]


class MDSDataset(Dataset[Any]):
    """A folder of Mosaic's MDS shards as examples, in any order: `dataset[i]` is a dict of columns.

    The columns may be str, bytes, int, json, NumPy's numbers and arrays, and numbers as text.

    Args:
        url: The folder of `index.json`, on this machine or at any fsspec URL; one split's, where there are several.
        transform: Makes an example of a sample. A function that processes can pickle, if they are spawned.
        storage_options: For fsspec's filesystem: endpoint, credentials.

    Raises:
        DataFileError: There is no such index, or something in it is not read here: compressed shards, pickles, images.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        transform: Callable[[dict[str, Any]], Any] | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        # A loader process that is spawned opens the shards by itself: no descriptor is pickled.
        self._again = partial(MDSDataset, url, transform=transform, storage_options=storage_options)
        self._folder = os.fspath(url).rstrip("/")
        self._transform = transform
        self._options = storage_options
        index = DataFile(f"{self._folder}/index.json", storage_options)
        text = b"".join(index.chunks())
        self._shards = _shards(index, text)
        self._ends = [*accumulate(shard.samples for shard in self._shards)]
        self._index_digest = xxhash.xxh3_128_hexdigest(text)
        self._opened = lru_cache(_OPEN)(self._open)

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}, counted from 0")
        number = bisect_right(self._ends, index)
        shard, file = self._shards[number], self._opened(number)
        # Behind the number of samples a shard has where each begins, and where the last one ends.
        sample_number = index - self._ends[number] + shard.samples
        begin, end = map(int, np.frombuffer(file.read(_U32.itemsize * (1 + sample_number), 2 * _U32.itemsize), _U32))
        data = file.read(begin, max(0, end - begin))
        try:
            sample = _sample(shard.columns, data)
        except (ValueError, RecursionError) as error:
            raise file.error(
                f"sample {sample_number}, bytes {begin:,} to {end:,}, is none of its columns': {error}",
                "write the shard again; if it has been changed since it was opened, write it under another name",
            ) from error
        return sample if self._transform is None else self._transform(sample)

    def data_identity(self) -> dict[str, Any]:
        """Return what tells this data from other data, wherever it lies: a run refuses to go on with another."""
        return {"kind": "mds", "records": len(self), "digest": self._digest}

    def __reduce__(self) -> tuple[Any, ...]:
        return self._again, ()

    @cached_property
    def _digest(self) -> str:
        """Digest the index, which has each shard's size and samples, and the first shard."""
        both = f"{self._index_digest} {self._opened(0).sampled_digest()}"
        return xxhash.xxh3_128_hexdigest(both.encode())

    def _open(self, number: int) -> DataFile:
        """Open a shard. Raises DataFileError where it is not as the index says."""
        shard = self._shards[number]
        file = DataFile(f"{self._folder}/{shard.file}", self._options)
        samples = int(np.frombuffer(file.read(0, _U32.itemsize), _U32)[0]) if file.size >= _U32.itemsize else 0
        if (file.size, samples) != (shard.size, shard.samples):
            raise file.error(
                f"it has {file.size:,} bytes and {samples:,} samples; index.json says {shard.size:,} and "
                f"{shard.samples:,}",
                "copy or write the folder again: they are not of one writing, or one was cut short",
            )
        return file


def _shards(index: DataFile, text: bytes) -> list[_Shard]:
    """Return the shards that have samples. Raises DataFileError."""
    try:
        described = json.loads(text)
        found = [_shard(index, one) for one in described["shards"] if one["samples"]]
    except DataFileError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise index.error(f"it is no index of MDS shards: {error!r}", "correct the URL of the folder") from error
    if not found:
        raise index.error("there are no samples", "correct the URL of the folder, or write it again")
    return found


def _shard(index: DataFile, described: Mapping[str, Any]) -> _Shard:
    """Return the shard that an index describes. Raises DataFileError, and what follows from an index that is none."""
    if (described["format"], described["version"]) != ("mds", 2):
        raise index.error(
            f"its shards are {described['format']} of version {described['version']}; expected mds of version 2",
            "write them with Mosaic's MDSWriter",
        )
    if described["compression"] is not None:
        raise index.error(
            f"its shards are compressed ({described['compression']}), and can be read from their beginning alone",
            "write them with compression=None: any sample is read at once then",
        )
    columns = []
    named = zip(described["column_names"], described["column_encodings"], described["column_sizes"], strict=True)
    for name, encoding, size in named:
        decode = _decoder(encoding)
        if decode is None:
            raise index.error(f"column {name!r} is {encoding}, {_why_not(encoding)}", "write it as bytes, str or json")
        columns.append(_Column(name, None if size is None else _count(size), decode))
    file, size = str(described["raw_data"]["basename"]), _count(described["raw_data"]["bytes"])
    # An index from anywhere must not make us read what lies elsewhere on this machine.
    if file.startswith("/") or "://" in file or ".." in file.split("/"):
        raise index.error(f"its shard {file} lies outside of the folder", "keep index and shards in one folder")
    return _Shard(file, size, _count(described["samples"]), tuple(columns))


def _count(value: Any) -> int:
    """Return a number of bytes or samples as it is. Raises ValueError if it is none."""
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is no number of bytes or samples")
    return value


def _why_not(encoding: str) -> str:
    if encoding == "pkl":
        return "which is never read: a pickle runs what its writer wants"
    return "which is not read here"


def _sample(columns: tuple[_Column, ...], data: bytes) -> dict[str, Any]:
    """Return a sample's columns by name. Raises ValueError."""
    # Sizes of the values that have their own stand before all values.
    own = sum(column.size is None for column in columns)
    sizes = iter(np.frombuffer(data, _U32, own).tolist())
    begin, sample = own * _U32.itemsize, {}
    for column in columns:
        end = begin + (next(sizes) if column.size is None else column.size)
        sample[column.name] = column.decode(data[begin:end])
        begin = end
    if begin != len(data):
        raise ValueError(f"its columns have {begin:,} bytes, and it has {len(data):,}")
    return sample


def _decoder(encoding: str) -> Decode | None:
    """Return what decodes values of this encoding; None for one that is not read here.

    It raises ValueError for bytes that are no such value.
    """
    kind, _, rest = encoding.partition(":")
    if kind == "ndarray":
        return _array_decoder(rest)
    return _PLAIN.get(encoding)


def _array_decoder(rest: str) -> Decode | None:
    """Return a decoder of arrays. rest: their type, and their shape, where all of a column have them in common."""
    name, _, axes = rest.partition(":")
    if name and name not in _NUMBERS.values():
        return None
    shape = tuple(int(axis) for axis in axes.split(",")) if axes else None
    return partial(_array, np.dtype(name).newbyteorder("<") if name else None, shape)


def _array(dtype: np.dtype[Any] | None, shape: tuple[int, ...] | None, data: bytes) -> NDArray[Any]:
    """Read an array; type and shape that the column does not give stand in front of it. Raises ValueError."""
    at = 0
    try:
        if dtype is None:
            dtype, at = np.dtype(_NUMBERS[data[at]]).newbyteorder("<"), at + 1
        if shape is None:
            axes, kind = divmod(data[at], 4)
            lengths = np.frombuffer(data, _SHAPE_TYPES[kind], axes, at + 1)
            shape, at = tuple(map(int, lengths)), at + 1 + lengths.nbytes
    except LookupError as error:
        raise ValueError(f"its array has no such header: {error}") from error
    numbers: NDArray[Any] = np.array(np.frombuffer(data, dtype, offset=at).reshape(shape))  # can be written to
    return numbers


def _integer(data: bytes) -> int:
    return int(_scalar("int64", data))


def _scalar(name: str, data: bytes) -> Any:
    (value,) = np.frombuffer(data, np.dtype(name).newbyteorder("<"))
    return value


def _decimal(data: bytes) -> Decimal:
    try:
        return Decimal(data.decode())
    except ArithmeticError as error:
        raise ValueError(f"{data[:80]!r} is no number") from error


_PLAIN: dict[str, Decode] = {
    "bytes": bytes,
    "str": bytes.decode,
    "int": _integer,
    "str_int": int,
    "str_float": float,
    "str_decimal": _decimal,
    "json": json.loads,
    **{name: partial(_scalar, name) for name in _NUMBERS.values()},
}
