"""A sum over ranks on several hosts (flat_sum.py): the same bits as treesum.py's, and fewer bytes between the hosts.

It goes through the stages of hierarchy.py, `advance` by `advance`, so that the buckets of a backward pass are under way
in several of them at once. Rows are added in the memory in which they arrived.

Small sums go treesum.py's way: two stages more would cost more than the bytes that they save. So does what lies on
GPUs, whose collectives order themselves on a stream: none of this was measured there.
"""

from __future__ import annotations

import torch

from elastic.group.flat_sum import FlatSum
from elastic.group.form import Group
from elastic.group.hierarchy import ALIGNED, RESULT, Piece, Stage, in_any_order, stages
from elastic.group.tree import Schedule
from elastic.group.treesum import TreeSum
from elastic.group.warm_memory import WarmMemory

STAGES = 4
WORTH_BYTES = 256 << 10  # two stages more take about 0.2 ms between hosts, in which 10 Gbit/s carry so much


def tree_sum(
    group: Group,
    numel: int,
    dtype: torch.dtype,
    device: torch.device,
    *,
    ordered: bool,
    memory: WarmMemory | None = None,
) -> FlatSum:
    """Return the sum that suits the group's hosts; the same on all ranks.

    ordered  the tree's bits; else any order's
    memory   of earlier views
    """
    several = 1 < len(group.hosts) < group.world_size
    if several and device.type == "cpu" and numel * dtype.itemsize >= WORTH_BYTES:
        return HierarchicalSum(group, numel, dtype, device, ordered=ordered, memory=memory)
    return TreeSum(group, numel, dtype, device, ordered=ordered, memory=memory)


class HierarchicalSum(FlatSum):
    """A sum over ranks on several hosts, in STAGES stages, which `advance` goes through."""

    @staticmethod
    def multiple(group: Group) -> int:
        return ALIGNED

    def hold_nothing(self) -> None:
        self._at = 0
        self._held: dict[int, list[tuple[int, torch.Tensor]]] = {}  # by row, where pieces of it begin, and they
        self._incoming = self.empty(0)
        # What arrives is added up to the next stage: two stages' memory by turns. What leaves is there for one.
        self.buffers = [self.empty(0) for _ in range(3)]

    def begin(self, schedule: Schedule) -> None:
        group = self.group
        rows = schedule if self.ordered else in_any_order(group.hosts)
        first = sum(rows.rows[: group.rank])
        self.rows = [self.row(index) for index in range(rows.rows[group.rank])]
        self._held = {first + index: [(0, row)] for index, row in enumerate(self.rows)} | {RESULT: [(0, self.result)]}
        self._stages: tuple[Stage, ...] = stages(rows, group.hosts, self.padded, group.rank)
        assert len(self._stages) == STAGES

    def start(self) -> None:
        self._at = 0
        self._send()

    @property
    def arrived(self) -> bool:
        return self._at == STAGES - 1 or self.pending is None or self.pending.arrived

    def advance(self) -> None:
        if self._at < STAGES - 1:
            self._receive()
            self._at += 1
            self._send()

    def join(self) -> None:
        while self._at < STAGES - 1:
            self.advance()

    def finish(self) -> torch.Tensor:
        self._receive()
        return self.result

    def _send(self) -> None:
        """Start the all-to-all of the stage that this rank is at."""
        stage = self._stages[self._at]
        outgoing = [self._piece(piece) for to in stage.send for piece in to]
        incoming = [piece for source in stage.receive for piece in source]
        sizes, out_sizes = ([sum(map(len, pieces)) for pieces in side] for side in (stage.send, stage.receive))
        # a piece of the result arrives where it belongs
        if len(incoming) == 1 and incoming[0].row == RESULT:
            self._incoming = self._piece(incoming[0])
        else:
            self._incoming = self._buffer(self._at % 2, sum(out_sizes))
        tensor = outgoing[0] if len(outgoing) == 1 else self._buffer(2, sum(sizes))
        if len(outgoing) > 1:
            torch.cat(outgoing, out=tensor)
        self.pending = self.group.all_to_all(self._incoming, tensor, out_sizes, sizes)

    def _receive(self) -> None:
        """Wait for the stage, and add what has arrived as the tree says."""
        assert self.pending is not None
        self.pending.wait()
        self.pending = None
        stage, arrived = self._stages[self._at], self._incoming
        for piece in (piece for source in stage.receive for piece in source):
            values, arrived = arrived[: len(piece)], arrived[len(piece) :]
            if piece.row != RESULT:
                self._held.setdefault(piece.row, []).append((piece.start, values))
            elif (target := self._piece(piece)).data_ptr() != values.data_ptr():
                target.copy_(values)
        for into, out_of in stage.joins:
            self._piece(into).add_(self._piece(out_of))
        for piece in stage.sums:
            self._piece(Piece(RESULT, piece.start, piece.stop)).copy_(self._piece(piece))

    def _piece(self, piece: Piece) -> torch.Tensor:
        """Return some elements of a row, or of the result, where they lie."""
        for start, values in self._held[piece.row]:
            if start <= piece.start and piece.stop <= start + len(values):
                return values[piece.start - start : piece.stop - start]
        raise AssertionError(f"{piece} is not here")

    def _buffer(self, index: int, numel: int) -> torch.Tensor:
        if len(self.buffers[index]) < numel:
            self.buffers[index] = self.warm.take(numel, self.dtype, self.device)
        return self.buffers[index][:numel]
