"""Turns SIGTERM and Ctrl-C into a notice that the step's exchange carries to everyone.

A worker that is blocked in a collective runs no Python handler, so a thread reads the signals from the
wakeup pipe: the notice is there at once, and a second Ctrl-C ends the process wherever it is. Launchers
forward what the terminal has sent already (two SIGINT within milliseconds), so a Ctrl-C counts as the
second one only half a second after the first.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable

from elastic.signal_pipe import WOKEN, SignalPipe

_TWICE_S = 0.5


class SignalNotices:
    """Watches SIGTERM and SIGINT between `install` and `close`, and then gives them back to whom they belonged."""

    def __init__(self) -> None:
        self.notice: str | None = None
        self._interrupted_at: float | None = None
        self._thread: threading.Thread | None = None
        self._pipe: SignalPipe | None = None
        self._tell: Callable[[str], None] | None = None

    def install(self, tell: Callable[[str], None] | None = None) -> None:
        """tell  called with each notice, in the thread that reads them

        Outside the main thread Python cannot take signals: then there are no notices.
        """
        self._tell = tell
        if threading.current_thread() is not threading.main_thread():
            return
        self._pipe = SignalPipe((signal.SIGTERM, signal.SIGINT))
        self._thread = threading.Thread(target=self._watch, args=[self._pipe], name="elastic-notices", daemon=True)
        self._thread.start()

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
                if number in (signal.SIGTERM, signal.SIGINT):
                    self._arrived(signal.Signals(number))

    def _arrived(self, number: signal.Signals) -> None:
        now_s = time.monotonic()
        if number is signal.SIGINT:
            if self._interrupted_at is not None and now_s - self._interrupted_at > _TWICE_S:
                sys.stderr.write("elastic: interrupted twice; ending at once, what was committed stays\n")
                sys.stderr.flush()
                os._exit(130)
            if self._interrupted_at is None:
                self._interrupted_at = now_s
        self.notice = number.name
        if self._tell is not None:
            self._tell(self.notice)
