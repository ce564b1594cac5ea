"""Turns SIGTERM, SIGUSR1 and Ctrl-C into a notice that the step's exchange carries to everyone.

A worker that is blocked in a collective runs no Python handler, so a thread reads the signals from the
wakeup pipe: the notice is there at once, and a second Ctrl-C ends the process wherever it is. Launchers
forward what the terminal has sent already (two SIGINT within milliseconds), so a Ctrl-C counts as the
second one only half a second after the first.

SIGUSR1 is what Slurm sends ahead of a limit where it is asked to (`--signal=USR1@120`). One that the script, or
faulthandler, has taken for something else stays theirs.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence

from elastic.membership.exit_statuses import INTERRUPTED
from elastic.membership.signal_pipe import WOKEN, SignalPipe
from elastic.preemption import loader_processes
from elastic.preemption.notice import Notice
from elastic_checkpoint import linux

LEAVE_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
_TWICE_S = 0.5  # launchers forward what the terminal has sent already: two SIGINT within this are one


class Interrupts:
    """Tells the second SIGINT of a process from the first, which launchers may send twice."""

    def __init__(self) -> None:
        self._first_s: float | None = None

    def is_second(self, now_s: float) -> bool:
        """Count a SIGINT that arrives; tell whether it is a second one."""
        if self._first_s is None:
            self._first_s = now_s
        return now_s - self._first_s > _TWICE_S


class SignalNotices:
    """Watches signals between `install` and `close`, and then gives them back to whom they belonged.

    numbers  which; SIGUSR1 only where nobody has taken it
    grace_s  from such a signal to SIGKILL, as far as whoever sends it has said; None: nobody has
    """

    def __init__(
        self, numbers: Sequence[signal.Signals] = (*LEAVE_SIGNALS, signal.SIGINT), *, grace_s: float | None = None
    ) -> None:
        self._numbers = numbers
        self._grace_s = grace_s
        self._interrupts = Interrupts()
        self._thread: threading.Thread | None = None
        self._pipe: SignalPipe | None = None
        self._taken: list[signal.Signals] = []
        self._tell: Callable[[Notice], None]

    def install(self, tell: Callable[[Notice], None]) -> bool:
        """Begin to watch; return False outside the main thread: Python cannot take signals there, and none are noticed.

        tell  called with each notice, in the thread that reads them
        """
        self._tell = tell
        if threading.current_thread() is not threading.main_thread():
            return False
        self._taken = [one for one in self._numbers if one != signal.SIGUSR1 or _is_free(one)]
        loader_processes.stay_with_parent()
        # A thread reads them: a worker that is blocked in a collective runs no Python handler.
        self._pipe = SignalPipe(self._taken, children_stay=True)
        self._thread = threading.Thread(target=self._watch, args=[self._pipe], name="elastic-notices", daemon=True)
        self._thread.start()
        return True

    def close(self) -> None:
        if self._thread is None or self._pipe is None:
            return
        self._pipe.restore()
        self._pipe.wake()
        self._thread.join(timeout=5)
        self._pipe.close()
        self._thread = self._pipe = None

    def _watch(self, pipe: SignalPipe) -> None:
        while True:
            for number in pipe.read():
                if number == WOKEN:
                    return
                if number in self._taken:  # others are in the pipe, too, where Python has a handler for them
                    self._arrived(signal.Signals(number))

    def _arrived(self, number: signal.Signals) -> None:
        """Tell of a signal as a notice; end the process at a second Ctrl-C."""
        now_s = time.monotonic()
        if number is signal.SIGINT and self._interrupts.is_second(now_s):
            sys.stderr.write("elastic: interrupted twice; ending at once, what was committed stays\n")
            sys.stderr.flush()
            os._exit(INTERRUPTED)
        by_s = None if self._grace_s is None or number is signal.SIGINT else now_s + self._grace_s
        self._tell(Notice(source=number.name, id=number.name, why=number.name, by_s=by_s))


def _is_free(number: signal.Signals) -> bool:
    """Tell whether nobody has taken a signal, also in C, of which Python does not know (faulthandler.register)."""
    return signal.getsignal(number) in (signal.SIG_DFL, signal.SIG_IGN) and number not in linux.caught_signals()
