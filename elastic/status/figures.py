"""What one worker tells its agent for the metrics of its node, from its own events as they happen.

    each event  ->  some sums here  ->  once a second, at the end of a step, and after what changes more, told

All but what it knows of the run are sums since this worker began, so that its agent can add up those of its workers,
and a scrape those of the agents.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from elastic.events.account import Account
from elastic.events.event import Event
from elastic.status.tracker import StatusTracker

_TOLD_AT_ONCE = frozenset({"view_formed", "loaded", "saved", "save_failed", "left", "finished"})
_KEPT = 16  # recoveries: more than there are in a second


class WorkerFigures:
    """Sums up what metrics show of one worker, as an EventLog's listener after `tracker`.

    tell  is given, as JSON values:
          run         what this worker knows of it: step, total_steps, world_size, generation, and rank
          seconds     its time by part (events/account.py); badput: likewise
          sums        saves, save_failures, save_stall_s, save_bytes; only the coordinator knows of saves
          saved_t     unix seconds, when it last heard of a commit; null: it has not
          recoveries  [generation, seconds from the fault to the next step], the last ones
          trains      it has applied a step in this view
    """

    def __init__(self, tracker: StatusTracker, tell: Callable[[dict[str, Any]], None], *, every_s: float = 1.0) -> None:
        self._status = tracker.status
        self._tell = tell
        self._every_s = every_s
        self._told_t = -math.inf
        self._account: Account | None = None
        self._fault: object = None
        self._rank: int | None = None
        self._trains = False
        self._sums = {"saves": 0, "save_failures": 0, "save_stall_s": 0.0, "save_bytes": 0}
        self._saved_t: float | None = None
        self._recoveries: list[tuple[int, float]] = []

    def hear(self, event: Event) -> None:
        t = float(event["t"])
        if self._account is None:
            begun_t = t - event.get("age_s", 0.0)
            self._account = Account(event["worker"], begun_t, begun_t)
        self._account.hear(event)
        self._rank = event.get("rank", self._rank)
        match event["event"]:
            case "step_applied":
                self._trains = True
            case "view_formed" | "left" | "finished":
                self._trains = False
            case "saved":
                self._saved_t = t
                self._sums["saves"] += 1
                self._sums["save_stall_s"] += event["stall"]
                self._sums["save_bytes"] += event["bytes"]
            case "save_failed":
                self._sums["save_failures"] += 1
        fault = self._status.get("fault")
        if fault is not None and fault is not self._fault:
            self._fault = fault
            self._recoveries = [*self._recoveries, (self._status["generation"], fault["cost_s"])][-_KEPT:]
        due = event["event"] == "step_applied" and t - self._told_t >= self._every_s
        if due or event["event"] in _TOLD_AT_ONCE:
            self._told_t = t
            self._tell(self._figures())

    def _figures(self) -> dict[str, Any]:
        assert self._account is not None, "an event was heard"
        known = ("step", "total_steps", "world_size", "generation")
        return {
            "run": {**{name: self._status[name] for name in known if name in self._status}, "rank": self._rank},
            "seconds": {part: seconds for part, seconds in self._account.parts.items() if seconds > 0},
            "badput": {name: seconds for name, seconds in self._account.badput.items() if seconds > 0},
            "sums": dict(self._sums),
            "saved_t": self._saved_t,
            "recoveries": [list(one) for one in self._recoveries],
            "trains": self._trains,
        }
