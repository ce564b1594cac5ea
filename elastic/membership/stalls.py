"""A worker has given no sign for longer than it may: does it hang, or do all stand still at one place? Pure.

    agents say where each of their workers is, and since when (Sighting)  ->  judge  ->  Hung | Stall | nothing

One that is stuck while others wait for it, or go on, is at fault. Where all that do not wait are stuck at the very same
place (a read of the data, say), the place is: storage that fails over, a service that does not answer. Killing them
would only lose what they hold, so they are waited for, up to a bound that ends the run with a sentence.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from elastic.membership.progress import LIMITED, Phase
from elastic_checkpoint.net.codec import Duration, Facts, Float, Int, Name

STORAGE = (Phase.READING, Phase.SAVING, Phase.LOADING)  # whoever stands here may wait for something outside the machine
# so many times its limit one that nobody waits for may stand there, since only it holds the run's state; and half as
# long as a stall may last: its successor is to show whether it was the place
ALONE = 5.0
STALL_LIMITS = 20  # how many times --hang-limit all may stand still at one place: ten minutes, unless it is given
# one that came to a place later, and has been quiet for this part of the other's time, is stuck as well
TOGETHER = 0.25
FRESH_S = 3.0  # an agent with a quiet worker reports each second
PhaseOfStep = tuple[Phase, int | None]

_WORDS = {
    Phase.READING: ("read", "dataset[i] for step {}"),
    Phase.COMPUTING: ("computed", "the computing of step {}"),
    Phase.EVALUATING: ("evaluated", "the function given to run.evaluate before step {}"),
    Phase.SAVING: ("been saving", "the save before step {}"),
    Phase.LOADING: ("been loading", "the loading of the state at step {}"),
    Phase.BETWEEN: ("been between two steps", "the script's own code before step {}"),
}


class Sighting(Facts):
    """A worker as its agent saw it; so it travels to the hub.

    step     None before the first view
    sign     the number of its last one
    quiet_s  since then
    limit_s  how long it may be quiet there; inf where it waits for others
    """

    worker: Name
    phase: Phase
    step: Int | None
    sign: Int
    quiet_s: Float
    limit_s: Duration = math.inf

    @property
    def at(self) -> PhaseOfStep:
        return self.phase, self.step

    @property
    def waits(self) -> bool:
        """Return whether it waits for others, so that it cannot be the one that hangs."""
        return self.phase not in LIMITED

    @property
    def stuck(self) -> bool:
        """Return whether it has given no sign for longer than it may."""
        return not self.waits and self.quiet_s > self.limit_s

    def __str__(self) -> str:
        does = _WORDS.get(self.phase, ("been there", ""))[0]
        return f"it has {does} for {self.quiet_s:.1f} s without a sign, and may for {self.limit_s:.1f} s"


@dataclass(frozen=True)
class Hung:
    """The verdict that this worker is at fault."""

    sighting: Sighting


@dataclass(frozen=True, kw_only=True)
class Stall:
    """The verdict that all who do not wait stand at one place.

    bound_s     the run ends once they have stood there for so long
    patience_s  the only one, who may be at fault, is killed after so long; None: nobody is killed for it
    """

    at: PhaseOfStep
    workers: tuple[str, ...]
    waiting: int
    quiet_s: float
    bound_s: float
    patience_s: float | None = None

    @property
    def is_over_bound(self) -> bool:
        return self.quiet_s > self.bound_s

    @property
    def where(self) -> str:
        """Return the place in words."""
        phase, step = self.at
        return _WORDS[phase][1].format(step)

    @property
    def standing(self) -> str:
        """Return in words who stood still, where and for how long."""
        who = f"all {len(self.workers)} workers" if len(self.workers) > 1 else "the worker that the others wait for"
        if len(self.workers) == 1 and not self.waiting:
            who = "the only worker"
        others = f" ({self.waiting} more wait for them)" if self.waiting and len(self.workers) > 1 else ""
        return f"{who}{others} stood still in {self.where} for {self.quiet_s:.0f} s"

    def __str__(self) -> str:
        blame = "is its storage stalled?" if self.at[0] in STORAGE else "is it slow for all of them?"
        if self.patience_s is not None:
            return f"{self.standing}: {blame} It is killed and replaced if that lasts {self.patience_s:.0f} s"
        return f"{self.standing}: {blame} Nobody is killed for it; the run ends if it lasts {self.bound_s:.0f} s"


def of_replica(seen: Iterable[Sighting | None]) -> Sighting | None:
    """Return the sighting that counts of a replica's workers: that of the one for which the others most likely wait.

    They wait for each other inside a pass, too, where each seems to compute.
    """
    quiet = [one for one in seen if one is not None]
    return max(quiet, key=lambda one: (not one.waits, one.phase in STORAGE, one.quiet_s), default=None)


def judge(
    sightings: Mapping[str, Sighting | None], *, killed_at: Collection[PhaseOfStep], stall_s: float
) -> Hung | Stall | None:
    """Return who is at fault, or at which place all stand still; None: nobody is quiet for longer than it may.

    sightings  of all replicas of the view, by the first worker of each; None for one of whom nothing was told lately,
               since it gives signs
    killed_at  places where somebody was killed before, for the same
    stall_s    how long a stall may last, at least
    """
    seen = [sighting for sighting in sightings.values() if sighting is not None]
    active = [sighting for sighting in seen if not sighting.waits]
    suspect = max((one for one in active if one.stuck), key=lambda one: one.quiet_s, default=None)
    if suspect is None:
        return None
    together = [one for one in active if one.at == suspect.at and one.quiet_s >= TOGETHER * suspect.quiet_s]
    waiting = len(seen) - len(active)
    at_storage = suspect.phase in STORAGE
    bound_s = max(stall_s, 2 * suspect.limit_s)
    patience_s = min(ALONE * suspect.limit_s, bound_s / 2)
    alone = len(sightings) == 1 and at_storage and suspect.quiet_s <= patience_s
    moved = at_storage and suspect.at in killed_at  # the one before was killed, and that did not help
    if len(seen) == len(sightings) and together == active and (len(together) > 1 or alone or moved):
        return Stall(
            at=suspect.at,
            workers=tuple(one.worker for one in together),
            waiting=waiting,
            quiet_s=suspect.quiet_s,
            bound_s=bound_s,
            patience_s=patience_s if alone and not moved else None,
        )
    return Hung(suspect)
