"""One flat tensor per subtree in, their sum out on every rank: what treesum.py and hierarchical_sum.py promise alike.

What no share contributed to is filled with NOTHING, -0.0, which is the identity of IEEE addition:
x + (-0.0) is x for every x, while 0.0 would turn -0.0 into 0.0.

Memory is kept from sum to sum, whatever their schedules: a short batch takes as many rows of it as it needs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from elastic.group.form import Group, Work
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


class FlatSum(ABC):
    """Warm memory for sums of `numel` elements in one view. One sum at a time: `begin`, fill `rows`, `start`, `advance`
    as often as one likes, `join`, `finish`.

    rows     this rank's subtrees, of padded numel each: filled by the caller between `begin` and `start`
    result   (padded numel,): where the sum is after `finish`; the memory of the first row, which has left by then
    buffers  beside the rows, memory of what is under way
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
        """
        ordered  the tree's bits; else any order's
        memory   of earlier views
        """
        self.group = group
        self.ordered = ordered
        self.dtype = dtype
        self.device = device
        self.warm = memory if memory is not None else WarmMemory()
        multiple = self.multiple(group)
        self.padded = -(-numel // multiple) * multiple
        self._memory = Rows(self.padded, dtype, device, self.warm)
        self.pending: Work | None = None
        self.buffers: list[torch.Tensor] = []
        self.rows: list[torch.Tensor] = []
        self.hold_nothing()

    @staticmethod
    @abstractmethod
    def multiple(group: Group) -> int:
        """Of how many elements a row is a multiple."""

    @abstractmethod
    def hold_nothing(self) -> None:
        """There is no sum under way, and no memory for one."""

    @abstractmethod
    def begin(self, schedule: Schedule) -> None:
        """Sets the schedule of the next sum."""

    def row(self, index: int) -> torch.Tensor:
        """Memory for a partial sum; that of the first ones is `rows`. Full of NOTHING when it is new."""
        return self._memory[index]

    @property
    def result(self) -> torch.Tensor:
        return self.row(0)

    @property
    def held_bytes(self) -> int:
        """What is kept."""
        return self._memory.nbytes + sum(buffer.nbytes for buffer in self.buffers)

    def release(self) -> None:
        """Its memory is for others from here on."""
        self._memory.release()
        self.warm.give_back(self.buffers)
        self.buffers, self.rows = [], []
        self.hold_nothing()

    @abstractmethod
    def start(self) -> None:
        """Sends the rows. Collectives must start in the same order on all ranks. Raises PeerLost."""

    @property
    @abstractmethod
    def arrived(self) -> bool:
        """Whether `advance` need not wait."""

    @abstractmethod
    def advance(self) -> None:
        """Where a sum travels in several stages: waits for the one under way, and begins the next. Same order on all
        ranks, too."""

    @abstractmethod
    def join(self) -> None:
        """Adds this rank's chunk when it has arrived, and sends the result on. Same order on all ranks, too."""

    @abstractmethod
    def finish(self) -> torch.Tensor:
        """Waits for `result`, and returns it. Raises PeerLost."""

    def empty(self, *shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=self.dtype, device=self.device)
