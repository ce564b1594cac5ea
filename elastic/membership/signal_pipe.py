"""Signals as bytes in a pipe: they are read at once by a thread or a selector, whatever the main thread waits for.

A forked child writes into no pipe of its parent's; what it does at a signal that both are sent is forked_children.py's.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterable
from types import FrameType

from elastic.membership.forked_children import OfParent, heard, wake_at_parents_wait

WOKEN = 0
_READ = 4096

_pipes: list[SignalPipe] = []


class SignalPipe:
    """A pipe in which signals arrive, and do nothing else, from its making until `restore`. Main thread only.

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
        heard.opened()

    def read(self) -> bytes:
        """Wait, and return the numbers of signals that arrived, others of this process too; WOKEN: of `wake`."""
        data = os.read(self.fd, _READ)
        heard.note(data)
        return data

    def wake(self) -> None:
        """Make `read` return, with WOKEN among the numbers."""
        if self._write >= 0:
            os.write(self._write, bytes([WOKEN]))

    def restore(self) -> None:
        """Give the signals back to whom they belonged before, but for those that somebody has taken since.

        Where that is a newer pipe, it has them until it is restored itself.
        """
        if self not in _pipes:
            return
        _pipes.remove(self)
        if not _pipes:
            heard.closed()
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


class _Fork:
    """Keeps signals back in a thread that forks: no handler runs in the child while it would write to the parent."""

    def __init__(self) -> None:
        self._here = threading.local()

    def begin(self) -> None:
        """Block the signals of all pipes in this thread."""
        numbers = {number for pipe in _pipes for number in pipe.handlers}
        self._here.mask = signal.pthread_sigmask(signal.SIG_BLOCK, numbers) if numbers else None

    def end(self) -> None:
        """Give this thread back the mask that it had."""
        if self._here.mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._here.mask)

    def end_in_child(self) -> None:
        """Close the parent's pipes; have the child stay at the signals that its parent sees to."""
        if pipes := [*_pipes]:
            parents = heard.leave()
            for pipe in reversed(pipes):  # newest first, so that each gives back what was there before it
                pipe.restore()
                pipe.close()
            if stays := {number for pipe in pipes if pipe.children_stay for number in pipe.handlers}:
                wake_at_parents_wait()
            for number in stays:
                signal.signal(number, OfParent(parents, signal.getsignal(number)))
        self.end()


_fork = _Fork()
os.register_at_fork(before=_fork.begin, after_in_parent=_fork.end, after_in_child=_fork.end_in_child)


def is_taken(number: signal.Signals) -> bool:
    """Return whether the script has a handler of its own for this signal."""
    handler = signal.getsignal(number)
    while isinstance(handler, OfParent):
        handler = handler.before
    return handler not in (signal.SIG_DFL, signal.SIG_IGN, _nothing)


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: a handler in Python must exist for the wakeup pipe to be written."""
