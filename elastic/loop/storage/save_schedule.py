"""When the coordinator's next save is due, by its clocks.

That is what plan/save_rules.py and plan/cadence.py decide, with what saves cost here.

What it says reaches the other workers with a step's exchange (Request.SAVE): they save after the same step. A
coordinator that takes over measures anew, and knows what the run has lost, which travels with the state.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from elastic.events import schema
from elastic.events.log import EventLog
from elastic.plan import cadence
from elastic.plan.save_rules import SaveRules

_AGAIN_S, _AGAIN_MAX = 1.0, 6  # tries of a save that is wanted soon, each after twice the pause before
_MEMORY = 5  # saves: one that a busy machine stretched is outvoted


class SaveSchedule:
    """Says when the next save is due.

    losses  what the run has seen by now
    last_s    when the last save was begun, on `clock`
    owes_one  a save that was begun has come to nothing, through no fault of the storage: one is due at once
    """

    def __init__(
        self,
        rules: SaveRules,
        losses: Callable[[], cadence.Losses],
        events: EventLog,
        *,
        clock: Callable[[], float],
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._rules = rules
        self._losses = losses
        self._events = events
        self._clock = clock
        self._wall = wall
        self.last_s = clock()
        self.owes_one = False
        self._stalls_s: deque[float] = deque(maxlen=_MEMORY)
        self._durable_s: deque[float] = deque(maxlen=_MEMORY)
        self._recorded: cadence.Interval | None = None
        self._seconds = rules.seconds

    def is_due(self) -> bool:
        """Return whether a save is due now, by time or because one is owed."""
        if self.owes_one:
            return True
        if self._rules.auto and self._seconds is None:
            self._decide()  # not before the state has told what the run has lost
        since_s = self._clock() - self.last_s
        if self._seconds is not None and since_s >= self._seconds:
            return True
        now_t = self._wall()
        return any(one.passed(now_t - since_s, now_t) for one in self._rules.times)

    def committed(self, *, stall_s: float, durable_s: float) -> None:
        """Learn from a save that has stopped training for so long, and was durable so long after its begin."""
        self._stalls_s.append(stall_s)
        self._durable_s.append(durable_s)
        if self._rules.auto:
            self._decide()

    def _decide(self) -> None:
        """Decide anew how long to train between two saves, and record it if that has changed."""
        stall_s, durable_s = _median(self._stalls_s), _median(self._durable_s)
        losses = self._losses()
        interval = cadence.decide(stall_s=stall_s, durable_s=durable_s, losses=losses)
        self._seconds = interval.seconds
        if self._recorded is not None and not interval.differs(self._recorded):
            return
        self._recorded = interval
        self._events.emit(
            schema.SaveInterval(
                seconds=interval.seconds,
                reason=interval.reason,
                bound=interval.bound.value,
                stall=stall_s,
                durable=durable_s,
                losses=losses.count,
                observed_s=losses.observed_s,
            )
        )


class SoonSave:
    """A save for a machine at risk: one that fails is begun again, some times, until committed. Pure: time comes in."""

    def __init__(self) -> None:
        self._wanted_at: int | None = None  # the step
        self._failures = 0
        self._again_s: float | None = None

    def asked(self, step: int) -> None:
        """Ask for a save of what is held after so many steps."""
        self._wanted_at, self._failures = step, 0

    def begun(self) -> bool:
        """Note that a save has begun, of that or of what came later; return whether one is wanted soon."""
        self._again_s = None
        return self._wanted_at is not None

    def committed(self, step: int) -> None:
        """Take the request as fulfilled, if what was committed is of that step or later."""
        if self._wanted_at is not None and step >= self._wanted_at:
            self._wanted_at, self._again_s = None, None

    def failed(self, now_s: float) -> bool:
        """Plan another try; return whether the failure counts by itself: that of a save begun again does not."""
        if self._wanted_at is None:
            return True
        self._failures += 1
        if self._failures > _AGAIN_MAX:
            self._wanted_at = None
            return True
        self._again_s = now_s + _AGAIN_S * 2 ** (self._failures - 1)
        return self._failures == 1

    def is_due(self, now_s: float) -> bool:
        """Return whether a save that failed is to be begun again now."""
        return self._again_s is not None and now_s >= self._again_s


def _median(times_s: deque[float]) -> float | None:
    """Return the middle one, the upper of two; None: there are none."""
    return sorted(times_s)[len(times_s) // 2] if times_s else None  # `statistics` takes a while to load
