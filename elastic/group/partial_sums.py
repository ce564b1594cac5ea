"""Adds a rank's gradients along the tree, as far as its own block of shares goes.

Partial sums lie in memory that is kept from step to step, the lowest of them in the very rows that travel. What
stands there has a meaning only if some share gave it: the first gradient is copied there, and only a row that
travels is filled with NOTHING, which no sum notices, where nobody gave.

Memory: up to log2(V) + 1 copies of the gradients on a rank that holds many shares, beside what travels (treesum.py).
Steps of all schedules use the same: one that needs another partial sum adds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import is_

import torch

from elastic.group.flat_sum import NOTHING, FlatSum
from elastic.group.layout import Bucket, Layout


@dataclass(eq=False)
class PartialSum:
    """The sum of the gradients of a subtree's shares.

    sums  per parameter its gradient's span, as a tensor with the parameter's shape and strides
    gave  whether a share gave it one
    """

    sums: list[torch.Tensor]
    gave: bytearray


class PartialSums:
    """The partial sums of one rank; totals: one a bucket, in whose rows the lowest ones lie.

    rows  those that travel in this step
    way   those that the present pass adds up, from right to left, in the last of them
    """

    def __init__(self, layout: Layout, totals: Sequence[FlatSum]) -> None:
        self._layout = layout
        self._totals = totals
        self._all: list[PartialSum] = []
        self._stack: list[PartialSum] = []
        self.rows: list[PartialSum] = []
        self.way: list[PartialSum] = []

    def begin(self) -> None:
        """Forget every gradient; the totals have begun a step."""
        self.rows = [self._partial(index) for index in range(len(self._totals[0].rows) if self._totals else 0)]
        for partial in self._all:
            _empty(partial)
        self._stack, self.way = [], []

    def begin_pass(self, merges: int, *, piece: int, pieces: int) -> None:
        """Prepare a pass: the `piece`th of a share's `pieces`, then `merges` sums of the topmost two."""
        # a share of one pass, on the right of a node, needs no sum of its own: it is added to the one on its left
        onto_left = pieces == 1 and merges > 0
        if piece == 0 and not onto_left:
            self._stack.append(self._partial(len(self._stack)))
        merged = merges - onto_left if piece == pieces - 1 else 0
        self.way = self._stack[: -merged - 2 : -1]  # the topmost one, then those that it completes

    def end_pass(self) -> None:
        """Let go of the partial sums that were added to those on their left."""
        while len(self.way) > 1:
            _empty(self._stack.pop())
            del self.way[0]

    def result(self) -> list[torch.Tensor]:
        """Return the tensors that hold the whole sums in the end."""
        return self._partial(0).sums

    def release(self) -> None:
        """Let go of all memory."""
        self._all, self.rows, self._stack, self.way = [], [], [], []

    def add(self, indices: Sequence[int], values: Sequence[torch.Tensor | None], weight: float) -> None:
        """Add these parameters' gradients to the share's partial sum, and on to the sums that the share completes."""
        if weight != 1 and any(partial.gave[index] for partial in self.way for index in indices):
            # Rounded before it is added: in one operation with the addition it would round otherwise than a copy does.
            dtypes = self._layout.dtypes
            values = [_weighted(value, weight, dtypes[index]) for index, value in zip(indices, values, strict=True)]
            weight = 1
        for partial in self.way:
            values = _added(partial, indices, values)  # the sum so far goes on to the partial sum on its left
        leftmost = self.way[-1]
        into: list[torch.Tensor] = []
        out_of: list[torch.Tensor] = []
        for index, value in zip(indices, values, strict=True):
            if value is None or leftmost.gave[index]:
                continue
            leftmost.gave[index] = 1
            into.append(leftmost.sums[index])
            out_of.append(value)
        if into and weight == 1:
            torch._foreach_copy_(into, out_of)
        elif into:
            _copy_weighted(into, out_of, weight)

    def add_all(self, values: list[torch.Tensor], weight: float) -> bool:
        """Add the gradients of all parameters as `add` does, in fewer calls.

        Return False, and do nothing, where some are of another kind, or stand beside a sum of a part of them.
        """
        every = self._layout.every
        there = sum(map(is_, values, self.way[0].sums))  # what autograd has added to by itself
        mixed = 0 < there < len(values) or [value.layout for value in values].count(torch.strided) < len(values)
        if mixed or any(partial.gave != every and any(partial.gave) for partial in self.way):
            return False
        if weight != 1:
            values = list(torch._foreach_mul(values, float(weight)))
        for partial in self.way:
            if partial.gave == every:
                if not there:
                    torch._foreach_add_(partial.sums, values)
                values, there = partial.sums, 0
        leftmost = self.way[-1]
        if leftmost.gave != every:
            torch._foreach_copy_(leftmost.sums, values)
            leftmost.gave[:] = every
        return True

    def complete_rows(self, bucket: Bucket, total: FlatSum) -> None:
        """Complete a bucket of the rows that travel: nothing where nobody gave, and behind the sums who did."""
        for row, partial in enumerate(self.rows):
            gave = bytes([partial.gave[span.parameter] for span in bucket.spans])
            if not all(gave):
                for span, given in zip(bucket.spans, gave, strict=True):
                    if not given:
                        partial.sums[span.parameter].fill_(NOTHING)
            total.rows[row][bucket.counts_at : bucket.numel] = _on(bucket.device, gave)

    def _partial(self, index: int) -> PartialSum:
        """Return the partial sum of this number; the lowest ones are the rows."""
        while len(self._all) <= index:
            sums = self._layout.sums_in([total.row(len(self._all)) for total in self._totals])
            self._all.append(PartialSum(sums, bytearray(len(sums))))
        return self._all[index]


def _empty(partial: PartialSum) -> None:
    partial.gave[:] = bytes(len(partial.gave))


def _added(
    partial: PartialSum, indices: Sequence[int], values: Sequence[torch.Tensor | None]
) -> list[torch.Tensor | None]:
    """Add values to what stands in the partial sum, and return the sums; where nothing does, the values."""
    into: list[torch.Tensor] = []
    added: list[torch.Tensor] = []
    sums: list[torch.Tensor | None] = []
    for index, value in zip(indices, values, strict=True):
        if not partial.gave[index]:
            sums.append(value)
            continue
        partial_sum = partial.sums[index]
        if value is not None and value is not partial_sum:
            into.append(partial_sum)
            added.append(value)
        sums.append(partial_sum)
    if into:
        torch._foreach_add_(into, added)
    return sums


def _weighted(value: torch.Tensor | None, weight: float, dtype: torch.dtype) -> torch.Tensor | None:
    if value is None:
        return None
    return value.mul(weight) if value.dtype == dtype else value.to(dtype).mul_(weight)


@torch.no_grad()
def _copy_weighted(into: Sequence[torch.Tensor], out_of: Sequence[torch.Tensor], weight: float) -> None:
    """Copy with a weight, in one pass over memory where types are the same: 0.2 ms for 4 MB, not 0.5 to 1.0."""
    for to, value in zip(into, out_of, strict=True):
        if value.dtype == to.dtype:
            torch.mul(value, weight, out=to)
        else:
            to.copy_(value).mul_(weight)


@lru_cache(maxsize=256)
def _on(device: torch.device, values: bytes) -> torch.Tensor:
    """Return small numbers on a device. Kept, for each copy to a GPU would wait until all before it is computed."""
    return torch.tensor(list(values), device=device)
