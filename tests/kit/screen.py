"""A terminal as people see it: a real pseudo-terminal, and what stands on its screen and above."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import termios
import time
from collections.abc import Callable

import pyte

WITHIN_S = 240.0


class Screen:
    """What is written to `fd` is read by `look`, and stands then in `rows`."""

    def __init__(self, rows: int, columns: int, master: int | None = None) -> None:
        self.fd: int | None = None
        if master is None:
            master, self.fd = os.openpty()
        self.master = master
        os.set_blocking(master, False)
        self.written = b""
        self._screen = pyte.HistoryScreen(columns, rows, history=100_000)
        self._stream = pyte.ByteStream(self._screen)
        self.resize(rows, columns)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self._screen.resize(rows, columns)

    def look(self) -> bytes:
        """Return all that has been written so far."""
        with contextlib.suppress(OSError):  # nothing more yet, or the end
            while data := os.read(self.master, 1 << 16):
                self.written += data
                self._stream.feed(data)
        return self.written

    def until(self, seen: Callable[[], object]) -> None:
        """Look until it is so."""
        deadline = time.monotonic() + WITHIN_S
        while not seen():
            assert time.monotonic() < deadline, self.rows
            time.sleep(0.02)
            self.look()

    @property
    def rows(self) -> list[str]:
        """The rows of the screen, from the first to the last."""
        return [row.rstrip() for row in self._screen.display]

    @property
    def all_rows(self) -> list[str]:
        """The same, and before these all that was scrolled away."""
        width = range(self._screen.columns)
        return [*("".join(row[x].data for x in width).rstrip() for row in self._screen.history.top), *self.rows]

    @property
    def scrolls_as_a_whole(self) -> bool:
        return self._screen.margins is None

    def close(self) -> None:
        for fd in (self.master, self.fd):
            if fd is not None:
                os.close(fd)
