"""One flat tensor per subtree in, their sum in the tree's order out, on every rank, with the same bits.

    each rank holds rows (its subtrees)  ->  all-to-all: chunk r of every row goes to rank r  ->  rank r adds
    its chunk of all rows as the tree says  ->  all-gather of the summed chunks

Two ranks with one row each need no order: a plain all-reduce of two operands gives the same bits and
moves no more bytes than it must. `ordered=False` (mode "fast") sums by all-reduce at any world size.

What no share contributed to is filled with NOTHING, -0.0, which is the identity of IEEE addition:
x + (-0.0) is x for every x, while 0.0 would turn -0.0 into 0.0.
"""

from __future__ import annotations

import torch

from elastic.group.form import Group, Pending
from elastic.group.tree import Schedule

NOTHING = -0.0
_ALIGNED = 16  # elements; rows and chunks start on cache lines


class TreeSum:
    """Warm buffers for sums of `numel` elements in one view. One sum at a time: fill `rows`, `start`, `finish`.

    rows    (subtrees of this rank, padded numel): filled by the caller between `finish` and `start`
    result  (padded numel,): where the sum is after `finish`, until `rows` is filled again
    """

    def __init__(
        self, group: Group, schedule: Schedule, numel: int, dtype: torch.dtype, device: torch.device, *, ordered: bool
    ) -> None:
        self._group = group
        self._schedule = schedule
        world_size = group.world_size
        self._chunk = -(-numel // (world_size * _ALIGNED)) * _ALIGNED
        self._reduce = not ordered or (world_size == 2 and schedule.rows == (1, 1))
        self._local = world_size == 1
        held = schedule.rows[group.rank] if ordered else 1
        self.rows = torch.full((held, self._chunk * world_size), NOTHING, dtype=dtype, device=device)
        self._pending: Pending | None = None
        if self._reduce or self._local:
            self.result = self.rows[0]
        else:
            self._received = torch.empty((sum(schedule.rows), self._chunk), dtype=dtype, device=device)
            self.result = torch.empty(self._chunk * world_size, dtype=dtype, device=device)

    def start(self) -> None:
        """Sends the rows. Collectives must start in the same order on all ranks. Raises PeerLost."""
        if self._local:
            return
        if self._reduce:
            self._pending = self._group.all_reduce(self.rows[0])
            return
        held, world_size = self.rows.shape[0], self._group.world_size
        by_rank = self.rows.view(held, world_size, self._chunk).transpose(0, 1).reshape(-1)
        self._pending = self._group.all_to_all(
            self._received.view(-1),
            by_rank,
            [count * self._chunk for count in self._schedule.rows],
            [held * self._chunk] * world_size,
        )

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
