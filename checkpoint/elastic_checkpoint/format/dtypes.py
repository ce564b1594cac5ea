"""The dtypes of stored tensors, by the names that torch gives them. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class StoredDtype:
    """A dtype of stored tensors.

    itemsize  bytes of an element
    """

    name: str
    itemsize: int

    def __str__(self) -> str:
        return self.name


_OF_WIDTH = {
    1: "bool uint8 int8 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2",
    2: "uint16 int16 float16 bfloat16",
    4: "uint32 int32 float32 complex32",
    8: "uint64 int64 float64 complex64",
    16: "complex128",
}

# By the name in the manifest.
STORED = {name: StoredDtype(name, width) for width, names in _OF_WIDTH.items() for name in names.split()}

# What safetensors calls them. A dtype that it lacks is stored as U8 with one more axis of itemsize bytes.
SAFETENSORS = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32", "int32": "I32",
    "uint64": "U64", "int64": "I64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
    "complex64": "C64", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
}  # fmt: skip


def name_of(dtype: torch.dtype) -> str:
    """Return what torch calls the dtype: "bfloat16". Also of one that has no name in a manifest."""
    return str(dtype).removeprefix("torch.")


def nbytes(shape: tuple[int, ...], dtype: StoredDtype) -> int:
    """Return bytes of a tensor of this shape, by exact integer arithmetic."""
    total = dtype.itemsize
    for size in shape:
        total *= size
    return total
