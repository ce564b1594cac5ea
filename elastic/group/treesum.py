"""One flat tensor per subtree in, their sum in the tree's order out, on every rank, with the same bits.

    each rank holds rows (its subtrees)  ->  all-to-all: chunk r of every row goes to rank r  ->  rank r adds
    its chunk of all rows as the tree says  ->  all-gather of the summed chunks

Two ranks with one row each need no order: a plain all-reduce of two operands gives the same bits and
moves no more bytes than it must. `ordered=False` (mode "fast") sums by all-reduce at any world size.

What no share contributed to is filled with NOTHING, -0.0, which is the identity of IEEE addition:
x + (-0.0) is x for every x, while 0.0 would turn -0.0 into 0.0.

Memory is kept from sum to sum, whatever their schedules: a short batch takes as many rows of it as it needs.
On several hosts large sums go another way: hierarchical_sum.py.
"""

from __future__ import annotations

import torch

from elastic.group.form import Group, Work
from elastic.group.hierarchy import ALIGNED
from elastic.group.tree import Schedule
from elastic.group.warm_memory import WarmMemory

NOTHING = -0.0


class Rows:
    """Memory for partial sums of `numel` elements, kept from sum to sum."""

    def __init__(self, numel: int, dtype: torch.dtype, device: torch.device, memory: WarmMemory) -> None:
        self._numel = numel
        self._dtype = dtype
        self._device = device
        self._memory = memory
        self._blocks: list[torch.Tensor] = []

    def __getitem__(self, index: int) -> torch.Tensor:
        """Full of NOTHING when it is new."""
        while len(self._blocks) <= index:
            block = self._memory.take(self._numel, self._dtype, self._device)
            block[: self._numel].fill_(NOTHING)
            self._blocks.append(block)
        return self._blocks[index][: self._numel]

    @property
    def nbytes(self) -> int:
        return sum(block.nbytes for block in self._blocks)

    def release(self) -> None:
        self._memory.give_back(self._blocks)
        self._blocks = []


class TreeSum:
    """Warm memory for sums of `numel` elements in one view. One sum at a time: `begin`, fill `rows`, `start`, `advance`
    as often as one likes, `join`, `finish`.

    rows    this rank's subtrees, of padded numel each: filled by the caller between `begin` and `start`
    result  (padded numel,): where the sum is after `finish`; the memory of the first row, which has left by then
    """

    def __init__(
        self,
        group: Group,
        numel: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        ordered: bool,
        memory: WarmMemory | None = None,
    ) -> None:
        """memory: of earlier views"""
        self._group = group
        self._ordered = ordered
        self._chunk = -(-numel // (group.world_size * ALIGNED)) * ALIGNED
        self._warm = memory if memory is not None else WarmMemory()
        self._memory = Rows(self._chunk * group.world_size, dtype, device, self._warm)
        self._dtype = dtype
        self._device = device
        self._local = group.world_size == 1
        self._reduce = not ordered
        self._pieces = self._received = self._empty(0, self._chunk)
        self._block = self._pieces.view(-1)
        self._pending: Work | None = None
        self._schedule: Schedule
        self.rows: list[torch.Tensor] = []

    def begin(self, schedule: Schedule) -> None:
        """Sets the schedule of the next sum."""
        group = self._group
        self._schedule = schedule
        self._reduce = not self._ordered or (group.world_size == 2 and schedule.rows == (1, 1))
        self.rows = [self.row(index) for index in range(schedule.rows[group.rank] if self._ordered else 1)]
        if self._reduce or self._local:
            return
        count = sum(schedule.rows)
        if len(self._pieces) < count:
            self._block = self._warm.take(count * self._chunk, self._dtype, self._device)
            self._pieces = self._block[: len(self._block) // self._chunk * self._chunk].view(-1, self._chunk)
        self._received = self._pieces[:count]

    def row(self, index: int) -> torch.Tensor:
        """Memory for a partial sum; that of the first ones is `rows`. Full of NOTHING when it is new."""
        return self._memory[index]

    @property
    def result(self) -> torch.Tensor:
        return self.row(0)

    @property
    def held_bytes(self) -> int:
        """What is kept."""
        return self._memory.nbytes + self._block.nbytes

    def release(self) -> None:
        """Its memory is for others from here on."""
        self._memory.release()
        self._warm.give_back([self._block])
        self._pieces = self._received = self._block = self._empty(0)
        self.rows = []

    def start(self) -> None:
        """Sends the rows. Collectives must start in the same order on all ranks. Raises PeerLost."""
        if self._local:
            return
        if self._reduce:
            self._pending = self._group.all_reduce(self.rows[0])
            return
        held, world_size = len(self.rows), self._group.world_size
        if held == 1:
            by_rank = self.rows[0]
        else:
            by_rank = self._empty(world_size, held, self._chunk)
            for index, row in enumerate(self.rows):
                by_rank[:, index] = row.view(world_size, self._chunk)
        self._pending = self._group.all_to_all(
            self._received.view(-1),
            by_rank.view(-1),
            [count * self._chunk for count in self._schedule.rows],
            [held * self._chunk] * world_size,
        )

    @property
    def arrived(self) -> bool:
        """Whether `advance` need not wait."""
        return True

    def advance(self) -> None:
        """Where a sum travels in several stages: waits for the one under way, and begins the next. Same order on all
        ranks, too. Here there is nothing to do before `join`."""

    def join(self) -> None:
        """Adds this rank's chunk when it has arrived, and sends the result on. Same order on all ranks, too."""
        if self._reduce or self._local:
            return
        assert self._pending is not None
        self._pending.wait()
        for into, out_of in self._schedule.joins:
            self._received[into] += self._received[out_of]
        self._pending = self._group.all_gather(self.result, self._received[0])

    def finish(self) -> torch.Tensor:
        """Waits for `result`, and returns it. Raises PeerLost."""
        if not self._local:
            assert self._pending is not None
            self._pending.wait()
            self._pending = None
        return self.result

    def _empty(self, *shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=self._dtype, device=self._device)
