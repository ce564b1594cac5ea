"""Which hash chunks of a checkpoint's objects hold what one rank wants, and how they fill it.

The wanted boxes are cut along the stored pieces, by the array. A part of a piece is a range of its object's bytes, and
the chunks that this range touches are what has to be read: whole, since a chunk is what a hash was made of. Chunks that
lie side by side are read in one go.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from elastic_checkpoint.format.manifest import Manifest
from elastic_checkpoint.format.pieces import StoredTensor
from elastic_checkpoint.format.shards import Box
from elastic_checkpoint.format.tensors import INTEGERS, local_box, torch_dtype, writable_bytes
from elastic_checkpoint.load.objects import Chunk, Run, chunks_of, run_range
from elastic_checkpoint.storage import Buffer


class TensorBuffers:
    """Memory for those tensors of a checkpoint that one rank loads, of some only this rank's part, and what fills it.

    tensors  contiguous CPU tensors; without meaning until all of `runs` was given to `fill`
    runs     the chunks that are wanted, in ascending order
    """

    def __init__(self, manifest: Manifest, names: Collection[str], sharded: dict[str, torch.Tensor]) -> None:
        """Take what is wanted; sharded: name -> the DTensor of which this rank's part is, while others are whole."""
        self.tensors: dict[str, torch.Tensor] = {}
        self._waiting: dict[Chunk, list[_Transfer]] = {}
        self._manifest = manifest
        for name in names:
            stored = manifest.tensors[name]
            box = local_box(sharded[name]) if name in sharded else ((0,) * len(stored.shape), stored.shape)
            into = self.tensors[name] = torch.empty(box[1], dtype=torch_dtype(stored.dtype))
            for transfer in _transfers(stored, box, into):
                size = manifest.objects[transfer.object].chunk_bytes
                # A part may reach over several chunks, and a chunk may hold parts of several tensors.
                for number in range(transfer.start // size, (transfer.start + transfer.bytes - 1) // size + 1):
                    self._waiting.setdefault((transfer.object, number), []).append(transfer)
        self.runs = list(_runs(sorted(self._waiting)))

    @property
    def bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def fill(self, run: Run, data: Buffer) -> None:
        """Take what is wanted of verified chunks; nothing, where nothing is."""
        begins, _ = run_range(self._manifest, run)
        for chunk in chunks_of(run):
            start, size = run_range(self._manifest, (*chunk, 1))
            source = np.frombuffer(data, dtype=np.uint8)[start - begins : start - begins + size]
            for transfer in self._waiting.pop(chunk, ()):
                transfer.fill(start, source)


def _runs(chunks: list[Chunk]) -> Iterator[Run]:
    """Yield ascending chunks, those side by side as one."""
    first = 0
    for at, (object, number) in enumerate(chunks):
        if at + 1 == len(chunks) or chunks[at + 1] != (object, number + 1):
            yield object, chunks[first][1], at + 1 - first
            first = at + 1


class _Transfer:
    """A range of an object's bytes on its way into a box of a tensor."""

    def __init__(
        self, object: int, start: int, whole: Sequence[int], offsets: Sequence[int], into: torch.Tensor
    ) -> None:
        """Transfer a part of a piece.

        start, whole  of the piece: where in the object it begins, and its sizes
        offsets       where in the piece the part begins
        into          of the part's sizes, a view of the tensor that is filled
        """
        self.object = object
        self._strides = _row_major(whole)
        sizes = into.shape
        itemsize = into.dtype.itemsize
        first = sum(offset * stride for offset, stride in zip(offsets, self._strides, strict=True))
        span = 1 + sum((size - 1) * stride for size, stride in zip(sizes, self._strides, strict=True))
        self.start, self.bytes = start + first * itemsize, span * itemsize
        self._into = into
        # Where the part's elements lie side by side, in the object and in memory, bytes go where they belong.
        self._direct = span == math.prod(sizes) and into.is_contiguous()
        self._memory: NDArray[np.uint8] | None = writable_bytes(into) if self._direct else None
        self._missing = self.bytes

    def fill(self, begins: int, source: NDArray[np.uint8]) -> None:
        """Fill the part from these bytes; begins: where in the object they lie."""
        if self._memory is None:
            self._memory = np.empty(self.bytes, np.uint8)
        first, end = max(self.start, begins), min(self.start + self.bytes, begins + len(source))
        self._memory[first - self.start : end - self.start] = source[first - begins : end - begins]
        self._missing -= end - first
        if not self._missing and not self._direct:
            self._copy(self._memory)
            self._memory = None

    def _copy(self, memory: NDArray[np.uint8]) -> None:
        """Copy through integers, which torch copies bit by bit."""
        dtype = INTEGERS.get(self._into.dtype.itemsize, self._into.dtype)
        self._into.view(dtype).copy_(torch.from_numpy(memory).view(dtype).as_strided(self._into.shape, self._strides))


def _transfers(stored: StoredTensor, box: Box, into: torch.Tensor) -> Iterator[_Transfer]:
    """Yield the parts of a tensor's pieces that lie in the box, each on its way into its part of `into`."""
    if not into.numel():
        return
    begin = np.array(box[0], np.int64)
    low = np.maximum(stored.offsets, begin)
    high = np.minimum(stored.offsets + stored.sizes, begin + np.array(box[1], np.int64))
    # By the array: a tensor may have many thousands of pieces, and most lie outside of the box.
    rows = np.flatnonzero((high > low).all(axis=1))
    columns = (stored.objects, stored.starts, stored.sizes, low - stored.offsets, low - begin, high - low)
    for object, start, whole, offsets, into_offsets, lengths in zip(*(c[rows].tolist() for c in columns), strict=True):
        part = into
        for axis, (offset, size) in enumerate(zip(into_offsets, lengths, strict=True)):
            part = part.narrow(axis, offset, size)
        yield _Transfer(object, start, whole, offsets, part)


def _row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides, in elements, of a contiguous tensor of this shape."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
