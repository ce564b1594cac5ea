"""Which hash chunks of a checkpoint's objects hold what one rank wants, and how they fill it.

torch's planner cuts the wanted boxes along the stored pieces. A part of a piece is a range of its object's bytes, and
the chunks that this range touches are what has to be read: whole, since a chunk is what a hash was made of.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.distributed.checkpoint import DefaultLoadPlanner, Metadata
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, TensorProperties, TensorStorageMetadata

from checkpoint.damage import damaged
from checkpoint.format.dtypes import writable_bytes
from checkpoint.format.hashing import xxh3
from checkpoint.format.manifest import Manifest
from checkpoint.format.shards import Piece
from checkpoint.group.tensor import local_box
from checkpoint.storage import Buffer, Missing, Storage

Chunk = tuple[int, int]  # number of the object, number of its chunk

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Wanted:
    """Memory for all tensors of a checkpoint, of some only this rank's part, and what fills it.

    tensors  contiguous CPU tensors; without meaning until every one of `chunks` was given to `fill`
    chunks   in ascending order
    """

    def __init__(self, manifest: Manifest, sharded: dict[str, torch.Tensor]) -> None:
        """sharded  name -> the DTensor of which this rank's part is wanted; all others are wanted whole"""
        self.tensors: dict[str, torch.Tensor] = {}
        for name, stored in manifest.tensors.items():
            shape = local_box(sharded[name])[1] if name in sharded else stored.shape
            self.tensors[name] = torch.empty(shape, dtype=stored.dtype)
        self._waiting: dict[Chunk, list[_Transfer]] = {}
        self._chunk_bytes = [stored.chunk_bytes for stored in manifest.objects]
        for transfer in _transfers(manifest, sharded, self.tensors):
            size = self._chunk_bytes[transfer.object]
            for number in range(transfer.start // size, (transfer.start + transfer.bytes - 1) // size + 1):
                self._waiting.setdefault((transfer.object, number), []).append(transfer)
        self.chunks = sorted(self._waiting)

    def fill(self, chunk: Chunk, data: Buffer) -> None:
        """Takes what is wanted of a verified chunk; nothing, where nothing is."""
        source = np.frombuffer(data, dtype=np.uint8)
        for transfer in self._waiting.pop(chunk, ()):
            transfer.fill(chunk[1] * self._chunk_bytes[chunk[0]], source)


def chunk_range(manifest: Manifest, chunk: Chunk) -> tuple[int, int]:
    """Where a chunk begins in its object, and its size in bytes."""
    stored = manifest.objects[chunk[0]]
    start = chunk[1] * stored.chunk_bytes
    return start, min(stored.chunk_bytes, stored.size - start)


def read_chunk(storage: Storage, manifest: Manifest, chunk: Chunk) -> bytes:
    """A chunk's bytes, verified. Raises `CorruptCheckpoint`, StorageError."""
    start, size = chunk_range(manifest, chunk)
    try:
        data = storage.get(manifest.id.shard_key(chunk[0]), start, size)
    except Missing:
        raise damaged(manifest, chunk[0], "is absent", chunk=chunk[1]) from None
    check_chunk(manifest, chunk, data)
    return data


def check_chunk(manifest: Manifest, chunk: Chunk, data: Buffer) -> None:
    """Raises `CorruptCheckpoint` where these are not the chunk's bytes."""
    size = chunk_range(manifest, chunk)[1]
    if len(data) != size:
        raise damaged(manifest, chunk[0], f"has {len(data):,} bytes, the manifest says {size:,}", chunk=chunk[1])
    found, expected = xxh3(data), manifest.objects[chunk[0]].chunks[chunk[1]]
    if found != expected:
        raise damaged(manifest, chunk[0], f"has xxh3_128 {found}, the manifest says {expected}", chunk=chunk[1])


class _Transfer:
    """A range of an object's bytes on its way into a box of a tensor."""

    def __init__(
        self, object: int, piece: Piece, offsets: Sequence[int], sizes: Sequence[int], into: torch.Tensor
    ) -> None:
        """
        offsets, sizes  the part of the piece
        into            of these sizes, a view of the tensor that is filled
        """
        self.object = object
        self._strides = _row_major(piece.sizes)
        itemsize = into.dtype.itemsize
        first = sum(offset * stride for offset, stride in zip(offsets, self._strides, strict=True))
        span = 1 + sum((size - 1) * stride for size, stride in zip(sizes, self._strides, strict=True))
        self.start, self.bytes = piece.start + first * itemsize, span * itemsize
        self._into = into
        self._direct = span == math.prod(sizes) and into.is_contiguous()
        self._memory: NDArray[np.uint8] | None = writable_bytes(into) if self._direct else None
        self._left = self.bytes

    def fill(self, begins: int, source: NDArray[np.uint8]) -> None:
        """begins  where in the object the source's bytes lie"""
        if self._memory is None:
            self._memory = np.empty(self.bytes, np.uint8)
        first, end = max(self.start, begins), min(self.start + self.bytes, begins + len(source))
        self._memory[first - self.start : end - self.start] = source[first - begins : end - begins]
        self._left -= end - first
        if not self._left and not self._direct:
            self._place(self._memory)
            self._memory = None

    def _place(self, memory: NDArray[np.uint8]) -> None:
        """Through integers, which torch copies bit by bit."""
        dtype = _INTEGERS.get(self._into.dtype.itemsize, self._into.dtype)
        self._into.view(dtype).copy_(torch.from_numpy(memory).view(dtype).as_strided(self._into.shape, self._strides))


def _transfers(
    manifest: Manifest, sharded: dict[str, torch.Tensor], tensors: dict[str, torch.Tensor]
) -> list[_Transfer]:
    table: dict[str, Any] = {
        name: TensorStorageMetadata(
            TensorProperties(dtype=stored.dtype),
            torch.Size(stored.shape),
            [ChunkStorageMetadata(torch.Size(p.offsets), torch.Size(p.sizes)) for _, p in stored.pieces],
        )
        for name, stored in manifest.tensors.items()
    }
    # Of their full shape, but one element in memory: the planner would allocate tensors of the meta device.
    whole = {
        name: torch.empty((), dtype=stored.dtype).expand(stored.shape) for name, stored in manifest.tensors.items()
    }
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner({**whole, **sharded}, Metadata(table))
    found = []
    for item in planner.create_local_plan().items:
        name, number = item.storage_index.fqn, item.storage_index.index
        assert number is not None
        index, piece = manifest.tensors[name].pieces[number]
        into = tensors[name]
        for axis, (offset, size) in enumerate(zip(item.dest_offsets, item.lengths, strict=True)):
            into = into.narrow(axis, offset, size)
        if into.numel():
            found.append(_Transfer(index, piece, item.storage_offsets, item.lengths, into))
    return found


def _row_major(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
