"""A run as one page of HTML, complete in itself, and of a sane size however long the run was.

What the charts show is there in words and tables, too.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from statistics import median

from elastic.events import words
from elastic.events.account import IN_STEPS_THAT_COUNT
from elastic.events.event import Event
from elastic.pages import render
from elastic.report import charts, sentences
from elastic.report.curves import values_by_step
from elastic.report.ledger import CountedSteps
from elastic.report.report import Report, report
from elastic.report.summary import facts, known_as_sums
from elastic.report.view_changes import ViewChange, recoveries

_CHANGES_MAX = 120  # beyond it, joins and leaves are counted
_FAULTS_MAX = 600
_GROUPS_MAX = 40
_CURVES_MAX = 4


def page(name: str, events: Sequence[Event], found: Report | None = None) -> str:
    """Return the page of a run.

    Args:
        name: The run's, as people may see it.
        events: Its records, in order.
        found: Their report, where there is one already.

    Raises:
        ValueError: There are no events.
    """
    found = found or report(events)
    end_t = max(float(events[-1]["t"]), *(account.end_s for account in found.ledger.workers.values()))
    return render(
        "report.html.j2",
        title=f"{name}: {found.state}",
        name=name,
        found=found,
        begun=_date(found.begun_t),
        newest=_date(found.last_t),
        lasted_s=end_t - found.begun_t,
        tiles=_tiles(found),
        failures=[f"{one.what} ({one.times} times)" if one.times > 1 else one.what for one in found.failures],
        known_as_sums=known_as_sums(found) if found.folded_steps or found.forgotten else "",
        passed_over=[sentences.passed(one) for one in found.passed_over],
        left_out=[sentences.example_left_out(one) for one in found.left_out],
        workers=charts.over_time(found, events, end_t),
        parts=list(_parts(found)),
        curves=[
            charts.by_step(*one) for one in list(values_by_step(events, CountedSteps(events)).items())[:_CURVES_MAX]
        ],
        losses=_losses(found.view_changes),
        changes=list(_changes(found)),
        facts=list(facts(found)),
    )


def _date(t: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(t))


def _tiles(found: Report) -> list[tuple[str, str, str]]:
    """Return (what it is, the figure, more about it) of each tile."""
    costs = [one.cost_s for one in recoveries(found.view_changes)]
    recovered = f"{words.seconds(median(costs))} to the next step, in the median" if costs else "no recovery"
    pace = f"{words.seconds(found.step_seconds)} each" if found.step_seconds is not None else "no pace known"
    stall = f"training stood still {words.seconds(found.save_stall_seconds)}"
    failed = f", {found.save_failures} failed" if found.save_failures else ""
    return [
        ("steps applied", f"{found.steps:,}", f"{found.redone:,} redone; {pace}"),
        ("goodput", words.percent(found.ledger.goodput), f"of {words.seconds(found.ledger.whole)} of workers’ time"),
        ("workers lost", f"{found.peers_lost:,}", recovered),
        ("saves", f"{found.saves:,}", stall + failed),
    ]


def _parts(found: Report) -> Iterator[tuple[str, str, float, float, str]]:
    """Yield (part, name, seconds, share, meaning) of what took any time."""
    for part, spent_s in found.ledger.parts.items():
        if spent_s > 0.0:
            name, meaning = sentences.PART_WORDS[part]
            counts = " — goodput" if part in IN_STEPS_THAT_COUNT else ""
            yield part, name, spent_s, spent_s / found.ledger.whole, meaning + counts


def _changes(found: Report) -> Iterator[tuple[str, str, str, str]]:
    """Yield (kind, when, step, what): of very many the first and the last."""
    shown = sentences.shown_of(found.view_changes, _CHANGES_MAX)
    if (more := len(shown) - _FAULTS_MAX) > 0:
        shown[_FAULTS_MAX // 2 : -_FAULTS_MAX // 2] = [f"… {more:,} more: --json lists all …"]
    for change in shown:
        if isinstance(change, ViewChange):
            step = "" if change.step is None else f"{change.step:,}"
            yield change.kind, f"+{words.seconds(change.begun_t - found.begun_t)}", step, sentences.sentence(change)
        else:
            yield "more", "", "", change


def _losses(changes: Sequence[ViewChange]) -> list[tuple[str, str, int]]:
    """Return (cause, host, workers lost), the rare ones as one."""
    found = sentences.losses_by_cause_and_host(changes)
    rest = sum(times for _, _, times in found[_GROUPS_MAX:])
    return [*found[:_GROUPS_MAX], *([("of other causes, on other hosts", "", rest)] if rest else [])]
