"""The status of a run as two lines for a terminal. Pure: a status, the time and a width in; lines out.

The status is tracker.py's. Lines are made with rich and cut to the width; what matters most comes first.
"""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console
from rich.text import Text

from elastic.events import words
from elastic.status.tracker import since

_BAR = 16  # columns, at most
_EIGHTHS = " ▏▎▍▌▋▊▉"


def lines(status: dict[str, Any], now_t: float, width: int) -> list[str]:
    """With the terminal's codes for colour. now_t: unix seconds"""
    return [_coded(line, width) for line in (_progress(status, width), _health(status, now_t))]


def _progress(status: dict[str, Any], width: int) -> Text:
    """The bar is as wide as what matters more leaves it: the time that is left is the first that people look for."""
    step, total = status["step"], status["total_steps"]
    share = step / total if total else 1.0
    steps = Text.assemble(("step ", "dim"), (f"{step:,}", "bold"), (f" of {total:,} ", "dim"))
    parts: list[str | tuple[str, str]] = [f" {words.percent(share)}"]
    rest: list[str | tuple[str, str]] = []
    if status.get("value"):
        name, value = status["value"]
        shown = (words.number(value), "bold") if value is not None else ("not finite", "bold red")
        parts += [(f"  {name} ", "dim"), shown]
    if status.get("count_per_s"):
        left_s = (total - step) * status["step_s"]
        parts += [("  ", ""), f"{words.seconds(left_s)}", (" left", "dim")] if left_s >= 1 else []
        rest += [("  ", ""), f"{status['count_per_s']:,.0f}", (" examples/s", "dim")]
        rest += ["  ", f"{words.seconds(status['step_s'])}", (" a step", "dim")]
    first = Text.assemble(*parts)
    room = width - 2 - steps.cell_len - first.cell_len  # with an ellipsis behind it
    bar = _bar(share, min(_BAR, max(room, 0)))
    return Text.assemble(steps, (bar, "green"), first, *rest)


def _health(status: dict[str, Any], now_t: float) -> Text:
    parts: list[str | tuple[str, str]] = []
    if "world_size" in status:
        parts += [(words.workers(status["world_size"]), "bold"), (f"  view {status['generation']}", "dim")]
        parts += [("  balance ", "dim"), words.percent(status["balance"])]
    parts += [("  goodput ", "dim"), words.percent(status["goodput"])]
    if failed := status.get("save_failed"):
        parts += [(f"  saving step {failed['step']:,} failed {_ago(failed, now_t)}", "bold red")]
    if saved := status.get("saved"):
        parts += [("  saved step ", "dim"), f"{saved['step']:,}", (f", {_ago(saved, now_t)}", "dim")]
    if passed := status.get("passed_over"):
        times = f"  {passed['times']:,} bad step{'s' * (passed['times'] > 1)} passed over"
        parts += [(times, "bold yellow"), (f", the last {_ago(passed, now_t)}: {passed['why']}", "dim")]
    if fault := status.get("fault"):
        why = f": {fault['why']}" if fault["why"] else ""
        parts += [("  lost ", "dim"), f"{status['lost']}{since(status)}", (", the last ", "dim"), _ago(fault, now_t)]
        parts += [f", cost {words.seconds(fault['cost_s'])}", (why, "dim")]
        if fault["unnoticed_s"] > 0.5 * fault["cost_s"]:
            parts += [(f", {words.seconds(fault['unnoticed_s'])} until it was noticed", "dim")]
    if interval := status.get("save_interval"):
        parts += [("  saves ", "dim"), interval]
    return Text.assemble(*parts)


def _ago(what: dict[str, Any], now_t: float) -> str:
    return f"{words.seconds(float(max(0, round(now_t - what['t']))))} ago".replace(".0 ", " ").replace("0 ms", "0 s")


def _bar(share: float, width: int) -> str:
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + (_EIGHTHS[rest] if rest else "")).ljust(width, "·")


def _coded(line: Text, width: int) -> str:
    line.truncate(max(width - 1, 1), overflow="ellipsis")
    console = Console(file=io.StringIO(), force_terminal=True, width=width, color_system="standard", highlight=False)
    with console.capture() as captured:
        console.print(line, end="", soft_wrap=True)
    return captured.get()
