"""A run as one page of HTML, complete in itself: no script, and nothing that it asks the network for.

Light and dark as the reader's system has it, legible at a phone's width, and of a sane size however long the run was:
every chart has a fixed number of points. What the charts show is there in words and tables, too.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from html import escape
from statistics import median

from elastic.events import words
from elastic.events.account import IN_STEPS_THAT_COUNT, PARTS
from elastic.events.event import Event
from elastic.report import sentences
from elastic.report.charts import (
    Axis,
    Label,
    Lanes,
    figure,
    lanes_drawing,
    line_drawing,
    number_labels,
    round_seconds,
    steps_drawing,
    sticks_drawing,
    ticks_drawing,
    time_labels,
)
from elastic.report.curves import thinned, values_by_step
from elastic.report.ledger import Counting
from elastic.report.page_style import STYLE
from elastic.report.report import Completion, Report, report
from elastic.report.summary import facts, known_as_sums
from elastic.report.view_changes import ChangeKind, ViewChange, recoveries

_CHANGES_MAX = 120  # beyond it, joins and leaves are counted
_FAULTS_MAX = 600
_GROUPS_MAX = 40
_POINTS = 400
_CURVES_MAX = 4
_META = (
    '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    '<meta name="color-scheme" content="light dark"><meta http-equiv="Content-Security-Policy" '
    "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">"
)


def page(name: str, events: Sequence[Event], found: Report | None = None) -> str:
    """name: the run's, as people may see it; found: their report. Raises ValueError if there are no events."""
    found = found or report(events)
    accounts = list(found.ledger.workers.values())
    axis = Axis(found.begun_t, max(float(events[-1]["t"]), *(a.end_s for a in accounts)))
    saves = [float(event["t"]) for event in events if event["event"] == "saved"]
    saves += [t for event in events if event["event"] == "folded" for t in event["saved_t"]]
    failed = [float(event["t"]) for event in events if event["event"] == "save_failed"]
    parts = [
        _head(name, found, axis),
        _tiles(found),
        _failures(found),
        _listed("What was passed over", [sentences.passed(one) for one in found.passed_over]),
        _listed("What was left out", [sentences.example_left_out(one) for one in found.left_out]),
        "<section><h2>Workers over time</h2>",
        _workers(found, axis, saves, failed),
        _world_size(found.view_changes, axis),
        _recovery_times(found.view_changes, axis),
        "</section>",
        _ledger(found),
        _curves(events),
        _view_changes(found.view_changes, axis),
        _all_facts(found),
    ]
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head>{_META}'
        f'<link rel="icon" href="data:,"><title>{escape(name)}: {found.state}</title><style>{STYLE}</style></head>'
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


def _head(name: str, found: Report, axis: Axis) -> str:
    begun = _date(axis.low)
    newest = f", the last record of {_date(found.last_t)}" if found.state == Completion.UNFINISHED else ""
    state = "left in order, can go on" if found.state == Completion.LEFT else found.state
    odd = '<span class="state unfinished">NOT FINITE</span> ' if found.not_finite else ""
    return (
        f'<header><h1>{escape(name)}</h1><p>{odd}<span class="state {found.state}">{state}</span> '
        f"begun {begun}, {words.seconds(axis.high - axis.low)} from first to last{newest}</p></header>"
    )


def _date(t: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(t))


def _tiles(found: Report) -> str:
    costs = [one.cost_s for one in recoveries(found.view_changes)]
    recovered = f"{words.seconds(median(costs))} to the next step, in the median" if costs else "no recovery"
    pace = f"{words.seconds(found.step_seconds)} each" if found.step_seconds is not None else "no pace known"
    stall = f"training stood still {words.seconds(found.save_stall_seconds)}"
    failed = f", {found.save_failures} failed" if found.save_failures else ""
    tiles = [
        ("steps applied", f"{found.steps:,}", f"{found.redone:,} redone; {pace}"),
        ("goodput", words.percent(found.ledger.goodput), f"of {words.seconds(found.ledger.whole)} of workers’ time"),
        ("workers lost", f"{found.peers_lost:,}", recovered),
        ("saves", f"{found.saves:,}", stall + failed),
    ]
    drawn = "".join(
        f'<div><span class="label">{label}</span><strong>{value}</strong><span class="sub">{escape(sub)}</span></div>'
        for label, value, sub in tiles
    )
    return f'<section class="tiles" aria-label="At a glance">{drawn}</section>'


def _failures(found: Report) -> str:
    lines = [f"{f.what} ({f.times} times)" if f.times > 1 else f.what for f in found.failures]
    listed = "".join(f"<li><pre>{escape(line[:2000])}</pre></li>" for line in lines[:20])
    more = f"<li>and {len(lines) - 20} more</li>" if len(lines) > 20 else ""
    sums = f'<p class="known">{escape(known_as_sums(found))}</p>' if found.folded_steps or found.forgotten else ""
    failed = f'<section class="failures"><h2>What failed</h2><ul>{listed}{more}</ul></section>' if lines else ""
    return failed + sums


def _listed(title: str, lines: Sequence[str]) -> str:
    if not lines:
        return ""
    listed = "".join(f"<li>{escape(line[:2000])}</li>" for line in lines[:50])
    more = f"<li>and {len(lines) - 50} more</li>" if len(lines) > 50 else ""
    return f"<section><h2>{title}</h2><ul>{listed}{more}</ul></section>"


def _workers(found: Report, axis: Axis, saves: list[float], failed: list[float]) -> str:
    lanes = Lanes.of(found.ledger.workers.values())
    count = len(lanes.lanes)
    units, lane_px = 10 * count + 10, 22 if count <= 8 else 14 if count <= 20 else 8 if count <= 48 else 6
    drawing = '<g transform="translate(0 10)">' + lanes_drawing(lanes, axis) + "</g>"
    drawing += ticks_drawing(saves, axis, top=1, bottom=8, style="save")
    drawing += ticks_drawing(failed, axis, top=1, bottom=8, style="save failed")
    every = 1 if count <= 20 else 8
    rows = [Label(100 * (10 * i + 15) / units, str(i + 1)) for i in range(count) if (i + 1) % every == 0 or count <= 20]
    shown = [part for part in PARTS if any(s[2] == part for lane in lanes.lanes for a in lane for s in a.stretches)]
    keys = "".join(f'<span class="key"><i class="k-{part}"></i>{_shown_as(part)}</span>' for part in shown)
    keys += '<span class="key"><i class="k-save"></i>saved</span>' if saves else ""
    keys += '<span class="key"><i class="k-save failed"></i>save failed</span>' if failed else ""
    hidden = f" {lanes.hidden} more places are not drawn." if lanes.hidden else ""
    died = sum(account.died for account in found.ledger.workers.values())
    over = words.seconds(axis.high - axis.low)
    keys += '<span class="key"><i class="k-death"></i>died</span>' if died else ""
    said = f"{len(found.ledger.workers)} workers in {count} places over {over}; {died} died."
    note = f'<span class="keys">{keys}</span>{hidden}'
    title = "Each bar is a place, held by one worker after another"
    labels = time_labels(axis)
    return figure(title, drawing, height=lane_px * count + 12, units=units, said=said, x=labels, y=rows, note=note)


def _shown_as(part: str) -> str:
    return "training" if part == "productive" else sentences.PART_WORDS[part][0]


def _world_size(changes: Sequence[ViewChange], axis: Axis) -> str:
    points = [(change.formed_t, float(change.world_size)) for change in changes]
    points += [(change.begun_t, 0.0) for change in changes if change.kind == ChangeKind.RESTART]
    points.sort()
    most = max((value for _, value in points), default=1.0)
    y = Axis(0.0, most * 1.08)
    labels = [Label(100 - y.at(value) / 10, text) for value, text in number_labels(0.0, most) if value == int(value)]
    said = f"World size over time: {int(most)} workers at most, {len(changes)} views."
    drawing = steps_drawing(points, axis, y)
    return figure("World size", drawing, height=90, units=100, said=said, x=time_labels(axis), y=labels)


def _recovery_times(changes: Sequence[ViewChange], axis: Axis) -> str:
    sticks = [(r.begun_t, r.cost_s, "; ".join(map(sentences.sentence, r.losses))) for r in recoveries(changes)]
    for at, change in enumerate(changes):
        trained = (c.trained_t for c in changes[at:] if c.launch == change.launch and c.trained_t is not None)
        if change.kind == ChangeKind.RESTART and (trained_t := next(trained, None)) is not None:
            sticks.append((change.begun_t, trained_t - change.begun_t, sentences.sentence(change)))
    if not sticks:
        return ""
    least = max(min(cost for _, cost, _ in sticks), 1e-3)
    longest = max(least, *(cost for _, cost, _ in sticks))
    low, high = math.floor(math.log10(least)), math.ceil(math.log10(longest) + 1e-9)
    y = Axis(low - 0.15, high + 0.05)
    labels = [Label(100 - y.at(power) / 10, round_seconds(10.0**power)) for power in range(low, high + 1)]
    said = f"{len(sticks)} recoveries, of {words.seconds(least)} to {words.seconds(longest)}."
    note = (
        "From a fault, or the end of the launch before, to the next step. Where nobody saw the fault, from the last "
        "step before it. The scale is logarithmic."
    )
    drawing = sticks_drawing([(t, math.log10(max(cost, 1e-3)), text) for t, cost, text in sticks], axis, y)
    return figure(
        "Recovery times", drawing, height=120, units=100, said=said, x=time_labels(axis), y=labels[-6:], note=note
    )


def _ledger(found: Report) -> str:
    parts, whole = found.ledger.parts, found.ledger.whole or 1.0
    bar = rows = ""
    for part in PARTS:
        if parts[part] <= 0.0:
            continue
        share = parts[part] / whole
        name, meaning = sentences.PART_WORDS[part]
        bar += f'<i class="k-{part}" style="flex:{share:.5f}" title="{name} {words.percent(share)}"></i>'
        counts = " — goodput" if part in IN_STEPS_THAT_COUNT else ""
        rows += (
            f'<tr><th scope="row"><i class="k-{part}"></i>{name}</th><td>{words.seconds(parts[part])}</td>'
            f'<td>{words.percent(share)}</td><td class="wide">{escape(meaning)}{counts}</td></tr>'
        )
    total = f'<th scope="row">all</th><td>{words.seconds(whole)}</td><td>100 %</td><td class="wide"></td>'
    goodput, computed = words.percent(found.ledger.goodput), words.percent(found.ledger.computed)
    return (
        "<section><h2>Where the workers’ time went</h2>"
        f"<p>Goodput {goodput}: the share of all workers’ seconds that went into steps that count, their exchange "
        f"included; {computed} was computing.</p>"
        f'<div class="ledger" role="img" aria-label="The parts of the table below as one bar">{bar}</div>'
        '<div class="scroll"><table><thead><tr><th scope="col">part</th><th scope="col">worker time</th>'
        '<th scope="col">share</th><th scope="col" class="wide">meaning</th></tr></thead>'
        f'<tbody>{rows}<tr class="sum">{total}</tr></tbody></table></div>'
        "</section>"
    )


def _curves(events: Sequence[Event]) -> str:
    curves = values_by_step(events, Counting(events))
    drawn = [_curve(name, curve) for name, curve in list(curves.items())[:_CURVES_MAX]]
    if not drawn:
        return ""
    return f'<section><h2>By step, per example</h2><div class="curves">{"".join(drawn)}</div></section>'


def _curve(name: str, curve: Mapping[int, float]) -> str:
    points = thinned(curve, _POINTS)
    finite = [(float(p.step), p.value, p.least, p.greatest) for p in points if p.value is not None]
    broken = [p.step for p in points if p.value is None]
    low, high = min((p[2] for p in finite), default=0.0), max((p[3] for p in finite), default=1.0)
    pad = (high - low) * 0.05 or abs(high) * 0.05 or 1.0
    x, y = Axis(points[0].step, max(points[-1].step, points[0].step + 1)), Axis(low - pad, high + pad)
    across = [
        Label(x.at(value) / 10, text) for value, text in number_labels(x.low, x.high, most=5) if value == int(value)
    ]
    up = [Label(100 - y.at(value) / 10, text) for value, text in number_labels(low, high, most=4)]
    at_the_end = curve[max(curve)]
    last = words.number(at_the_end) if math.isfinite(at_the_end) else "not finite"
    said = f"{name} by step, divided by the step's count: {last} at the end."
    note = _not_finite(sorted(step for step, value in curve.items() if not math.isfinite(value)), curve)
    drawing = line_drawing(finite, x, y) + ticks_drawing(map(float, broken), x, top=0, bottom=100, style="save failed")
    return figure(f"{name}: {last} at the end", drawing, height=150, units=100, said=said, x=across, y=up, note=note)


def _not_finite(steps: Sequence[int], curve: Mapping[int, float]) -> str:
    """steps: where it is not."""
    if not steps:
        return ""
    if len(steps) == sum(step >= steps[0] for step in curve):
        return f"not finite from step {steps[0]} on"
    return f"not finite in {len(steps):,} of {len(curve):,} steps, the first of which is {steps[0]}"


def _view_changes(changes: Sequence[ViewChange], axis: Axis) -> str:
    shown = sentences.shown_of(changes, _CHANGES_MAX)
    rows = ""
    for index, change in enumerate(shown):
        if len(shown) > _FAULTS_MAX and _FAULTS_MAX // 2 <= index < len(shown) - _FAULTS_MAX // 2:
            more = f"… {len(shown) - _FAULTS_MAX:,} more: --json lists all …"
            rows += _row(more) if index == _FAULTS_MAX // 2 else ""
            continue
        if isinstance(change, int):
            rows += _row(f"… {words.counted(change, 'change')}: workers joined, or left in order")
            continue
        step = "" if change.step is None else f"{change.step:,}"
        rows += (
            f'<tr class="{change.kind}"><td>+{words.seconds(change.begun_t - axis.low)}</td><td>{step}</td>'
            f"<td>{escape(sentences.sentence(change))}</td></tr>"
        )
    return _losses(changes) + (
        '<section><h2>What happened</h2><div class="scroll"><table class="changes"><thead><tr><th scope="col">time</th>'
        '<th scope="col">step</th><th scope="col" class="text">what</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div></section>"
    )


def _row(text: str) -> str:
    """Of what is not listed."""
    return f'<tr class="more"><td></td><td></td><td>{text}</td></tr>'


def _losses(changes: Sequence[ViewChange]) -> str:
    found = sentences.losses_by_cause_and_host(changes)
    rows = "".join(
        f'<tr><td>{times:,}</td><td class="text">{escape(cause)}</td><td class="text">{escape(host)}</td></tr>'
        for cause, host, times in found[:_GROUPS_MAX]
    )
    rest = sum(times for _, _, times in found[_GROUPS_MAX:])
    rows += f'<tr><td>{rest:,}</td><td class="text">of other causes, on other hosts</td><td></td></tr>' if rest else ""
    return (
        '<section><h2>Losses by cause and host</h2><div class="scroll"><table class="losses"><thead><tr>'
        '<th scope="col">workers</th><th scope="col" class="text">cause</th><th scope="col" class="text">host</th>'
        f"</tr></thead><tbody>{rows}</tbody></table></div></section>"
        if found
        else ""
    )


def _all_facts(found: Report) -> str:
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts(found))
    return f"<section><h2>Facts</h2><dl>{rows}</dl></section>"
