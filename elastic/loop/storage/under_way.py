"""A save that is under way: of which state, and what it has cost by now."""

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
