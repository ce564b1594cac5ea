"""Keeps the last two lines of a terminal for the status of a run, while whatever a script prints scrolls above them.

    make room, set the scrolling region above  ->  draw: save the cursor, write below, restore it  ->  give all back

Workers write to the same terminal from their own processes, under torchrun from those of a launcher that is not ours.
So no program can put their lines above the panel but the terminal itself: rich's Live, which moves back over what it
drew last, takes theirs away (26 of 60 lines on a real one, 2026-11-29). rich makes the lines, and cuts them to the
width; what matters most comes first.

A thread draws: a terminal that takes nothing (Ctrl-S) holds up nobody. One write for each drawing, so that lines of
others do not fall between its parts.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from elastic.events import words
from elastic.status.tracker import since

if TYPE_CHECKING:
    from rich.text import Text  # rich is loaded where something is drawn

_EVERY_S = 0.5
_LOOK_S = 0.1  # at the terminal's size
_ROWS_MIN = 8
_CLOSE_S = 1.0
_BAR = 16  # columns, at most
_EIGHTHS = " ▏▎▍▌▋▊▉"
_SAVE, _RESTORE, _WHOLE = "\x1b7", "\x1b8", "\x1b[r"  # the cursor's place, twice; the region
_LAST = "\x1b[999;1H"  # to the last line, whatever the size is
_LAST_TWO = _LAST + "\x1b[1A\x1b[J"  # to the one before, and all from there on cleared
_BACK = _SAVE + _WHOLE + _LAST_TWO + _RESTORE
# Gives the terminal back when its input ends, and so also after a SIGKILL of this process; it takes a megabyte.
_GUARD = ["/bin/sh", "-c", 'while read -r _; do :; done; printf %b "$0"', _BACK.replace("\x1b", "\\0033")]


def wanted(fd: int, environ: Mapping[str, str]) -> bool:
    """Return whether `fd` is a terminal that knows a scrolling region."""
    return os.isatty(fd) and environ.get("TERM", "dumb") not in ("dumb", "unknown", "")


class StatusTerminal:
    """Shows a status on the terminal that `fd` is."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._status: dict[str, Any] | None = None
        self._shape: os.terminal_size | None = None  # that the region is set for
        self._guard: subprocess.Popen[bytes] | None = None
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="elastic-status", daemon=True)
        self._thread.start()

    def show(self, status: dict[str, Any]) -> None:
        """Show this status from now on; before the first one nothing is shown."""
        self._status = status

    def close(self) -> None:
        """Give the terminal back as it was, with the cursor below what was printed."""
        self._ends.set()
        self._thread.join(timeout=_CLOSE_S)
        if self._guard is not None:
            assert self._guard.stdin is not None
            self._guard.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):  # where the terminal takes nothing, it does so later
                self._guard.wait(_CLOSE_S)

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # the terminal is gone
            due_s = 0.0
            while not self._ends.wait(_LOOK_S):
                size = os.get_terminal_size(self._fd)
                resized = size != self._shape  # until the region is set again, others print over the status
                if self._status is not None and (resized or time.monotonic() >= due_s) and size.lines >= _ROWS_MIN:
                    self._draw(self._status, size)
                    due_s = time.monotonic() + _EVERY_S

    def _draw(self, status: dict[str, Any], size: os.terminal_size) -> None:
        out = ""
        if self._shape != size:
            resized = "\x1b[J" if self._shape else ""  # what was drawn for the size before is below the cursor
            self._shape = size
            if self._guard is None:
                self._guard = subprocess.Popen(
                    _GUARD,
                    stdin=subprocess.PIPE,
                    stdout=self._fd,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,  # what is sent to a process group is not for it
                )
            # Setting a region puts the cursor into a corner: it is kept, two lines farther up.
            out = f"{resized}\n\n\x1b[2A{_SAVE}\x1b[1;{size.lines - 2}r{_RESTORE}"
        first, second = lines(status, time.time(), size.columns)
        out += _SAVE + _LAST_TWO + first + _LAST + second + _RESTORE
        os.write(self._fd, out.encode())


def lines(status: dict[str, Any], now_t: float, width: int) -> list[str]:
    """Return the status as lines with a terminal's codes for colour, each cut to the width.

    Args:
        status: As `tracker.py` gives it.
        now_t: Unix seconds.
        width: In columns.
    """
    from rich.console import Console

    console = Console(force_terminal=True, width=width, color_system="standard", highlight=False)
    cut = []
    for line in (_progress(status, width), _health(status, now_t)):
        line.truncate(max(width - 1, 1), overflow="ellipsis")
        with console.capture() as captured:
            console.print(line, end="", soft_wrap=True)
        cut.append(captured.get())
    return cut


def _progress(status: dict[str, Any], width: int) -> Text:
    """Return where the run is; the bar is as wide as what matters more leaves it, as the time that is left does."""
    from rich.text import Text

    step, total = status["step"], status["total_steps"]
    share = step / total if total else 1.0
    steps = Text.from_markup(f"[dim]step[/] [b]{step:,}[/] [dim]of {total:,}[/] ")
    after, rest = f" {words.percent(share)}", ""
    if status.get("value"):
        name, value = status["value"]
        after += f"  [dim]{_text(name)}[/] "
        after += f"[b]{words.number(value)}[/]" if value is not None else "[bold red]not finite[/]"
    if status.get("count_per_s"):
        left_s = (total - step) * status["step_s"]
        after += f"  {words.seconds(left_s)} [dim]left[/]" if left_s >= 1 else ""
        rest = f"  {status['count_per_s']:,.0f} [dim]examples/s[/]  {words.seconds(status['step_s'])} [dim]a step[/]"
    first = Text.from_markup(after)
    room = width - 2 - steps.cell_len - first.cell_len  # with an ellipsis behind it
    return Text.assemble(steps, (_bar(share, min(_BAR, max(room, 0))), "green"), first, Text.from_markup(rest))


def _health(status: dict[str, Any], now_t: float) -> Text:
    """Return how well the run goes."""
    from rich.text import Text

    parts = []
    if "world_size" in status:
        on = words.workers(status["world_size"], of_a_replica=status.get("of_a_replica", 1))
        parts += [f"[b]{on}[/]", f"[dim]view {status['generation']}[/]"]
        parts += [f"[dim]balance[/] {words.percent(status['balance'])}"]
    parts += [f"[dim]goodput[/] {words.percent(status['goodput'])}"]
    if failed := status.get("save_failed"):
        parts += [f"[bold red]saving step {failed['step']:,} failed {_ago(failed, now_t)}[/]"]
    if saved := status.get("saved"):
        parts += [f"[dim]saved step[/] {saved['step']:,}[dim], {_ago(saved, now_t)}[/]"]
    if passed := status.get("passed_over"):
        times = words.counted(passed["times"], "bad step")
        why = f"[dim], the last {_ago(passed, now_t)}: {_text(passed['why'])}[/]"
        parts += [f"[bold yellow]{times} passed over[/]{why}"]
    if fault := status.get("fault"):
        lost = f"[dim]lost[/] {status['lost']}{since(status)}[dim], the last[/] {_ago(fault, now_t)}"
        why = f"[dim]: {_text(fault['why'])}[/]" if fault["why"] else ""
        late = f"[dim], {words.seconds(fault['unnoticed_s'])} until it was noticed[/]"
        noticed = late if fault["unnoticed_s"] > 0.5 * fault["cost_s"] else ""
        parts += [f"{lost}, cost {words.seconds(fault['cost_s'])}{why}{noticed}"]
    if interval := status.get("save_interval"):
        parts += [f"[dim]saves[/] {_text(interval)}"]
    return Text.from_markup("  ".join(parts))


def _text(said: str) -> str:
    """Return what a run says as markup in which nothing of it steers rich or the terminal."""
    from rich.markup import escape

    return escape(words.printable(said).replace("\n", " "))


def _ago(what: dict[str, Any], now_t: float) -> str:
    return f"{words.seconds(float(max(0, round(now_t - what['t']))))} ago".replace(".0 ", " ").replace("0 ms", "0 s")


def _bar(share: float, width: int) -> str:
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + (_EIGHTHS[rest] if rest else "")).ljust(width, "·")
