"""How torch's tensors are seen as bytes. Every dtype goes through its bytes, so every bit survives.

Bytes are little-endian and in row-major order of the tensor's shape, whatever its strides in memory.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from elastic_checkpoint.format.document import is_sharded
from elastic_checkpoint.format.dtypes import STORED, StoredDtype
from elastic_checkpoint.format.shards import Box, Shard

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in STORED}
NAMES: dict[torch.dtype, str] = {dtype: name for name, dtype in DTYPES.items()}

# Of each width in bytes: what has no bits of its own meaning for whoever copies it.
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def torch_dtype(stored: StoredDtype) -> torch.dtype:
    return DTYPES[stored.name]


def flat_bytes(tensor: torch.Tensor) -> memoryview:
    """Return the tensor's bytes, flat: a view where it is contiguous on the CPU, else a copy.

    By way of DLPack: after `numpy()` a tensor can never be resized again, which observers do to the model's buffers.
    """
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return np.from_dlpack(_flat(plain).view(torch.uint8)).data


def writable_bytes(tensor: torch.Tensor) -> NDArray[np.uint8]:
    """Return a flat uint8 view into a contiguous CPU tensor that shares its memory."""
    assert tensor.is_contiguous(), "a copy would be written to instead of the tensor"
    return _flat(tensor).view(torch.uint8).numpy()


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return a flat view. A single element counts as contiguous whatever its stride, which view() would keep."""
    return tensor.as_strided((tensor.numel(),), (1,))


def pack(shard: Shard, tensors: Mapping[str, torch.Tensor], buffer: bytearray | mmap.mmap) -> memoryview:
    """Return the shard's file, made at the start of `buffer`, which holds at least `shard.size` bytes.

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


def local_box(tensor: Any) -> Box:
    """Return offsets and sizes of this rank's part, as torch's planner sees it. Sizes may be 0."""
    (chunk,) = tensor.__create_chunk_list__()
    sizes = tuple(chunk.sizes)
    return tuple(min(o, w - s) for o, s, w in zip(chunk.offsets, sizes, tensor.shape, strict=True)), sizes


def local_part(tensor: Any) -> torch.Tensor:
    """Return this rank's part of a DTensor, all of any other tensor; it shares memory with it."""
    part: torch.Tensor = tensor.to_local() if is_sharded(tensor) else tensor
    return part


def like(tensor: Any, local: torch.Tensor) -> torch.Tensor:
    """Return a DTensor with the placements and the shape of `tensor`, of which `local` is this rank's part."""
    from torch.distributed.tensor import (
        DTensor,  # only here: it takes a while to import, and where none are it is not needed
    )

    made: torch.Tensor = DTensor.from_local(
        local,
        tensor.device_mesh,
        tensor.placements,
        run_check=False,
        shape=tensor.shape,
        stride=tuple(math.prod(tensor.shape[axis + 1 :]) for axis in range(tensor.dim())),
    )
    return made
