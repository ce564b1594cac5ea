"""A program that was forked, to whoever started it: as subprocess.Popen."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Callable


class Forked:
    def __init__(self, pid: int, ends: int, status: Callable[[int], int]) -> None:
        """ends: readable once it has ended, and closed then   status: its exit status, by `ends`"""
        self.pid = pid
        self.returncode: int | None = None
        self._ends = ends
        self._status = status

    def __del__(self) -> None:
        if self.returncode is None:
            os.close(self._ends)

    def poll(self) -> int | None:
        return self._ended(within_s=0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired."""
        ended = self._ended(within_s=timeout)
        if ended is None:
            raise subprocess.TimeoutExpired(f"forked {self.pid}", timeout or 0.0)
        return ended

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _ended(self, *, within_s: float | None) -> int | None:
        if self.returncode is None and select.select([self._ends], [], [], within_s)[0]:
            self.returncode = self._status(self._ends)
            os.close(self._ends)
        return self.returncode
