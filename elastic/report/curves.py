"""What the steps of a run gave, as curves for people: its sums by step, and how long steps took. Pure.

Of every step the application that counts is taken; of steps that were folded there are some.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import median

from elastic.events.event import Event
from elastic.report.ledger import CountedSteps


def values_by_step(events: Iterable[Event], counting: CountedSteps) -> dict[str, dict[int, float]]:
    """Return name -> step -> what was summed, divided by the step's count."""
    curves: dict[str, dict[int, float]] = {}
    for event in events:
        if event["event"] == "step_applied":
            if "values" in event and counting.counts(event):
                _add(curves, event["step"], event["count"], event["values"])
        elif event["event"] == "folded":
            for step, count, values in event["curve"]:
                _add(curves, step, count, values)
    return {name: dict(sorted(curve.items())) for name, curve in sorted(curves.items(), key=_first_loss)}


def step_seconds(events: Iterable[Event]) -> tuple[float, float] | None:
    """Return the median time from a step to its worker's next one, and the 99th percentile; None: there are no two."""
    before: dict[str, tuple[int, int, float]] = {}
    took: list[float] = []
    for event in events:
        if event["event"] == "step_applied":
            at = event.get("generation") or 0, event["step"], float(event["t"])
            last = before.get(event["worker"])
            if last is not None and (last[0], last[1] + 1) == at[:2]:  # the very next step, in one view
                took.append(max(0.0, at[2] - last[2]))
            before[event["worker"]] = at
    if not took:
        return None
    took.sort()
    return median(took), took[min(len(took) - 1, len(took) * 99 // 100)]


def _first_loss(item: tuple[str, dict[int, float]]) -> tuple[bool, str]:
    """Return a key that sorts the loss before all other curves."""
    return item[0] != "loss", item[0]


def _add(curves: dict[str, dict[int, float]], step: int, count: int, values: dict[str, float | str]) -> None:
    """Add what a step summed, divided by its count; NaN where nothing was counted."""
    for name, value in values.items():
        curves.setdefault(name, {})[step] = float(value) / count if count else math.nan
