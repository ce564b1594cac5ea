"""Saves that are under way: of which state each is, what it has cost by now, and whether it came too late.

A save comes too late where a machine is lost and the run goes on under its next claim: it is begun anew. One is chance.
Where uploads take longer than machines last, none is ever committed, though each of them goes well and training does,
too: people hear of it at the second in a row, and each time that it is twice as many.
"""

from __future__ import annotations

from dataclasses import dataclass

import elastic_checkpoint


@dataclass(frozen=True, kw_only=True)
class Position:
    """Where a state stands, as JSON in every checkpoint.

    step      how many updates are applied; the next one has this index
    epoch     of that next one
    stopping  the reason of a stop that was asked for and takes effect after the next step
    stopped   the reason of a stop that has ended the run
    """

    epoch: int
    step: int
    phase: int = 0
    stopping: str | None = None
    stopped: str | None = None


@dataclass(frozen=True)
class UnderWay:
    """A save that is not known to be committed.

    claim     under which it was begun
    begun_s   by the clock
    called_s  how long the call has stopped training
    unfit     which of its weights is not finite
    """

    saving: elastic_checkpoint.Saving
    position: Position
    claim: int
    begun_s: float
    called_s: float
    unfit: str | None = None

    @property
    def stall_s(self) -> float:
        """Return how long training has stopped for the save."""
        return self.called_s + self.saving.joined_s

    @property
    def took_s(self) -> float:
        """Return how long the save took to be durable."""
        # A copy beside a step ends when training looks for it, and the time until then is not the save's.
        begun_s = self.begun_s if self.saving.staged_s is None else self.saving.staged_s - self.stall_s
        return (self.saving.ended_s or begun_s) - begun_s

    @property
    def cost_s(self) -> float:
        """Return what the save has cost training at most."""
        # Beside a step that leaves no processor free, the copy costs as much as if training had stopped for it.
        return max(self.stall_s, self.called_s + self.saving.beside_s)


class LateSaves:
    """Counts the saves in a row that came too late."""

    def __init__(self) -> None:
        self._in_a_row = 0

    def committed(self) -> None:
        """Begin to count anew: a save was committed."""
        self._in_a_row = 0

    def came_too_late(self, *, took_s: float, newest: str) -> str | None:
        """Count another save that came too late; return what people are told, if anything.

        took_s  from its beginning to its end
        newest  what is saved, in words
        """
        self._in_a_row += 1
        if self._in_a_row < 2 or self._in_a_row & (self._in_a_row - 1):
            return None
        return (
            f"{self._in_a_row} saves in a row came too late: before each was uploaded a machine was lost, and the run "
            "went on\nunder another claim\n"
            f"  found  the last one took {took_s:.0f} s, which is longer than machines last here\n"
            f"  state  training goes on, and another save is begun; {newest} is the newest, and what came after it is "
            "nowhere but\n         in memory\n"
            "  next   give the run storage that takes its saves faster (nearer, or with more bandwidth), or machines "
            "that are\n         lost less often"
        )
