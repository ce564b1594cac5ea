"""What the columns of Mosaic's MDS shards mean, of those encodings that are plain values.

Pickles are not among them: what lies in a file is never run. Nor are images, which need a decoder; store their bytes.
The names and the bytes are those of mosaicml-streaming 0.13, module streaming.base.format.mds.encodings.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

Decode = Callable[[bytes], Any]

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


def decoder(encoding: str) -> Decode | None:
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
