"""How the command's answers reach people and scripts: what goes where, how wide, and nothing that a terminal obeys.

Answers go to standard output, one document with --json; warnings, errors and the bar go to standard error. Lines are
never cut or wrapped here. Colours and bars appear on a terminal only. Names and values come from storage, which anybody
may have written: whatever is not printable is shown as an escape.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

_BAR_AFTER_S = 1.0  # work that is done sooner shows no bar

Advance = Callable[[int], None]  # takes the number of bytes that were done since the last call


class Screen:
    """Where one command prints."""

    def __init__(self) -> None:
        plain: dict[str, Any] = {"soft_wrap": True, "highlight": False, "markup": False, "emoji": False}
        self._out = _Console(**plain)
        self._err = _Console(stderr=True, **plain)
        self._warned: set[str] = set()

    def say(self, text: str, *, bad: bool = False) -> None:
        """Print one line, or several, of the answer."""
        self._out.print(escaped(text), style="red" if bad else None)

    def table(self, rows: Sequence[Sequence[str]]) -> None:
        """Print columns as wide as their widest cell, two spaces apart."""
        cells = [[one_line(cell) for cell in row] for row in rows]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        for row in cells:
            self.say("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())

    def document(self, value: object) -> None:
        """Print the answer as one line of JSON; what it has no word for (NaN, infinity, other types) is a string."""
        sys.stdout.write(json.dumps(_as_json(value), allow_nan=False) + "\n")

    def warn(self, text: str) -> None:
        """Print something remarkable, once, however often it is met."""
        if text not in self._warned:
            self._warned.add(text)
            self._err.print(escaped(text), style="yellow")

    def fail(self, text: str) -> None:
        """Print why the command could not answer."""
        self._err.print(escaped(text), style="red")

    @contextlib.contextmanager
    def progress(self, doing: str, total_bytes: int | None) -> Iterator[Advance]:
        """Show a bar on a terminal, for work that takes a while; it is gone when the block ends.

        total_bytes  None: nobody knows
        """
        bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=30),
            DownloadColumn(),
            TimeRemainingColumn(),
            console=self._err,
            transient=True,
        )
        task = bar.add_task(doing, total=total_bytes)
        began_s, shown = time.monotonic(), False

        def advance(count: int) -> None:
            nonlocal shown
            bar.advance(task, count)
            if not shown and self._err.is_terminal and time.monotonic() - began_s > _BAR_AFTER_S:
                bar.start()
                shown = True

        try:
            yield advance
        finally:
            if shown:
                bar.stop()


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError: rich would exit with status 1 here, which is an answer of this command."""
        raise BrokenPipeError


def human_bytes(count: int) -> str:
    """Return three digits and a unit: `1.21 GB`, in powers of 1000."""
    size, units = float(count), ["B", "kB", "MB", "GB", "TB", "PB"]
    while size >= 999.5 and len(units) > 1:
        size /= 1000
        units.pop(0)
    return f"{size:.3g} {units[0]}"


def human_age(age_s: float) -> str:
    """Return `12 s`, `3 min`, `5 h` or `4 d`, rounded down; `?` where the time makes no sense, or clocks disagree."""
    if not -60 <= age_s < 2**37:
        return "?"
    for unit, seconds, up_to in (("s", 1, 60), ("min", 60, 60), ("h", 3600, 48)):
        if age_s < seconds * up_to:
            return f"{max(0, int(age_s // seconds))} {unit}"
    return f"{int(age_s // 86400)} d"


def counted(number: int, noun: str) -> str:
    """Return `1 tensor`, `2 tensors`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def escaped(text: str) -> str:
    """Return the text with everything that could steer a terminal shown as an escape; line breaks stay."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode("ascii") for c in text)


def one_line(text: str) -> str:
    """Return the text as `escaped` gives it, on one line."""
    return escaped(text).replace("\n", "\\n")


def _as_json(value: object) -> object:
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {str(key): _as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(item) for item in value]
    return repr(value)
