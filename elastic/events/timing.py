"""What a worker spends its time on, as seconds that ride on its events: collectives, data, saves, evaluations.

One stopwatch per worker, used by its training thread alone. What none of these explains is computing and the script's
own code; where between two events it falls does not matter to anyone, so only sums are kept. A lap costs a µs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypedDict, cast

from elastic_checkpoint.linux import process_stat

WAIT, DATA, SAVE, EVALUATE = "wait_s", "data_s", "save_s", "evaluate_s"
SPENT = (WAIT, DATA, SAVE, EVALUATE)


class Spent(TypedDict, total=False):
    """Seconds by what they were spent on; the facts of an EndOfStretch (schema.py)."""

    wait_s: float
    data_s: float
    save_s: float
    evaluate_s: float


class Stopwatch:
    """Adds up what one thread spends its time on."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._on: str | None = None
        self._since_s = clock()
        self._spent: dict[str, float] = {}

    def at(self, on: str | None) -> str | None:
        """Count time on one of SPENT from now on; return what it was spent on before.

        None means computing and the script's own code.
        """
        before = self._on
        if on == before:
            return before
        now_s = self._clock()
        if self._on is not None:
            self._spent[self._on] = self._spent.get(self._on, 0.0) + now_s - self._since_s
        self._on, self._since_s = on, now_s
        return before

    def lap(self) -> Spent:
        """Return seconds by what they were spent on since the last lap, without those of less than a microsecond."""
        on = self._on
        self.at(None)
        self.at(on)
        spent, self._spent = self._spent, {}
        return cast(Spent, {name: round(seconds, 6) for name, seconds in spent.items() if seconds >= 1e-6})


def age_s(ordered: float | None = None) -> float:
    """Return for how many seconds this worker has existed: since it was asked for, or since its process began.

    ordered: unix seconds. On Linux to a hundredth; elsewhere the CPU time that the process has used.
    """
    if ordered is not None:
        return round(max(0.0, time.time() - ordered), 3)
    stat = process_stat("self")
    if stat is None:
        return round(time.process_time(), 3)
    return round(max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - stat.started / os.sysconf("SC_CLK_TCK")), 3)
