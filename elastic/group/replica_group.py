"""The workers of one replica agree: who has lost a peer, and who has heard that all have taken the step.

They hold one model together, and pass it together: one that goes on to its next pass waits there, for good, for one
that is recovering. So what a worker finds out alone waits for the vote. The group is torch's own, within a world whose
size never changes, and fails where a member of it is lost, or is waited for too long.
"""

from __future__ import annotations

from datetime import timedelta
from enum import IntEnum

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from elastic.errors import PeerLost


class Word(IntEnum):
    """What a member says in a vote; the highest of them is the outcome.

    ON     it goes on to its next pass, or into the next view
    LOST   it has lost a peer
    TAKEN  it has heard that all workers hold the step's gradients: everybody can update
    """

    ON, LOST, TAKEN = range(3)


class ReplicaGroup:
    """The votes of one replica.

    size, place  of the replica, and of this worker in it
    timeout_s    a mate is waited for so long, which may be in a recovery of its own
    """

    def __init__(self, mesh: DeviceMesh, *, timeout_s: float) -> None:
        self.size, self.place = mesh.size(), mesh.get_local_rank()
        # a group of its own: votes never meet what fully_shard has under way
        ranks = dist.get_process_group_ranks(mesh.get_group())
        self._group = dist.new_group(ranks, backend="gloo", timeout=timedelta(seconds=timeout_s))

    def vote(self, word: Word) -> Word:
        """Return the highest word of all members. All call it in the same order."""
        said = torch.tensor([int(word)])
        dist.all_reduce(said, dist.ReduceOp.MAX, group=self._group)
        return Word(int(said))

    def goes_on(self, lost: PeerLost | None, *, step: int) -> None:
        """Vote on whether all members go on. Raises PeerLost, on all, where one has `lost` a peer."""
        if self.vote(Word.ON if lost is None else Word.LOST) is Word.LOST:
            raise MateLost(step) from lost

    def any(self, flag: bool) -> bool:
        """Return whether any member says so."""
        return bool(self.highest(torch.tensor([int(flag)])))

    def highest(self, flags: torch.Tensor) -> torch.Tensor:
        """Return, element by element, the highest of all members' flags."""
        flags = flags.clone()
        dist.all_reduce(flags, dist.ReduceOp.MAX, group=self._group)
        return flags

    def total(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return, element by element, the sum of all members' numbers."""
        numbers = numbers.clone()
        dist.all_reduce(numbers, dist.ReduceOp.SUM, group=self._group)
        return numbers

    def close(self) -> None:
        """End the group's threads and connections."""
        dist.destroy_process_group(self._group)


class MateLost(PeerLost):
    """All members of this worker's replica know that one of them has lost a peer."""

    def __init__(self, step: int) -> None:
        super().__init__("a worker of this replica has lost a peer", step=step, phase="vote")
