"""`elastic run --timing`: where the time from the command to the first step goes, of this node's first workers.

    the command  ->  torch loaded  ->  the script's imports made, once  ->  workers forked  ->  in Run  ->  state held
      ->  a step applied

One process on its own would have to import as much: a start is measured against that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from elastic.events.timing import age_s
from elastic.membership.progress import Record

LOADED, IMPORTED, STARTED, IN_RUN, HELD, APPLIED = (
    "torch and this command are loaded",
    "the script's imports are made, once for all workers",
    "processes are there",
    "the workers are in Run",
    "they hold the state",
    "all have applied a step",
)
_ORDER = (LOADED, IMPORTED, STARTED, IN_RUN, HELD, APPLIED)


class StartTimes:
    """When the last worker had come to each of the moments above, in seconds since the command's process began.

    workers  how many this node starts
    say      gets the table, once
    """

    def __init__(
        self, workers: int, say: Callable[[str], None], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._workers = workers
        self._say = say
        self._clock = clock
        self._begun_s = clock() - age_s()
        self._times: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self._first_step: dict[str, int] = {}
        self._done: set[str] = set()
        self.reported = False

    def mark(self, moment: str, at_s: float | None = None) -> None:
        """Note that all have come to this moment; at_s: then, by the clock, None: now."""
        self._times.setdefault(moment, (self._clock() if at_s is None else at_s) - self._begun_s)

    def count(self, moment: str) -> None:
        """Note that one more worker has come to this moment."""
        self._counts[moment] = self._counts.get(moment, 0) + 1
        if self._counts[moment] == self._workers:
            self.mark(moment)

    def look(self, records: Iterable[tuple[str, Record]]) -> None:
        """Look where the workers are, by their tokens, which no message says, and tell all of it at the end."""
        for worker, record in records:
            if record.at_step is None or not record.holds_state:
                continue
            if worker not in self._first_step:
                self._first_step[worker] = record.at_step
                self.count(HELD)
            if record.at_step > self._first_step[worker] and worker not in self._done:
                self._done.add(worker)
                self.count(APPLIED)
        if APPLIED in self._times and not self.reported:
            self.reported = True
            self._say(self.table())

    def table(self) -> str:
        """Return the table; its first line compares with what one process would need for its imports alone."""
        total_s = self._times[APPLIED]
        imports_s = self._times.get(IMPORTED)
        workers = f"{self._workers} worker{'s' if self._workers > 1 else ''}"
        first = f"from the command to a step of {workers}: {total_s:.2f} s"
        if imports_s is not None:
            first += f", {total_s / imports_s:.2f} times what torch and the script's imports took ({imports_s:.2f} s)"
        known = [(moment, self._times[moment]) for moment in _ORDER if moment in self._times]
        lines = [f"  {at_s:6.2f} s  {moment}" for moment, at_s in known]
        return "\n".join([first, *lines])
