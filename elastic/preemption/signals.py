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
from types import FrameType
from typing import Any

_TWICE_S = 0.5
_STOP = 0


class SignalNotices:
    """Watches SIGTERM and SIGINT between `install` and `close`, and then gives them back to whom they belonged."""

    def __init__(self) -> None:
        self.notice: str | None = None
        self._previous: dict[int, Any] = {}
        self._previous_wakeup = -1
        self._interrupted_at: float | None = None
        self._thread: threading.Thread | None = None
        self._read = self._write = -1
        self._tell: Callable[[str], None] | None = None

    def install(self, tell: Callable[[str], None] | None = None) -> None:
        """tell  called with each notice, in the thread that reads them

        Outside the main thread Python cannot take signals: then there are no notices.
        """
        self._tell = tell
        if threading.current_thread() is not threading.main_thread():
            return
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._previous_wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._previous[number] = signal.signal(number, _nothing)
        self._thread = threading.Thread(target=self._watch, name="elastic-notices", daemon=True)
        self._thread.start()

    def close(self) -> None:
        if self._thread is None:
            return
        for number, handler in self._previous.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        signal.set_wakeup_fd(self._previous_wakeup)
        os.write(self._write, bytes([_STOP]))
        self._thread.join(timeout=5)
        self._thread = None
        os.close(self._read)
        os.close(self._write)

    def _watch(self) -> None:
        while True:
            for number in os.read(self._read, 64):
                if number == _STOP:
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


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """The thread has read it. A handler in Python must exist for the wakeup pipe to be written."""
