"""Takes and puts back the buffers that shares move as BatchNorm does, together, in a few `torch._foreach` calls.

Fit for that are single-precision ones of which a mean is taken, and integer and bool ones that must agree, whose
tensors stay where they hang, of one shape and dtype. What a share left in them is copied to memory that is kept from
step to step; the floats of one share lie side by side there, in the order of the buffers' names. Where a share has made
one of another kind, all are buffers.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import is_

import torch

from elastic.group.snapshot import Buffer


@dataclass(frozen=True, eq=False)
class Row:
    """The buffers as one share left them.

    values    in the order of the buffers; `exact`: of these, what must agree
    floats    (elements,): of those of which a mean is taken
    integers  by dtype
    """

    values: dict[Buffer, torch.Tensor | None]
    exact: dict[Buffer, torch.Tensor | None]
    floats: torch.Tensor
    integers: list[torch.Tensor]
    tensors: list[torch.Tensor]

    def agrees(self, other: Row) -> bool:
        """Return whether both rows have equal values in the buffers that all shares must leave alike."""
        return all(map(torch.equal, self.integers, other.integers))


class ForeachBuffers:
    """Takes and puts back the buffers that shares move, where all of them are fit for it.

    buffers   all that shares move
    averaged  those of which a mean is taken, in the order in which they lie in `Row.floats`
    agreeing  the others
    """

    def __init__(self, buffers: Sequence[Buffer], device: torch.device) -> None:
        self.buffers = buffers
        self.averaged = sorted((b for b in buffers if b.start is not None and b.start.is_floating_point()), key=_name)
        self.agreeing = [buffer for buffer in buffers if buffer not in self.averaged]
        self._starts = [buffer.start for buffer in buffers if buffer.start is not None]
        self._shapes, self._dtypes = [start.shape for start in self._starts], [start.dtype for start in self._starts]
        self._device = device
        self._rows: list[Row] = []
        self._tensors: list[torch.Tensor] = []
        self._where: list[Callable[[str], torch.Tensor | None]] = []
        self._names = [buffer.entry.attribute for buffer in buffers]

    def begin(self) -> bool:
        """Return whether the buffers are still of the kinds that they were. Call when the step's start is noted."""
        self._where = [buffer.entry.module._buffers.get for buffer in self.buffers]
        self._tensors = [buffer.tensor for buffer in self.buffers if buffer.tensor is not None]
        starts = [buffer.start for buffer in self.buffers]
        return len(self._tensors) == len(starts) and all(map(is_, starts, self._starts)) and self.hold()

    def hold(self) -> bool:
        """Return whether the tensors that the step began with still hang there, and are of those kinds."""
        now = [get(name) for get, name in zip(self._where, self._names, strict=True)]
        if not all(map(is_, now, self._tensors)):
            return False
        return [t.shape for t in self._tensors] == self._shapes and [t.dtype for t in self._tensors] == self._dtypes

    def take(self, index: int) -> Row:
        """Return what the `index`th share of this rank has left in them, and put them back as the step began."""
        while len(self._rows) <= index:
            self._rows.append(self._new_row())
        row = self._rows[index]
        torch._foreach_copy_(row.tensors, self._tensors)
        torch._foreach_copy_(self._tensors, self._starts)
        return row

    def _new_row(self) -> Row:
        placed: dict[Buffer, torch.Tensor] = {}
        floats = self._side_by_side(self.averaged, torch.float32, placed)
        dtypes = {buffer.start.dtype: None for buffer in self.agreeing if buffer.start is not None}
        integers = [
            self._side_by_side(
                [b for b in self.agreeing if b.start is not None and b.start.dtype == dtype], dtype, placed
            )
            for dtype in dtypes
        ]
        values = {buffer: placed[buffer] for buffer in self.buffers}
        exact = {buffer: placed[buffer] for buffer in self.agreeing}
        return Row({**values}, {**exact}, floats, integers, list(values.values()))

    def _side_by_side(
        self, buffers: Sequence[Buffer], dtype: torch.dtype, placed: dict[Buffer, torch.Tensor]
    ) -> torch.Tensor:
        """Return one flat tensor for these buffers, and add each one's piece of it to `placed`."""
        shapes = [buffer.start.shape for buffer in buffers if buffer.start is not None]
        flat = torch.empty(sum(shape.numel() for shape in shapes), dtype=dtype, device=self._device)
        pieces = torch.split_with_sizes(flat, [shape.numel() for shape in shapes])
        placed.update({b: piece.view(shape) for b, piece, shape in zip(buffers, pieces, shapes, strict=True)})
        return flat


def foreach_buffers(
    buffers: Sequence[Buffer], rule: Callable[[Buffer, torch.Tensor | None], object], device: torch.device
) -> ForeachBuffers | None:
    """Return these buffers if all are fit for it, else None. rule: what becomes of a buffer, see buffers.py."""
    for buffer in buffers:
        start = buffer.start
        if start is None or start.device != device:
            return None
        floats, becomes = start.dtype == torch.float32, rule(buffer, start)
        exact = not start.is_floating_point() and not start.is_complex()
        if not (floats and becomes == "mean") and not (exact and becomes == "agree"):
            return None
    return ForeachBuffers(buffers, device) if buffers else None


def _name(buffer: Buffer) -> str:
    return buffer.name
