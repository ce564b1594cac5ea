"""How a tensor's bytes are seen and named. Every dtype goes through its bytes, so every bit survives.

Bytes are little-endian and in row-major order of the tensor's shape, whatever its strides in memory.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

_NAMES = """bool uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 bfloat16 float32 float64 complex32 complex64
complex128 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2"""

# Name in the manifest -> torch's dtype; an older torch simply lacks the youngest ones.
DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in _NAMES.split() if hasattr(torch, name)}
NAMES: dict[torch.dtype, str] = {dtype: name for name, dtype in DTYPES.items()}

# Of each width in bytes: what has no bits of its own meaning for whoever copies it.
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

# What safetensors calls them. A dtype that it lacks is stored as U8 with one more axis of itemsize bytes.
SAFETENSORS = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32", "int32": "I32",
    "uint64": "U64", "int64": "I64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
    "complex64": "C64", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
}  # fmt: skip


def name_of(dtype: torch.dtype) -> str:
    """As torch calls it: "bfloat16". Also of one that has no name in a manifest."""
    return str(dtype).removeprefix("torch.")


def flat_bytes(tensor: torch.Tensor) -> memoryview:
    """The tensor's bytes, flat: a view where it is contiguous on the CPU, else a copy.

    By way of DLPack: after `numpy()` a tensor can never be resized again, which observers do to the model's buffers.
    """
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return np.from_dlpack(_flat(plain).view(torch.uint8)).data


def writable_bytes(tensor: torch.Tensor) -> NDArray[np.uint8]:
    """A flat uint8 view into a contiguous CPU tensor that shares its memory."""
    assert tensor.is_contiguous(), "a copy would be written to instead of the tensor"
    return _flat(tensor).view(torch.uint8).numpy()


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """A flat view. A single element counts as contiguous whatever its stride, which view() would keep."""
    return tensor.as_strided((tensor.numel(),), (1,))


def nbytes(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """Bytes of a tensor of this shape, by exact integer arithmetic."""
    total = dtype.itemsize
    for size in shape:
        total *= size
    return total
