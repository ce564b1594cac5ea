"""Which examples of a run raised and were left out, and what they raised. Pure: events in, facts out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from elastic.events.event import Event
from elastic.report.ledger import Counting


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """An example that was left out of a step. index: in the dataset; error: what it raised, as it was recorded"""

    step: int
    epoch: int
    index: int
    error: str


def left_out(events: Iterable[Event], counting: Counting) -> tuple[LeftOut, ...]:
    """Of the steps that the run consists of, in order: what was read in the view that applied them."""
    found = {
        LeftOut(step=event["step"], epoch=event["epoch"], index=event["index"], error=event["error"])
        for event in events
        if counting.may_count(event)
    }
    return tuple(sorted(found, key=lambda one: (one.step, one.index)))
