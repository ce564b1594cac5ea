"""Signals to leave that come before the agent takes them: while `elastic run` imports, and waits for other nodes.

Promises  none of them ends the process by itself, past --leave-status and without a word, nor is lost. One is kept
          until what was begun can be given up (`interruptible`), and raises `LeftEarly` there; one that comes later is
          the agent's. Nor does one that comes after the agent's end.
Leaves    Ctrl-C to Python.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

NUMBERS = (signal.SIGTERM, signal.SIGUSR1)  # preemption.signals.LEAVE_SIGNALS, which is not loaded yet


def hold() -> None:
    """Block signals to leave until `EarlySignals` is made, also in the process that this one becomes.

    exec resets handlers, and not this. The kernel drops a signal that process 1 of a container neither handles nor
    blocks: a pod that was drained as it started trained on until SIGKILL.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, NUMBERS)


class LeftEarly(BaseException):
    """A signal to leave came early; `number` says which."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.number = number


class EarlySignals:
    """Keeps signals to leave, from its making to the end of the process. Main thread only; one at a time."""

    def __init__(self) -> None:
        global _present
        self._arrived: list[int] = []
        self._interrupts = False
        self._handlers = {number: signal.signal(number, self._keep) for number in NUMBERS}
        signal.pthread_sigmask(signal.SIG_UNBLOCK, NUMBERS)
        _present = self

    def also(self, numbers: Iterable[signal.Signals]) -> None:
        """Keep the signals, too, that the command line names."""
        for number in numbers:
            if number not in self._handlers and number != signal.SIGINT:
                self._handlers[number] = signal.signal(number, self._keep)

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Raise LeftEarly within this, wherever it is, for a signal that comes or has come."""
        self._interrupts = True
        try:
            self._raise_if_arrived()
            yield
        finally:
            self._interrupts = False

    def take(self) -> list[int]:
        """Return the signals that nobody was told of."""
        arrived, self._arrived = self._arrived, []
        return arrived

    def give_back(self) -> None:
        """Restore the handlers from before, in a process that is no `elastic run`."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    def _keep(self, number: int, _frame: FrameType | None) -> None:
        """Keep a signal, and give up what is interruptible."""
        self._arrived.append(number)
        if self._interrupts:
            self._raise_if_arrived()

    def _raise_if_arrived(self) -> None:
        if self._arrived:
            raise LeftEarly(signal.Signals(self.take()[0]))


_present: EarlySignals | None = None


def fork() -> int:
    """Fork as os.fork; the child's handlers are those from before EarlySignals, and it hears none of its signals."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, NUMBERS)
    try:
        pid = os.fork()
        if pid == 0 and _present is not None:
            _present.give_back()
        return pid
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
