"""A sum of flat tensors over ranks (flat_sum.py), in the tree's order, with the same bits on every rank.

    each rank holds rows (its subtrees)  ->  all-to-all: chunk r of every row goes to rank r  ->  rank r adds
    its chunk of all rows as the tree says  ->  all-gather of the summed chunks

Two ranks with one row each need no order: a plain all-reduce of two operands gives the same bits and
moves no more bytes than it must. `ordered=False` (mode "fast") sums by all-reduce at any world size.
On several hosts large sums go another way: hierarchical_sum.py.
"""

from __future__ import annotations

import torch

from elastic.group.flat_sum import FlatSum
from elastic.group.form import Group
from elastic.group.hierarchy import ALIGNED
from elastic.group.tree import Schedule


class TreeSum(FlatSum):
    """A sum by all-to-all and all-gather, or by one all-reduce where the bits allow it."""

    @staticmethod
    def multiple(group: Group) -> int:
        return group.world_size * ALIGNED

    def hold_nothing(self) -> None:
        self._local = self.group.world_size == 1
        self._chunk = self.padded // self.group.world_size
        self._pieces = self._received = self.empty(0, self._chunk)

    def begin(self, schedule: Schedule) -> None:
        group = self.group
        self._schedule = schedule
        self._reduce = not self.ordered or (group.world_size == 2 and schedule.rows == (1, 1))
        self.rows = [self.row(index) for index in range(schedule.rows[group.rank] if self.ordered else 1)]
        if self._reduce or self._local:
            return
        count = sum(schedule.rows)
        if len(self._pieces) < count:
            block = self.warm.take(count * self._chunk, self.dtype, self.device)
            self._pieces = block[: len(block) // self._chunk * self._chunk].view(-1, self._chunk)
            self.buffers = [block]
        self._received = self._pieces[:count]

    def start(self) -> None:
        if self._local:
            return
        if self._reduce:
            self.pending = self.group.all_reduce(self.rows[0])
            return
        held, world_size = len(self.rows), self.group.world_size
        if held == 1:
            by_rank = self.rows[0]
        else:
            by_rank = self.empty(world_size, held, self._chunk)
            for index, row in enumerate(self.rows):
                by_rank[:, index] = row.view(world_size, self._chunk)  # chunk r goes to rank r
        self.pending = self.group.all_to_all(
            self._received.view(-1),
            by_rank.view(-1),
            [count * self._chunk for count in self._schedule.rows],
            [held * self._chunk] * world_size,
        )

    @property
    def arrived(self) -> bool:
        return True

    def advance(self) -> None:
        """Do nothing: there is no stage before `join`."""

    def join(self) -> None:
        if self._reduce or self._local:
            return
        assert self.pending is not None
        self.pending.wait()
        for into, out_of in self._schedule.joins:
            self._received[into] += self._received[out_of]
        # the result takes the place of the first row, which has left
        self.pending = self.group.all_gather(self.result, self._received[0])

    def finish(self) -> torch.Tensor:
        if not self._local:
            assert self.pending is not None
            self.pending.wait()
            self.pending = None
        return self.result
