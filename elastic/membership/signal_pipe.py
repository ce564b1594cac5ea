"""Signals as bytes in a pipe: they are read at once by a thread or a selector, whatever the main thread waits for.

A forked child writes into no pipe of its parent's. What is sent to everybody, as torchrun and Slurm do, is for the
parent to act on, which may need its children until it has: data readers, say. So where a pipe says so they stay at
it; a signal that is sent to one of them alone is its own. No handler in Python learns who has sent a signal, so a child
looks whether its parent has sent this one (`Process.terminate` says so), or hears of one at that time, too.
"""

from __future__ import annotations

import mmap
import os
import signal
import threading
import time
from collections.abc import Iterable
from multiprocessing.popen_fork import Popen
from types import FrameType
from typing import Any

from checkpoint import linux

WOKEN = 0
_READ = 4096
_ALONE_NS = 3 * 10**9  # a signal that the parent has not heard of before or by then was sent to the child alone
_LOOK_S = 0.01
_ENDED, _ENDED_MAX = signal.NSIG, 4096
_multiprocessings_terminate = Popen.terminate

_pipes: list[SignalPipe] = []


class SignalPipe:
    """From its making until `restore` these signals do nothing but arrive here. Main thread only.

    Of several (two runs that are open at once) the newest gets them. They may be restored in any order.

    children_stay  what a forked child does at a signal that this process hears of, too: nothing; else what it would do
                   if there were no pipe
    fd             can be read from when one has arrived
    handlers       by signal: what restoring gives back
    """

    def __init__(self, numbers: Iterable[int], *, children_stay: bool = False) -> None:
        self.children_stay = children_stay
        self.fd, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self.handlers = {number: signal.signal(number, _nothing) for number in numbers}
        _pipes.append(self)
        _heard.opened()

    def read(self) -> bytes:
        """Waits. The numbers of signals that arrived, others of this process among them; WOKEN: of `wake`."""
        data = os.read(self.fd, _READ)
        _heard.note(data)
        return data

    def wake(self) -> None:
        if self._write >= 0:
            os.write(self._write, bytes([WOKEN]))

    def restore(self) -> None:
        """The signals belong to whom they belonged before, but for those that somebody has taken since: where that is a
        newer pipe, it has them until it is restored itself."""
        if self not in _pipes:
            return
        _pipes.remove(self)
        if not _pipes:
            _heard.closed()
        newer = next((pipe for pipe in _pipes if pipe._wakeup == self._write), None)
        if newer is None:
            signal.set_wakeup_fd(self._wakeup)
        else:
            newer._wakeup = self._wakeup  # and not this pipe, which is about to be closed
        for number, handler in self.handlers.items():
            if newer is not None and number in newer.handlers:
                newer.handlers[number] = handler
            elif signal.getsignal(number) is _nothing:
                signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            os.close(self._write)
            self.fd = self._write = -1


class _Heard:
    """When each signal last arrived in a pipe of this process, in memory that it shares with its forked children; and
    which of these it has ended by a signal of its own.

    _words  by signal, in ns of time.monotonic; at 0 whether there is a pipe; behind them pids, each at a place that
            follows from it
    """

    def __init__(self) -> None:
        self._words: memoryview[int] | None = None

    def opened(self) -> None:
        if self._words is None:
            self._words = memoryview(mmap.mmap(-1, 8 * (_ENDED + _ENDED_MAX))).cast("q")
            Popen.terminate = _terminate  # type: ignore[assignment, method-assign]
        self._words[WOKEN] = 1

    def closed(self) -> None:
        if self._words is not None:
            self._words[WOKEN] = 0

    def note(self, data: bytes) -> None:
        for number in data:
            if number != WOKEN and self._words is not None:
                self._words[number] = time.monotonic_ns()

    def ends(self, pid: int) -> None:
        if self._words is not None:
            self._words[_ENDED + pid % _ENDED_MAX] = pid

    def leave(self) -> memoryview[int]:
        """In a forked child: it is its parent's."""
        words, self._words = self._words, None
        assert words is not None, "only what has a pipe is asked for it"
        return words


class OfParent:
    """A forked child's handler of a signal that its parent hears by a pipe.

    docs/decisions/2026-11-28-what-is-forked-stays-with-its-parent.md
    """

    def __init__(self, parents: memoryview[int], before: Any) -> None:
        """before: what the signal does where it is sent to this process alone"""
        self.before = before
        self._parents = parents
        self._parent = os.getppid()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        begun_ns = time.monotonic_ns()
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
        ended = self._parents[_ENDED + os.getpid() % _ENDED_MAX] == os.getpid()
        return ended or not self._parents[WOKEN] or os.getppid() != self._parent


def _terminate(popen: Popen) -> None:
    """multiprocessing's, which says to the process that it is meant."""
    _heard.ends(popen.pid)
    _multiprocessings_terminate(popen)


class _Fork:
    """In the thread that forks: no handler runs in the child as long as it would write to the parent."""

    def __init__(self) -> None:
        self._here = threading.local()

    def begin(self) -> None:
        numbers = {number for pipe in _pipes for number in pipe.handlers}
        self._here.mask = signal.pthread_sigmask(signal.SIG_BLOCK, numbers) if numbers else None

    def end(self) -> None:
        if self._here.mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._here.mask)

    def end_in_child(self) -> None:
        if pipes := [*_pipes]:
            heard = _heard.leave()
            for pipe in reversed(pipes):
                pipe.restore()
                pipe.close()
            for number in {number for pipe in pipes if pipe.children_stay for number in pipe.handlers}:
                signal.signal(number, OfParent(heard, signal.getsignal(number)))
        self.end()


_heard = _Heard()
_fork = _Fork()
os.register_at_fork(before=_fork.begin, after_in_parent=_fork.end, after_in_child=_fork.end_in_child)


def is_taken(number: signal.Signals) -> bool:
    """Whether the script has a handler of its own for it."""
    handler = signal.getsignal(number)
    while isinstance(handler, OfParent):
        handler = handler.before
    return handler not in (signal.SIG_DFL, signal.SIG_IGN, _nothing)


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """A handler in Python must exist for the wakeup pipe to be written."""
