"""Keeps the last lines of a terminal for the status, while whatever a script prints scrolls above them.

    make room, set the scrolling region above  ->  draw: save the cursor, write below, restore it  ->  give all back

Workers write to the same terminal from their own processes, so nothing here depends on where the cursor is. A thread
draws: a terminal that takes nothing (Ctrl-S) holds up nobody. One write for each drawing, so that lines of others do
not fall between its parts. After a SIGKILL of this process terminal_guard.py gives the terminal back.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from elastic.status.terminal_guard import TerminalGuard

LINES = 2  # of the status
_EVERY_S = 0.5
_ROWS_MIN = 8
_CLOSE_S = 1.0


def wanted(fd: int, environ: Mapping[str, str]) -> bool:
    """Whether `fd` is a terminal that knows a scrolling region."""
    return os.isatty(fd) and environ.get("TERM", "dumb") not in ("dumb", "unknown", "")


def _drawn(status: dict[str, Any], now_t: float, width: int) -> list[str]:
    from elastic.status import panel  # which loads rich: in vain where there is no terminal

    return panel.lines(status, now_t, width)


class StatusTerminal:
    """fd: of the terminal   draw: status, unix seconds and columns to lines; None: as panel.py does"""

    def __init__(
        self,
        fd: int,
        *,
        draw: Callable[[dict[str, Any], float, int], list[str]] | None = None,
        lines: int = LINES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._fd = fd
        self._draw = draw or _drawn
        self._lines = lines
        self._clock = clock
        self._status: dict[str, Any] | None = None
        self._shape: tuple[int, int] | None = None  # rows and columns that the region is set for
        self._guard = TerminalGuard(fd)
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="elastic-status", daemon=True)
        self._thread.start()

    def show(self, status: dict[str, Any]) -> None:
        """From now on. Nothing is shown before the first one."""
        self._status = status

    def close(self) -> None:
        """The terminal is as it was, with the cursor below what was printed."""
        self._ends.set()
        self._thread.join(timeout=_CLOSE_S)
        self._guard.close()

    def _run(self) -> None:
        try:
            while not self._ends.wait(_EVERY_S):
                if self._status is not None:
                    self._write(self._status)
            if self._shape is not None:
                os.write(self._fd, self._back(self._shape[0]).encode())
                self._guard.restores_with("")
        except OSError:
            return  # the terminal is gone

    def _write(self, status: dict[str, Any]) -> None:
        size = os.get_terminal_size(self._fd)
        if size.lines < _ROWS_MIN:
            return
        out = ""
        top = size.lines - self._lines
        if self._shape != (size.lines, size.columns):
            self._shape = size.lines, size.columns
            self._guard.restores_with(self._back(size.lines))
            # Setting a region puts the cursor into a corner: it is kept, one line for each of ours farther up.
            out += "\n" * self._lines + f"\x1b[{self._lines}A" + f"\x1b7\x1b[1;{top}r\x1b8"
        lines = self._draw(status, self._clock(), size.columns)
        out += "\x1b7" + "".join(f"\x1b[{top + 1 + at};1H\x1b[2K{line}" for at, line in enumerate(lines)) + "\x1b8"
        os.write(self._fd, out.encode())

    def _back(self, rows: int) -> str:
        """What gives the terminal back."""
        top = rows - self._lines
        clear = "".join(f"\x1b[{top + 1 + at};1H\x1b[2K" for at in range(self._lines))
        return f"\x1b7\x1b[r{clear}\x1b8"
