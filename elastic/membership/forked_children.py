"""What a forked child does at a signal that its parent is sent, too: it stays, for the parent to act on it.

torchrun and Slurm send a signal to everybody, and what the parent does then may need its children until it is done:
data readers, say. A signal that is sent to one of them alone is its own.

docs/decisions/2026-11-28-what-is-forked-stays-with-its-parent.md
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import time
from multiprocessing import connection
from multiprocessing.popen_fork import Popen
from types import FrameType
from typing import Any

from elastic_checkpoint import linux

_ALONE_NS = 3 * 10**9  # a signal that the parent has not heard of before or by then was sent to the child alone
_LOOK_S = 0.01
_OPEN = 0  # no signal has this number; a pipe is woken by it (signal_pipe.WOKEN)
_ENDED, _ENDED_MAX = signal.NSIG, 4096
_WAKES = signal.SIGURG  # which does nothing where nobody has a handler for it
_WAKE_S = 0.1
_multiprocessings_terminate, _multiprocessings_wait = Popen.terminate, Popen.wait


class Heard:
    """The times at which signals arrived in this process's pipes, in memory that it shares with its forked children.

    It holds, too, which of these it has ended by a signal of its own.

    _words  by signal, in ns of time.monotonic; at 0 whether there is a pipe; behind them pids, each at a place that
            follows from it
    """

    def __init__(self) -> None:
        self._words: memoryview[int] | None = None

    def opened(self) -> None:
        """Note that there is a pipe; at the first, make the memory, and take Popen.terminate and Popen.wait over."""
        if self._words is None:
            self._words = memoryview(mmap.mmap(-1, 8 * (_ENDED + _ENDED_MAX))).cast("q")
            Popen.terminate = _terminate  # type: ignore[assignment, method-assign]
            Popen.wait = _wait  # type: ignore[assignment, method-assign]
        self._words[_OPEN] = 1

    def closed(self) -> None:
        """Note that this process has no pipe any more."""
        if self._words is not None:
            self._words[_OPEN] = 0

    def note(self, data: bytes) -> None:
        """Note the time for each signal whose number is in `data`."""
        for number in data:
            if number != _OPEN and self._words is not None:
                self._words[number] = time.monotonic_ns()

    def ends(self, pid: int) -> None:
        """Note that this process ends that child by a signal of its own."""
        if self._words is not None:
            self._words[_ENDED + pid % _ENDED_MAX] = pid

    def has_ended(self, pid: int) -> bool:
        return self._words is not None and self._words[_ENDED + pid % _ENDED_MAX] == pid

    def leave(self) -> memoryview[int]:
        """Return the parent's memory, in a forked child, which is rid of it from then on."""
        words, self._words = self._words, None
        assert words is not None, "only what has a pipe is asked for it"
        return words


class OfParent:
    """A forked child's handler of a signal that its parent hears by a pipe.

    before  what the signal does where it is sent to this process alone
    """

    def __init__(self, parents: memoryview[int], before: Any) -> None:
        self.before = before
        self._parents = parents
        self._parent = os.getppid()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Stay if the parent is sent this signal, too; else do what it does to a process alone."""
        begun_ns = time.monotonic_ns()
        # No handler in Python learns who has sent a signal. So this one looks whether the parent has sent it
        # (`Process.terminate` says so), or hears of one at that time, too.
        while not self._is_alone() and time.monotonic_ns() - begun_ns < _ALONE_NS:
            if self._parents[number] > begun_ns - _ALONE_NS:
                linux.signal_at_parents_end(signal.SIGKILL)  # it stays no longer than its parent
                return
            time.sleep(_LOOK_S)
        if callable(self.before) and not isinstance(self.before, signal.Handlers):
            self.before(number, frame)
        elif self.before != signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def _is_alone(self) -> bool:
        """Return whether the signal is this child's own: its parent has ended it, has no pipe, or is gone."""
        ended = self._parents[_ENDED + os.getpid() % _ENDED_MAX] == os.getpid()
        return ended or not self._parents[_OPEN] or os.getppid() != self._parent


def wake_at_parents_wait() -> None:
    """Give a forked child a handler of the signal that wakes it from a wait in C, if it has none."""
    if _WAKES not in linux.caught_signals():
        signal.signal(_WAKES, lambda _number, _frame: None)


def _wait(popen: Popen, timeout: float | None = None) -> int | None:
    """Wait as multiprocessing does, and wake a process that `_terminate` has ended until it is gone."""
    # A handler does not run while its process waits in C, as a pool's does at a lock, if the signal came just ahead of
    # that. So the process is woken, by a signal that does nothing else.
    until_s = None if timeout is None else time.monotonic() + timeout
    while heard.has_ended(popen.pid) and popen.poll() is None:
        left_s = _WAKE_S if until_s is None else until_s - time.monotonic()
        if left_s <= 0:
            return None
        connection.wait([popen.sentinel], min(left_s, _WAKE_S))
        with contextlib.suppress(ProcessLookupError):
            os.kill(popen.pid, _WAKES)
    return _multiprocessings_wait(popen, timeout)


def _terminate(popen: Popen) -> None:
    """Terminate a process as multiprocessing does, and tell it first that it is meant."""
    heard.ends(popen.pid)
    _multiprocessings_terminate(popen)


heard = Heard()
