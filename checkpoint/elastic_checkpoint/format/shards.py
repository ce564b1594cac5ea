"""Tensors into shards: which piece of which tensor lies where. Pure; tensors.py packs them, one at a time.

A piece is a box of its tensor: `offsets` and `sizes`, one number per axis. A tensor larger than a shard is cut along
its first axis (then the next, where one row is still too large), so that each piece is one run of bytes. The manifest's
form allows any box, which is what a DTensor's shards are. A shard is a safetensors file whose keys are
`name@offset,offset,...`; any safetensors tool opens it, and our own reader needs only the manifest.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from elastic_checkpoint.format.dtypes import SAFETENSORS, StoredDtype, name_of

if TYPE_CHECKING:
    import torch

SHARD_BYTES = 128 * 2**20
ALIGNMENT = 64

Box = tuple[tuple[int, ...], tuple[int, ...]]  # offsets, sizes


@dataclass(frozen=True)
class Piece:
    """A box of a tensor, and where its bytes begin, counted from the start of the shard's file."""

    tensor: str
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    bytes: int
    start: int = 0

    @property
    def key(self) -> str:
        return f"{self.tensor}@{','.join(map(str, self.offsets)) or '0'}"


@dataclass(frozen=True)
class Shard:
    """One file: its safetensors header and its pieces, in the order of their bytes."""

    header: bytes
    pieces: tuple[Piece, ...]
    size: int


def plan_shards(tensors: dict[str, torch.Tensor], shard_bytes: int = SHARD_BYTES) -> list[Shard]:
    """Return shards of at most `shard_bytes` of tensor data each, or of one element, covering every tensor once.

    Tensors without elements take no bytes and lie in no shard: the manifest's table holds their shape.
    """
    return into_shards(
        (
            Piece(name, offsets, sizes, math.prod(sizes) * tensor.dtype.itemsize)
            for name, tensor in tensors.items()
            for offsets, sizes in cut(tuple(tensor.shape), tensor.dtype.itemsize, shard_bytes)
        ),
        tensors,
        shard_bytes,
    )


def into_shards(pieces: Iterable[Piece], tensors: dict[str, torch.Tensor], shard_bytes: int) -> list[Shard]:
    """Return shards of these pieces, in their order. Of `tensors` only the dtypes are looked at."""
    shards: list[Shard] = []
    batch: list[Piece] = []
    total = 0
    for piece in pieces:
        if batch and total + piece.bytes > shard_bytes:
            shards.append(_lay_out(batch, tensors))
            batch, total = [], 0
        batch.append(piece)
        total += piece.bytes
    return [*shards, _lay_out(batch, tensors)] if batch else shards


def cut(shape: tuple[int, ...], itemsize: int, limit: int) -> Iterator[Box]:
    """Yield boxes of at most `limit` bytes that tile `shape` in row-major order, each contiguous in it."""
    if 0 in shape:
        return
    if math.prod(shape) * itemsize <= limit or not shape:
        yield (0,) * len(shape), shape
        return
    row_bytes = math.prod(shape[1:]) * itemsize
    if row_bytes <= limit or len(shape) == 1:
        rows = max(1, limit // row_bytes)
        for first in range(0, shape[0], rows):
            yield (first, *(0,) * (len(shape) - 1)), (min(rows, shape[0] - first), *shape[1:])
        return
    for row in range(shape[0]):
        for offsets, sizes in cut(shape[1:], itemsize, limit):
            yield (row, *offsets), (1, *sizes)


def run_start(piece: Piece, shape: tuple[int, ...], dtype: torch.dtype | StoredDtype) -> int:
    """Return where the bytes of a piece made by `cut` begin in its tensor, if that lies in row-major order."""
    first = 0
    for offset, size in zip(piece.offsets, shape, strict=True):
        first = first * size + offset
    return first * dtype.itemsize


def _lay_out(batch: list[Piece], tensors: dict[str, torch.Tensor]) -> Shard:
    """Return the file of these pieces, widest elements first, so that each is aligned to its own element size."""
    ordered = sorted(batch, key=lambda piece: -tensors[piece.tensor].dtype.itemsize)
    entries: dict[str, object] = {}
    starts: list[int] = []
    position = 0
    for piece in ordered:
        dtype = tensors[piece.tensor].dtype
        name = SAFETENSORS.get(name_of(dtype))
        shape = list(piece.sizes) if name else [*piece.sizes, dtype.itemsize]
        entries[piece.key] = {"dtype": name or "U8", "shape": shape, "data_offsets": [position, position + piece.bytes]}
        starts.append(position)
        position += piece.bytes
    text = json.dumps(entries, separators=(",", ":")).encode("ascii")
    text += b" " * (-(len(text) + 8) % ALIGNMENT)  # then elements of any width begin at a multiple of it
    header = len(text).to_bytes(8, "little") + text
    placed = tuple(replace(piece, start=len(header) + start) for piece, start in zip(ordered, starts, strict=True))
    return Shard(header, placed, len(header) + position)
