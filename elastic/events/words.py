"""How numbers and causes are said to people, in a worker's lines, on a terminal and in a report: with their units."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

_UNPRINTABLE = ("Cc", "Cs")  # control characters, and halves of a surrogate pair


def counted(number: int, what: str) -> str:
    """Write a number of things: 1 worker, 2 workers."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def seconds(value: float) -> str:
    """Write two or three digits that matter: 85 ms, 1.2 s, 34 s, 5 min 20 s, 3 h 12 min."""
    if value == 0:
        return "0 s"
    if value < 0.9995:
        return f"{1e3 * value:.0f} ms" if value >= 0.0005 else f"{1e3 * value:.1f} ms"
    if value < 9.95:
        return f"{value:.1f} s"
    if value < 119.5:
        return f"{value:.0f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{hours // 24} d {hours % 24} h"


def size(value: float) -> str:
    """Write bytes with decimal units: 1.5 kB, 20 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 99.5 else f"{value:.2g} {unit}"
        value /= 1000
    return f"{value:,.2f} TB" if value < 10 else f"{value:,.0f} TB"


def percent(share: float) -> str:
    """Write a share as a percentage, never 100.0 % or 0.0 % for what is not all or nothing."""
    if share <= 0 or share >= 1:
        return f"{100 * share:.0f} %"
    return f"{min(max(100 * share, 0.1), 99.9):.1f} %"


def number(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 1e5 else f"{value:.3e}"


def workers(count: int, *, of_a_replica: int = 1) -> str:
    """Write a number of workers, and in how many replicas they are, where these have several."""
    replicas = f" in {counted(count // of_a_replica, 'replica')}" if of_a_replica > 1 else ""
    return f"{counted(count, 'worker')}{replicas}"


def replicas_by_number(numbers: Iterable[int]) -> str:
    """Write which replicas of a view: replica 1, replicas 0, 2."""
    said = sorted(set(numbers))
    return f"replica{'s' if len(said) > 1 else ''} {', '.join(map(str, said))}"


WITH_ITS_REPLICA = "it ended with its replica"
"""The cause of a worker's end, where another one of its replica had ended before."""


def printable(text: str) -> str:
    """Replace what moves a terminal's cursor or changes its colours, and what no encoding has."""
    return "".join(c if c in "\n\t" or unicodedata.category(c) not in _UNPRINTABLE else "�" for c in text)


def short_cause(cause: str) -> str:
    """Shorten an exception to its class and first line."""
    line = re.sub(r"^(?:\w+\.)+(?=\w+(?::|$))", "", cause.strip().split("\n")[0])
    return line if len(line) <= 90 else f"{line[:89]}…"
