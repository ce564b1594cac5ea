"""Signals as bytes in a pipe: they are read at once by a thread or a selector, whatever the main thread waits for."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from types import FrameType

WOKEN = 0
_READ = 4096

_pipes: list[SignalPipe] = []


class SignalPipe:
    """From its making until `restore` these signals do nothing but arrive here. Main thread only.

    Of several (two runs that are open at once) the newest gets them. They may be restored in any order.

    fd  can be read from when one has arrived
    """

    def __init__(self, numbers: Iterable[int]) -> None:
        self.fd, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._handlers = {number: signal.signal(number, _nothing) for number in numbers}
        _pipes.append(self)

    def read(self) -> bytes:
        """Waits. The numbers of signals that arrived, others of this process among them; WOKEN: of `wake`."""
        return os.read(self.fd, _READ)

    def wake(self) -> None:
        os.write(self._write, bytes([WOKEN]))

    def restore(self) -> None:
        """The signals belong to whom they belonged before, but for those that somebody has taken since: where that is a
        newer pipe, it has them until it is restored itself."""
        _pipes.remove(self)
        newer = next((pipe for pipe in _pipes if pipe._wakeup == self._write), None)
        if newer is None:
            signal.set_wakeup_fd(self._wakeup)
        else:
            newer._wakeup = self._wakeup  # and not this pipe, which is about to be closed
        for number, handler in self._handlers.items():
            if newer is not None and number in newer._handlers:
                newer._handlers[number] = handler
            elif signal.getsignal(number) is _nothing:
                signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    def close(self) -> None:
        os.close(self.fd)
        os.close(self._write)


def is_taken(number: signal.Signals) -> bool:
    """Whether the script has a handler of its own for it."""
    return signal.getsignal(number) not in (signal.SIG_DFL, signal.SIG_IGN, _nothing)


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """A handler in Python must exist for the wakeup pipe to be written."""
