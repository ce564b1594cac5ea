"""How torch's tensors are seen as bytes. Every dtype goes through its bytes, so every bit survives.

Bytes are little-endian and in row-major order of the tensor's shape, whatever its strides in memory.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from elastic_checkpoint.format.dtypes import STORED, StoredDtype
from elastic_checkpoint.format.shards import Shard

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in STORED}
NAMES: dict[torch.dtype, str] = {dtype: name for name, dtype in DTYPES.items()}

# Of each width in bytes: what has no bits of its own meaning for whoever copies it.
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def torch_dtype(stored: StoredDtype) -> torch.dtype:
    return DTYPES[stored.name]


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


def pack(shard: Shard, tensors: Mapping[str, torch.Tensor], buffer: bytearray | mmap.mmap) -> memoryview:
    """The shard's file, made at the start of `buffer`, which holds at least `shard.size` bytes.

    Copies the shard's pieces only: from a GPU, no more than one shard is on the host at a time. One buffer for all
    shards stays warm; copying into fresh memory takes several times as long.
    """
    file = memoryview(buffer)[: shard.size]
    file[: len(shard.header)] = shard.header
    for piece in shard.pieces:
        box = tensors[piece.tensor]
        for axis, (offset, size) in enumerate(zip(piece.offsets, piece.sizes, strict=True)):
            box = box.narrow(axis, offset, size)
        file[piece.start : piece.start + piece.bytes] = flat_bytes(box)
    return file
