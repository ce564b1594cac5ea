"""A worker that was told to leave by a time does not come to a boundary: its step is broken off, or its loss is said.

    in a step                       weights are what the last update made of them: the step is given up, and the worker
                                    leaves with what it holds, as from a boundary (departure.py)
    between steps, in an            the script's own code has run half, so nothing may be saved; it may still come to a
    evaluation, in a long section   boundary. Where it does not, that is put on record, and the worker ends

When is decided by preemption/last_moment.py. A thread watches the time. A step is broken off by a signal to the main
thread, whose handler raises where the script's code runs, and nowhere in ours.

Leaves  a worker whose main thread runs no Python until its machine is gone to those who miss it: it says so before.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from traceback import walk_stack
from types import FrameType

import checkpoint
from elastic.events import schema
from elastic.loop.departure import Departure
from elastic.loop.session import Session
from elastic.membership.endings import CUT_SHORT
from elastic.membership.progress import Phase
from elastic.preemption.last_moment import LastMoment

_SIGNAL = signal.SIGURG  # ignored by default, and nobody's: Go's runtime breaks into its threads by it, too
_LOOK_S = 0.1
_ELASTIC, _CHECKPOINT = Path(__file__).parents[1], Path(checkpoint.__file__).parent
_OURS = f"{_ELASTIC}{os.sep}", f"{_CHECKPOINT}{os.sep}"
_CALL_SCRIPTS = f"{_ELASTIC / 'launch'}{os.sep}", f"{_ELASTIC / 'integrations'}{os.sep}"
_AT = {
    Phase.STARTING: "at its start",
    Phase.LOADING: "loading",
    Phase.EVALUATING: "in an evaluation",
    Phase.BETWEEN: "between two steps",
    Phase.WAITING: "waiting for others",
}


class BrokenOff(SystemExit):
    """The step in hand is given up, for this worker leaves. It is no Exception: a script's `except` lets it through."""


class BreakingOff:
    """Of one worker, from `install` to `close`.

    in_step  whether what it holds may be saved, and a step is in hand
    """

    def __init__(self, session: Session, departure: Departure, in_step: Callable[[], bool]) -> None:
        self._session = session
        self._departure = departure
        self._in_step = in_step
        self._main: int | None = None
        self._lock = threading.Lock()
        self._watching = False
        self._end = threading.Event()

    def install(self) -> None:
        """Outside the main thread nothing can be broken off, nor where the script uses the signal itself."""
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and signal.getsignal(_SIGNAL) in (signal.SIG_DFL, signal.SIG_IGN):
            signal.signal(_SIGNAL, self._interrupted)
            self._main = threading.get_ident()

    def close(self) -> None:
        self._end.set()
        if self._main is not None and signal.getsignal(_SIGNAL) == self._interrupted:
            signal.signal(_SIGNAL, signal.SIG_DFL)
        self._main = None

    def look(self) -> None:
        """This worker was told something, in any thread."""
        with self._lock:
            if self._watching or self._departure.by_s is None:
                return
            self._watching = True
        threading.Thread(target=self._watch, args=[time.monotonic()], name="elastic-last-moment", daemon=True).start()

    def _watch(self, told_s: float) -> None:
        while not self._end.wait(_LOOK_S):
            by_s, now_s = self._departure.by_s, time.monotonic()
            assert by_s is not None
            last = LastMoment(told_s=told_s, by_s=by_s)
            if now_s >= last.gives_up_s and self._is_lost():
                self._give_up(by_s - now_s)
            if (now_s >= last.breaks_off_s(self._save_s()) or self._is_void()) and self._in_step():
                self._interrupt()

    def _save_s(self) -> float | None:
        saver = self._session.restorer.saver
        return None if saver is None else saver.likely_s(self._session.state.step)

    def _is_void(self) -> bool:
        """Whether nothing can come of the step in hand any more: another one has left it."""
        live = self._session.context.live
        return live is not None and live.is_broken()

    def _interrupt(self) -> None:
        if (main := self._main) is not None:
            signal.pthread_kill(main, _SIGNAL)

    def _interrupted(self, _number: int, frame: FrameType | None) -> None:
        if self._in_step() and in_script(frame):
            raise BrokenOff(CUT_SHORT)

    def _is_lost(self) -> bool:
        """Unless it is being saved, or all wait for that, or this worker is at its end."""
        phase = self._session.context.progress.phase
        return not self._departure.all_save and phase not in (Phase.SAVING, Phase.ENDED)

    def _give_up(self, left_s: float) -> None:
        """Whatever the main thread is in; the others hear of this worker's end at once."""
        context, step, why = self._session.context, self._session.state.step, self._departure.notice or ""
        at = _AT.get(context.progress.phase, "in a step")
        context.events.emit(schema.CutShort(step=step, at=at, why=why, left_s=round(max(0.0, left_s), 3)))
        context.console.warn(
            f"this worker leaves with {step} steps applied, {at}: its machine is about to go ({why})\n"
            "  state  what was committed before is whole; what nobody else holds of the steps since is lost\n"
            "  next   nothing: the others go on, or the same command does, from the newest checkpoint"
        )
        context.events.flush(wait=True)
        os._exit(CUT_SHORT)


def in_script(frame: FrameType | None) -> bool:
    """Whether the script's code runs there, or what it has called of others; not what it, or they, called of ours."""
    files = [frame.f_code.co_filename for frame, _ in walk_stack(frame)]
    ours = next((number for number, file in enumerate(files) if file.startswith(_OURS)), None)
    return ours is None or (ours > 0 and files[ours].startswith(_CALL_SCRIPTS))
