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
        """Return the row of this number, full of NOTHING when it is new."""
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
    """A sum of `numel` elements over the ranks of one view, with warm memory. One sum at a time.

    It goes: `begin`, fill `rows`, `start`, `advance` as often as one likes, `join`, `finish`.

    ordered  the tree's bits; else any order's
    memory   of earlier views
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
        """Return the number of elements of which a row's length is a multiple."""

    @abstractmethod
    def hold_nothing(self) -> None:
        """Forget any sum under way, and the memory for one."""

    @abstractmethod
    def begin(self, schedule: Schedule) -> None:
        """Set the schedule of the next sum."""

    def row(self, index: int) -> torch.Tensor:
        """Return memory for a partial sum; that of the first ones is `rows`. Full of NOTHING when it is new."""
        return self._memory[index]

    @property
    def result(self) -> torch.Tensor:
        return self.row(0)

    @property
    def held_bytes(self) -> int:
        """Return how many bytes are kept from sum to sum."""
        return self._memory.nbytes + sum(buffer.nbytes for buffer in self.buffers)

    def release(self) -> None:
        """Give the memory back, for other sums."""
        self._memory.release()
        self.warm.give_back(self.buffers)
        self.buffers, self.rows = [], []
        self.hold_nothing()

    @abstractmethod
    def start(self) -> None:
        """Send the rows. Collectives must start in the same order on all ranks. Raises PeerLost."""

    @property
    @abstractmethod
    def arrived(self) -> bool:
        """Return whether `advance` need not wait."""

    @abstractmethod
    def advance(self) -> None:
        """Wait for the stage under way and begin the next, if there are several. Same order on all ranks."""

    @abstractmethod
    def join(self) -> None:
        """Wait for this rank's chunk, add it and send the result on. Same order on all ranks."""

    @abstractmethod
    def finish(self) -> torch.Tensor:
        """Wait for `result`, and return it. Raises PeerLost."""

    def empty(self, *shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=self.dtype, device=self.device)
