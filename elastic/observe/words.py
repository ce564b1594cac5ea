"""How facts of a run are said to people, in the terminal and on the page: numbers with units, turns as sentences."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from statistics import median

from elastic.observe.turns import Turn

_UNPRINTABLE = ("Cc", "Cs")  # control characters, and halves of a surrogate pair

PART_WORDS = {
    "productive": ("computing", "computing steps that count, and the script's own code between steps"),
    "data_wait": ("waiting for data", "of steps that count: waiting for the loader"),
    "exchange_wait": ("exchange", "of steps that count: in collectives, the wait for slower workers included"),
    "save_stall": ("save stall", "training stood still for a save, or waited for the coordinator's"),
    "redone": ("redone or lost", "spent on steps that do not count: lost in flight, or taken back by a restart"),
    "detecting": ("detecting", "from a fault to a worker's knowing of it"),
    "forming": ("forming views", "waiting for a view and forming its group"),
    "transferring": ("transferring", "state on its way to those without it"),
    "loading": ("loading", "claiming the storage, reading or committing the first state"),
    "idle": ("idle", "below the minimum of nodes"),
    "starting": ("starting", "from the wish for a worker to its entry into the run: imports, set-up"),
    "unknown": ("unknown", "records that were removed to bound the log"),
}
"""part -> (a name, what it is)"""


def seconds(value: float) -> str:
    """Two or three digits that matter: 85 ms, 1.2 s, 34 s, 5 min 20 s, 3 h 12 min."""
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
    """Decimal: 1.5 kB, 20 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 99.5 else f"{value:.2g} {unit}"
        value /= 1000
    return f"{value:,.2f} TB" if value < 10 else f"{value:,.0f} TB"


def percent(share: float) -> str:
    """Never 100.0 % or 0.0 % for what is not all or nothing."""
    if share <= 0 or share >= 1:
        return f"{100 * share:.0f} %"
    return f"{min(max(100 * share, 0.1), 99.9):.1f} %"


def number(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 1e5 else f"{value:.3e}"


def workers(count: int) -> str:
    return f"{count} worker{'s' if count != 1 else ''}"


def printable(text: str) -> str:
    """Without what moves a terminal's cursor or changes its colours, and without what no encoding has."""
    return "".join(c if c in "\n\t" or unicodedata.category(c) not in _UNPRINTABLE else "�" for c in text)


def short(cause: str) -> str:
    """An exception by its class and first line."""
    line = re.sub(r"^(?:\w+\.)+(?=\w+(?::|$))", "", cause.strip().split("\n")[0])
    return line if len(line) <= 90 else f"{line[:89]}…"


def sentence(turn: Turn) -> str:
    """A turn, what it cost, and why."""
    on = f"{workers(turn.world_size)}"
    cost = turn.cost_s
    match turn.kind:
        case "start":
            return f"{on} begin" + (f" at step {turn.step}" if turn.step else "")
        case "restart":
            after = f", {seconds(cost)} after the last sign of the launch before" if cost is not None else ""
            return f"started again: {on} go on from step {turn.step}{after}"
        case "loss":
            who = ", ".join(f"{worker} ({short(cause)})" if cause else worker for worker, cause in turn.lost.items())
            told = f"lost {who}: " if len(turn.lost) <= 3 else f"lost {workers(len(turn.lost))}: "
            went = (
                f"{on} trained again {seconds(cost)} later"
                if cost is not None
                else f"{on} formed a view, no step followed"
            )
            joined = f", {turn.joined} of them new" if turn.joined else ""
            redone = f", {turn.redone} step{'s' if turn.redone != 1 else ''} redone" if turn.redone else ""
            return told + went + joined + redone
        case "broken":
            return f"a collective failed, and nobody was lost: {on} go on" + _paused(turn)
        case "leave":
            return f"{workers(turn.left)} left: {on} go on" + _paused(turn)
        case _:
            left = f", {turn.left} left" if turn.left else ""
            return f"{turn.joined} joined{left}: {on} go on" + _paused(turn)


def _paused(turn: Turn) -> str:
    state = f", {size(turn.transfer_bytes)} of state passed on" if turn.transfer_bytes else ""
    return f", {seconds(turn.cost_s)} from step to step{state}" if turn.cost_s is not None else state


def recoveries(turns: Sequence[Turn]) -> str | None:
    """All losses in one line; None: there were none."""
    costs = [turn.cost_s for turn in turns if turn.kind == "loss" and turn.cost_s is not None]
    if not costs:
        return None
    spread = f"median {seconds(median(costs))}, longest {seconds(max(costs))}" if len(costs) > 1 else seconds(costs[0])
    return f"{len(costs)}, from the fault to the next step: {spread}"
