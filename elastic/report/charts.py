"""What a report draws: who worked when, the world size and the recoveries over one axis of time; sums by step.

Each has a bounded number of points, however long the run was.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from elastic.events import words
from elastic.events.account import PARTS, Account
from elastic.events.event import Event
from elastic.pages import Figure, text_of
from elastic.report import sentences
from elastic.report.report import Report
from elastic.report.view_changes import ChangeKind, ViewChange, recoveries

_POINTS = 800
_LANES_MAX = 96
_BARS_MAX = 6000
_MARKS_MAX = 800
_OVERLAP_S = 0.1  # a process's start is known to hundredths; its predecessor's end, as its agent saw it
_UNITS = ((2 * 86400, 86400, "days"), (2 * 3600, 3600, "hours"), (120, 60, "minutes"), (0, 1, "seconds"))
_GAP = 35  # pixels between the rows of a figure
_DOTS: dict[str, Any] = {"mode": "markers", "marker": {"color": "--bad", "size": 8}}
_HOVER = {"hovertemplate": "%{hovertext}<extra></extra>"}
_LINE = {"mode": "lines", "line": {"shape": "hv", "color": "--line"}, "fill": "tozeroy", "fillcolor": "--band"}


class _Time:
    """Places moments on an axis of time, in units that suit its length."""

    def __init__(self, begin_t: float, end_t: float) -> None:
        self.begin_t, self.length_s = begin_t, end_t - begin_t
        self.unit_s, self.unit = next((unit_s, name) for least_s, unit_s, name in _UNITS if self.length_s >= least_s)

    def at(self, t: float) -> float:
        return round((t - self.begin_t) / self.unit_s, 4)


def over_time(found: Report, events: Sequence[Event], end_t: float) -> Figure:
    """Return who worked when, the world size and the recovery times, over one axis of time."""
    time = _Time(found.begun_t, end_t)
    accounts = found.ledger.workers.values()
    places = lanes(accounts)
    shown, hidden = places[:_LANES_MAX], len(places[_LANES_MAX:])
    recovered = _recovery_times(found.view_changes)
    traces = [*_bars(shown, time), *_saves(events, time), _world_size(found.view_changes, time, end_t)]
    died = sum(account.died for account in accounts)
    said = f"{len(accounts)} workers in {len(places)} places over {words.seconds(time.length_s)}; {died} died. "
    said += f"{max(found.world_sizes, default=0)} workers at most, in {len(found.view_changes)} views."
    note = f"{hidden} more places are not drawn. " if hidden else ""
    every = 1 if len(shown) <= 20 else 8
    numbers = {"range": [len(shown) + 0.6, -0.6], "tickvals": list(range(every, len(shown) + 1, every))}
    place = 22 if len(shown) <= 8 else 14 if len(shown) <= 20 else 7
    rows: list[tuple[str, int, dict[str, Any]]] = [
        ("place", len(shown) * place + 24, numbers),
        ("world size", 90, {"rangemode": "tozero", "tickformat": ",d", "nticks": 4}),
    ]
    if recovered:
        costs = [cost_s for _, cost_s, _ in recovered]
        decades = [math.floor(math.log10(min(costs))) - 0.15, math.ceil(math.log10(max(costs)) + 1e-9) + 0.05]
        rows.append(("recovery, s", 120, {"type": "log", "dtick": 1, "range": decades}))
        traces.append(_dots(recovered, time))
        said += f" {len(costs)} recoveries, of {words.seconds(min(costs))} to {words.seconds(max(costs))}."
        note += (
            "A recovery is the time from a fault, or the end of the launch before, to the next step. Where nobody saw "
            "the fault, from the last step before it. Its scale is logarithmic."
        )
    height = sum(row for _, row, _ in rows) + _GAP * (len(rows) - 1)
    title = {"text": f"{time.unit} since the first worker began"}
    layout: dict[str, Any] = {"bargap": 0.15, "barmode": "overlay"}
    layout["xaxis"] = {"title": title, "range": [0, time.at(end_t) or 1], "anchor": f"y{len(rows)}"}
    top = height
    for number, (name, row, axis) in enumerate(rows, 1):
        domain = [max(0.0, (top - row) / height), top / height]
        layout[f"yaxis{number}"] = {"title": {"text": name}, "domain": domain, **axis}
        top -= row + _GAP
    title_of_all = "Each bar is a place, held by one worker after another"
    return Figure(title=title_of_all, said=said, note=note, height=height + 100, traces=traces, layout=layout)


def lanes(accounts: Iterable[Account]) -> list[list[Account]]:
    """Return the accounts by place: who begins after another has ended goes on in its place."""
    found: list[list[Account]] = []
    for account in sorted(accounts, key=lambda one: one.begin_s):
        free = [lane for lane in found if lane[-1].end_s <= account.begin_s + _OVERLAP_S]
        if free:
            max(free, key=lambda lane: lane[-1].end_s).append(account)  # the place that was left last
        else:
            found.append([account])
    return found


def stretches(account: Account, least_s: float) -> Iterator[tuple[float, float, str]]:
    """Yield (begin, end, part) over an account's time; those shorter than `least_s` join their neighbours."""
    spent: dict[str, float] = Counter()  # type: ignore[assignment]
    begun_s = account.begin_s
    for begin_s, end_s, part in account.stretches:
        spent[part] += end_s - begin_s
        if end_s - begun_s >= least_s or end_s == account.end_s:
            yield begun_s, end_s, max(spent, key=lambda name: spent[name])
            spent.clear()
            begun_s = end_s


def _bars(places: Sequence[Sequence[Account]], time: _Time) -> Iterator[dict[str, Any]]:
    """Yield a trace for each part of the workers' time, and one for their deaths."""
    many = sum(len(account.stretches) for lane in places for account in lane) > _BARS_MAX
    least_s = time.length_s * len(places) / _BARS_MAX if many else 0.0  # so that there are no more bars
    bars: dict[str, list[tuple[float, float, int, str]]] = {part: [] for part in PARTS}
    died: list[tuple[float, int, str]] = []
    for number, lane in enumerate(places, 1):
        for account in lane:
            end = "died" if account.died else "ended"
            text = text_of(f"{account.worker}: {end} after {words.seconds(account.end_s - account.begin_s)}")
            if account.died:
                died.append((time.at(account.end_s), number, text))
            for begin_s, end_s, part in stretches(account, least_s):
                base = time.at(begin_s)
                bars[part].append((base, round(time.at(end_s) - base, 4), number, text))
    for part, those in bars.items():
        if those:
            bar: dict[str, Any] = dict(zip(("base", "x", "y", "hovertext"), zip(*those, strict=True), strict=True))
            name = "training" if part == "productive" else sentences.PART_WORDS[part][0]
            bar |= {"name": name, "marker": {"color": f"--{part}"}, "hovertemplate": "%{hovertext}"}
            yield {"type": "bar", "orientation": "h", **bar}
    if died:
        dots = dict(zip(("x", "y", "hovertext"), zip(*died[:_MARKS_MAX], strict=True), strict=True))
        yield {"name": "died", **_DOTS, **_HOVER, **dots}


def _saves(events: Sequence[Event], time: _Time) -> Iterator[dict[str, Any]]:
    """Yield marks of saves, and of failed ones, above the places; those that would lie on another are left out."""
    saved = [float(event["t"]) for event in events if event["event"] == "saved"]
    saved += [t for event in events if event["event"] == "folded" for t in event["saved_t"]]
    failed = [float(event["t"]) for event in events if event["event"] == "save_failed"]
    apart_s = max(time.length_s / _MARKS_MAX, 1e-3)
    for name, times, colour in (("saved", saved, "--text"), ("save failed", failed, "--bad")):
        at = [
            time.at(number * apart_s + time.begin_t)
            for number in sorted({round((t - time.begin_t) / apart_s) for t in times})
        ]
        marker = {"symbol": "line-ns-open", "size": 9, "color": colour}
        if at:
            yield {"mode": "markers", "x": at, "y": [0] * len(at), "name": name, "marker": marker, "hoverinfo": "name"}


def _world_size(changes: Sequence[ViewChange], time: _Time, end_t: float) -> dict[str, Any]:
    """Return the trace of the world size, which is 0 between launches."""
    points = [(change.formed_t, change.world_size) for change in changes]
    points += [(change.begun_t, 0) for change in changes if change.kind == ChangeKind.RESTART]
    points.sort()
    points += [(end_t, points[-1][1])] if points else []  # the last view goes on to the end
    x, y = [time.at(t) for t, _ in points], [size for _, size in points]
    hover = {"hovertemplate": "%{y} workers<extra></extra>", "showlegend": False}
    return {"x": x, "y": y, "yaxis": "y2", **_LINE, **hover}


def _recovery_times(changes: Sequence[ViewChange]) -> list[tuple[float, float, str]]:
    """Return (when it began, its seconds, in words) of each recovery and each restart."""
    found = [(one.begun_t, one.cost_s, "; ".join(map(sentences.sentence, one.losses))) for one in recoveries(changes)]
    for index, change in enumerate(changes):
        after = (one.trained_t for one in changes[index:] if one.launch == change.launch and one.trained_t is not None)
        if change.kind == ChangeKind.RESTART and (trained_t := next(after, None)) is not None:
            found.append((change.begun_t, trained_t - change.begun_t, sentences.sentence(change)))
    return [(begun_t, max(cost_s, 1e-3), text) for begun_t, cost_s, text in found]


def _dots(recovered: Sequence[tuple[float, float, str]], time: _Time) -> dict[str, Any]:
    points = [(time.at(t), round(cost_s, 3), text_of(text)) for t, cost_s, text in recovered[:_MARKS_MAX]]
    x, y, texts = zip(*points, strict=True)
    return {"x": x, "y": y, "yaxis": "y3", "hovertext": texts, "showlegend": False, **_DOTS, **_HOVER}


def by_step(name: str, curve: Mapping[int, float]) -> Figure:
    """Return what was summed by step, divided by the step's count, and marks where it is not finite."""
    finite = {step: value for step, value in curve.items() if math.isfinite(value)}
    broken = sorted(curve.keys() - finite.keys())
    x = thinned(finite, _POINTS)
    line = {"x": x, "y": [finite[step] for step in x], "mode": "lines", "line": {"color": "--line"}}
    x = broken[:: -(-len(broken) // _MARKS_MAX) or 1]
    marks = {"x": x, "y": [min(finite.values(), default=0.0)] * len(x), **_DOTS, "hovertext": "not finite", **_HOVER}
    last = curve[max(curve)]
    at_the_end = f"{words.number(last) if math.isfinite(last) else 'not finite'} at the end"
    return Figure(
        title=f"{name}: {at_the_end}",
        said=f"{name} by step, divided by the step's count: {at_the_end}.",
        note=_not_finite(broken, curve),
        height=200,
        traces=[line | {"hovertemplate": "step %{x:,d}: %{y:.4~g}<extra></extra>"}, marks],
        layout={"showlegend": False, "margin": {"b": 24}, "xaxis": {"tickformat": ",d"}},
    )


def thinned(curve: Mapping[int, float], most: int) -> list[int]:
    """Return at most so many of a curve's steps: of each stretch those of the least and of the greatest value."""
    steps = sorted(curve)
    width = max(1, -(-2 * len(steps) // most))
    parts = [steps[at : at + width] for at in range(0, len(steps), width)]
    return sorted({choose(part, key=lambda step: curve[step]) for part in parts for choose in (min, max)})


def _not_finite(broken: Sequence[int], curve: Mapping[int, float]) -> str:
    """Say in which steps a curve is not finite."""
    if not broken:
        return ""
    if len(broken) == sum(step >= broken[0] for step in curve):
        return f"not finite from step {broken[0]} on"
    return f"not finite in {len(broken):,} of {len(curve):,} steps, the first of which is {broken[0]}"
