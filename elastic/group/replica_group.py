"""The workers of one replica agree: who has lost a peer, and who has heard that all have taken the step.

They hold one model together, and pass it together: one that goes on to its next pass waits there, for good, for one
that is recovering. So what a worker finds out alone waits for the vote. The group is torch's own, within a world whose
size never changes, and fails where a member of it is lost, or is waited for too long.

Before each message of a unit's the members say in the same way which one it is: where one votes, or is at another unit,
all of them raise, and no such message meets another one, which would give other bits, or be waited for for good.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from enum import IntEnum

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from elastic.errors import UNTOUCHED, CollectiveMismatch, PeerLost


class Word(IntEnum):
    """What a member says in a vote; the highest of them is the outcome.

    ON     it goes on to its next pass, or into the next view
    LOST   it has lost a peer
    TAKEN  it has heard that all workers hold the step's gradients: everybody can update
    """

    ON, LOST, TAKEN = range(3)


class UnitMessage(IntEnum):
    """What the members exchange of a unit of fully_shard: its parameters, or their gradients."""

    PARAMETERS, GRADIENTS = range(2)


class ReplicaGroup:
    """The votes of one replica.

    size, place  of the replica, and of this worker in it
    units        the names of the model's
    timeout_s    a mate is waited for so long, which may be in a recovery of its own
    """

    def __init__(self, mesh: DeviceMesh, units: Sequence[str], *, timeout_s: float) -> None:
        self.size, self.place = mesh.size(), mesh.get_local_rank()
        self._units = tuple(units)
        # a group of its own: votes never meet what fully_shard has under way
        ranks = dist.get_process_group_ranks(mesh.get_group())
        self._group = dist.new_group(ranks, backend="gloo", timeout=timedelta(seconds=timeout_s))

    def vote(self, word: Word) -> Word:
        """Return the highest word of all members. Raises CollectiveMismatch where one of them is in a pass."""
        return Word(self._highest_said(int(word)))

    def meet_at(self, unit: int, message: UnitMessage) -> None:
        """Wait until all members are about to exchange this of the unit. Raises CollectiveMismatch where one is not."""
        self._highest_said(len(Word) + len(UnitMessage) * unit + message)

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

    def _highest_said(self, own: int) -> int:
        """Return the highest number of all members: words, or what lies behind these, which all of them say alike."""
        # of both ends, since an all-reduce takes two thirds of the time of an all-gather
        highest, minus_lowest = self.highest(torch.tensor([own, -own])).tolist()
        if highest >= len(Word) and -minus_lowest != highest:
            raise self._apart(own)
        return int(highest)

    def _apart(self, own: int) -> CollectiveMismatch:
        """Return the error for members that are about to do different things, once all of them know it."""
        numbers = [torch.empty(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(numbers, torch.tensor([own]), group=self._group)
        with suppress(RuntimeError):  # whoever ends first would hang up on mates that are still getting the numbers
            dist.barrier(group=self._group)
        doing = {place: self._in_words(int(number)) for place, number in enumerate(numbers)}
        return CollectiveMismatch(
            "the workers of a replica do not pass the same units of fully_shard, and would wait for each other\n"
            f"{''.join(f'  worker {place} of the replica {does}{chr(10)}' for place, does in doing.items())}"
            "  found  a unit that is left out, or a whole pass, by what one worker alone has read, drawn or is\n"
            f"{UNTOUCHED}  next   run the same units in every pass, on all workers; or leave out its own fully_shard "
            "where some\n         passes do without it: of the unit around it, any part may go unused",
            doing=doing,
        )

    def _in_words(self, number: int) -> str:
        """Return what a member is about to do that says this."""
        if number < len(Word):
            return "is past this pass"
        unit, message = divmod(number - len(Word), len(UnitMessage))
        does = "gathers" if message == UnitMessage.PARAMETERS else "sums the gradients of"
        return f"{does} {self._units[unit]}"


class MateLost(PeerLost):
    """All members of this worker's replica know that one of them has lost a peer."""

    def __init__(self, step: int) -> None:
        super().__init__("a worker of this replica has lost a peer", step=step, phase="vote")
