"""Signals as bytes in a pipe: they are read at once by a thread or a selector, whatever the main thread waits for."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from types import FrameType

WOKEN = 0
_READ = 4096


class SignalPipe:
    """From its making until `restore` these signals do nothing but arrive here. Main thread only.

    fd  can be read from when one has arrived
    """

    def __init__(self, numbers: Iterable[int]) -> None:
        self.fd, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._handlers = {number: signal.signal(number, _nothing) for number in numbers}

    def read(self) -> bytes:
        """Waits. The numbers of signals that arrived, others of this process among them; WOKEN: of `wake`."""
        return os.read(self.fd, _READ)

    def wake(self) -> None:
        os.write(self._write, bytes([WOKEN]))

    def restore(self) -> None:
        """The signals belong to whom they belonged before."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        signal.set_wakeup_fd(self._wakeup)

    def close(self) -> None:
        os.close(self.fd)
        os.close(self._write)


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """A handler in Python must exist for the wakeup pipe to be written."""
