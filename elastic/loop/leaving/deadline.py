"""Puts on record what is lost with a worker that must leave by a time, and comes to no boundary before.

    told ............................................ gives up .. by
                                                      2 s ahead, or a quarter of a notice shorter than 8 s: `cut_short`
                                                      is on record, and the worker ends

Nothing is saved then. In a step, the script's own code may have changed `extra=` since the boundary, and would do so
again on a resume; in an evaluation or a section, the rest of that code would be left out. Either gives other bits, and
nobody would notice.

Leaves  a worker that runs no Python until its machine is gone to those who miss it.
"""

from __future__ import annotations

import os
import threading
import time

from elastic.events import schema
from elastic.loop.leaving.departure import Departure
from elastic.loop.session import Session
from elastic.membership.exit_statuses import CUT_SHORT
from elastic.membership.progress import Phase

RECORD_S = 2.0  # to put a loss on record, and to tell the others, before the machine is gone
_LOOK_S = 0.1
_AT = {
    Phase.STARTING: "at its start",
    Phase.LOADING: "loading",
    Phase.EVALUATING: "in an evaluation",
    Phase.BETWEEN: "between two steps",
    Phase.WAITING: "waiting for others",
}


def gives_up_s(told_s: float, by_s: float) -> float:
    """Return when a worker that was told at `told_s` waits for a boundary no more, by any clock.

    Three quarters of the notice at least are the boundary's.
    """
    return by_s - min(RECORD_S, (by_s - told_s) / 4)


class LeaveDeadline:
    """Ends a worker whose machine goes before a boundary comes; it watches until `close`."""

    def __init__(self, session: Session, departure: Departure) -> None:
        self._session = session
        self._departure = departure
        self._lock = threading.Lock()
        self._watching = False
        self._end = threading.Event()

    def close(self) -> None:
        self._end.set()

    def arm(self) -> None:
        """Begin to watch if there is a deadline by now; this worker was told something, in any thread."""
        with self._lock:
            if self._watching or self._departure.by_s is None:
                return
            self._watching = True
        threading.Thread(target=self._watch, args=[time.monotonic()], name="elastic-deadline", daemon=True).start()

    def _watch(self, told_s: float) -> None:
        """End the worker when its time is up, unless what it holds is safe by then."""
        while not self._end.wait(_LOOK_S):
            by_s, now_s = self._departure.by_s, time.monotonic()
            if by_s is not None and now_s >= gives_up_s(told_s, by_s) and self._is_lost():
                self._give_up(by_s - now_s)

    def _is_lost(self) -> bool:
        """Return whether what is held is lost: not if it is being saved, or all wait for that, or this worker ends."""
        phase = self._session.context.progress.phase
        return not self._departure.is_settled and phase not in (Phase.SAVING, Phase.ENDED)

    def _give_up(self, left_s: float) -> None:
        """End the process, whatever the main thread is in; the others hear of this worker's end at once."""
        context, step, why = self._session.context, self._session.state.step, self._departure.notice or ""
        at = _AT.get(context.progress.phase, "in a step")
        context.events.emit(schema.CutShort(step=step, at=at, why=why, left_s=round(max(0.0, left_s), 3)))
        context.console.warn(
            f"this worker leaves with {step} steps applied, {at}: its machine is about to go ({why})\n"
            "  state  what was committed before is whole; what nobody else holds of the steps since is lost\n"
            "  next   nothing: the others go on, or the same command does, from the newest checkpoint"
        )
        context.events.flush(wait=True)
        os._exit(CUT_SHORT)  # a process's death is proof to the others, who go on at once; a machine's silence is not
