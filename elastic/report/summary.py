"""A report for the terminal: what happened, what it cost, where the time went."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from elastic.events import words
from elastic.events.account import IN_STEPS_THAT_COUNT, PARTS
from elastic.report import sentences
from elastic.report.completion import Completion
from elastic.report.report import Report
from elastic.report.view_changes import ChangeKind

_CHANGES_MAX = 24
_BAR = 28
_CAUSES_MAX = 12
_HOSTS_MAX = 8
_PASSED_MAX = 12
_STATES = {
    Completion.FINISHED: "bold green",
    Completion.LEFT: "bold yellow",
    Completion.UNFINISHED: "bold red",
}


def summary(name: str, found: Report, *, now: float | None = None) -> RenderableType:
    """Return the report as rich prints it.

    Args:
        name: The run's, as people may see it.
        found: The report.
        now: Unix seconds; of a run that may be going on, it is said how old the last record is.
    """
    parts: list[RenderableType] = [
        _head(name, found, now),
        Text(),
        _facts(found),
        Text(),
        _view_changes(found),
        *_losses(found),
        Text(),
        _ledger(found),
    ]
    if found.passed_over:
        passed = [sentences.passed(one) for one in found.passed_over]
        parts += [Text(), _last_of("What was passed over", passed)]
    if found.left_out:
        parts += [Text(), _last_of("What was left out", [sentences.example_left_out(one) for one in found.left_out])]
    for failure in found.failures:
        times = f" ({failure.times} times)" if failure.times > 1 else ""
        parts += [Text(), Text(f"{words.printable(failure.what)}{times}", style="red")]
    if found.folded_steps or found.forgotten:
        parts += [Text(), Text(known_as_sums(found), style="yellow")]
    return Group(*parts)


def known_as_sums(found: Report) -> str:
    """Return what the log no longer says, because it is bounded."""
    lost = ", and some older losses and views are not told" if found.forgotten else ""
    return f"{found.folded_steps:,} older records of steps are kept as sums only: totals are right{lost}."


def facts(found: Report) -> Iterator[tuple[str, str]]:
    """Yield name and value of each fact, for people."""
    stall = words.seconds(found.save_stall_seconds)
    saves = f"{found.saves:,} of {words.size(found.saved_bytes)}, training stood still {stall}"
    redone = f", {found.redone:,} redone" if found.redone else ", none redone"
    if found.not_finite:
        yield "not finite", found.not_finite
    yield "steps", f"{found.steps:,} applied{redone}, epoch {found.epoch}"
    if found.passed_over:
        yield "passed over", sentences.passed_over(found.passed_over)
    if found.left_out:
        yield "left out", sentences.left_out(found.left_out)
    yield "time", words.seconds(found.seconds) + _between(found) + _pace(found)
    yield "goodput", f"{words.percent(found.ledger.goodput)} of {words.seconds(found.ledger.whole)} of workers' time"
    if found.last_values:
        shown = list(found.last_values.items())[:6]
        yield "last step", ", ".join(f"{k} {words.number(v) if v is not None else 'not finite'}" for k, v in shown)
    yield "world size", _sizes(found.world_sizes)
    if found.replicas != found.world_sizes:
        yield "replicas", _sizes(found.replicas)
    launches = sum(change.kind in (ChangeKind.START, ChangeKind.RESTART) for change in found.view_changes)
    again = f": begun once, started again {launches - 1} times" if launches > 2 else ": begun once, and once again"
    yield "starts", f"{launches}{again}" if launches > 1 else str(launches or found.claims)
    yield "lost", sentences.lost(found)
    if found.notices or found.hints:
        told = f"{words.workers(len(found.notices))} told to leave" if found.notices else "nobody told to leave"
        yield "notices", "; ".join((told, *(f"hint: {hint}" for hint in found.hints)))
    if found.cut_short:
        yield "cut short", "; ".join(found.cut_short)
    if (recovered := sentences.recovered(found.view_changes)) is not None:
        yield "recoveries", recovered
    yield "saves", saves + (f"; {found.save_failures} failed" if found.save_failures else "")
    if found.accepted:
        yield "accepted", f"{', '.join(found.accepted)} differed: the bits of the result may, too"
    if found.weights_sha256:
        yield "weights", found.weights_sha256


def _between(found: Report) -> str:
    """Return how much of the time lies between launches, where it is more than a tenth."""
    gone = _down_seconds(found)
    return f", {words.seconds(gone)} of it between launches" if gone > 0.1 * found.seconds else ""


def _down_seconds(found: Report) -> float:
    """Return the time from the last signs of launches to the first views of the next ones."""
    return math.fsum(
        change.formed_t - change.begun_t for change in found.view_changes if change.kind == ChangeKind.RESTART
    )


def _pace(found: Report) -> str:
    """Return how long steps took, and how many examples a second that was."""
    if found.step_seconds is None or found.step_seconds_p99 is None:
        return ""
    up_s = found.seconds - _down_seconds(found)
    rate = f", {found.counted / up_s:,.0f} examples/s" if up_s > 0 and found.counted else ""
    return (
        f"; a step {words.seconds(found.step_seconds)}, 99 of 100 within {words.seconds(found.step_seconds_p99)}{rate}"
    )


def _head(name: str, found: Report, now: float | None) -> Text:
    known = now is not None and found.state == Completion.UNFINISHED
    age = f", its last record {words.seconds(max(0.0, now - found.last_t))} old" if known and now is not None else ""
    odd = Text("NOT FINITE, " if found.not_finite else "", "bold red")
    return Text.assemble(odd, (str(found.state), _STATES[found.state]), f"  {words.printable(name)}{age}")


def _table(title: str, *, numbers: int = 0) -> Table:
    """Return a table of so many columns of numbers, and one of words."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), title=title, title_justify="left")
    for _ in range(numbers):
        table.add_column(justify="right")
    table.add_column(overflow="fold")
    return table


def _facts(found: Report) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in facts(found):
        table.add_row(name, Text(words.printable(value)))
    return table


def _sizes(sizes: tuple[int, ...]) -> str:
    shown = " → ".join(map(str, sizes[:16]))
    return shown if len(sizes) <= 16 else f"{shown} → … → {sizes[-1]} ({len(sizes)} views)"


def _view_changes(found: Report) -> Table:
    """Return a table of the view's changes; of very many the first and the last faults alone."""
    table = _table("What happened", numbers=2)
    changes = list(found.view_changes)
    faults = [change for change in changes if change.kind not in (ChangeKind.JOIN, ChangeKind.LEAVE)]
    cut = len(changes) > _CHANGES_MAX  # then the first and the last faults are shown
    shown = [*faults[: _CHANGES_MAX // 2], *faults[_CHANGES_MAX // 2 :][-_CHANGES_MAX // 2 :]] if cut else changes
    for index, change in enumerate(shown):
        if cut and index == _CHANGES_MAX // 2:
            hidden = f"{len(faults) - len(shown)} losses or restarts and {len(changes) - len(faults)} joins or leaves"
            table.add_row("", "", Text(f"… {hidden} are not shown: --json has them all …", style="dim"))
        style = "red" if change.kind in (ChangeKind.LOSS, ChangeKind.RESTART) else ""
        step = f"step {change.step}" if change.step is not None else ""
        said = Text(words.printable(sentences.sentence(change)), style=style)
        table.add_row(
            f"+{words.seconds(change.begun_t - found.begun_t)}",
            step,
            said,
        )
    return table


def _losses(found: Report) -> list[RenderableType]:
    """Return a table of the losses of a run that has too many to be listed one by one."""
    if len(found.view_changes) <= _CHANGES_MAX:
        return []
    table = _table("Losses by cause", numbers=1)
    of_cause: dict[str, list[str]] = {}
    workers: Counter[str] = Counter()
    for cause, host, times in sentences.losses_by_cause_and_host(found.view_changes):
        of_cause.setdefault(cause, []).append(f"{host} {times:,}")
        workers[cause] += times
    for cause, times in workers.most_common(_CAUSES_MAX):
        hosts = ", ".join(of_cause[cause][:_HOSTS_MAX]) + (", …" if len(of_cause[cause]) > _HOSTS_MAX else "")
        table.add_row(f"{times:,}", Text(words.printable(f"{cause}: {hosts}")))
    if rest := workers.total() - sum(times for _, times in workers.most_common(_CAUSES_MAX)):
        table.add_row(f"{rest:,}", Text("of other causes: --json has them all", style="dim"))
    return [Text(), table] if workers else []


def _last_of(title: str, lines: Sequence[str]) -> Table:
    """Return a table of the last lines, and how many there are before these."""
    table = _table(title)
    for line in lines[-_PASSED_MAX:]:
        table.add_row(Text(words.printable(line), style="yellow"))
    if (more := len(lines) - _PASSED_MAX) > 0:
        table.add_row(Text(f"… and {more} before these: --json lists all", style="dim"))
    return table


def _ledger(found: Report) -> Table:
    parts, whole = found.ledger.parts, found.ledger.whole
    table = Table(box=box.SIMPLE_HEAD, title="Where the workers' time went", title_justify="left", padding=(0, 1))
    for column, justify in (("part", "left"), ("time", "right"), ("share", "right"), ("", "left")):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    for part in PARTS:
        if parts[part] <= 0.0:
            continue
        share = parts[part] / whole
        style = "green" if part in IN_STEPS_THAT_COUNT else "yellow"
        bar = Text("█" * round(share * _BAR) or "▏", style=style)
        table.add_row(sentences.PART_WORDS[part][0], words.seconds(parts[part]), words.percent(share), bar)
    return table
