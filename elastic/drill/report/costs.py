"""What did each fault cost? Pure: from the events that the workers of a run recorded.

A worker that is lost costs what the others had begun and do again, and the time until they complete a step in the view
that follows; losing all costs what was done since the last save as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf

from elastic.drill.faults.base import Aftermath, Fault
from elastic.drill.judge.surviving_steps import DONE, view_key
from elastic.events.event import Event


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Holds what one fault cost.

    at_s      when it struck, unix seconds
    step      that was in flight, or applied last (see At.step); None before the run had a step
    after_s   until the next step was complete in a later view; None: no view followed
    redone    steps that were begun again
    resumed   the first step that was done afterwards; None: none was
    workers   that did it
    """

    index: int
    fault: Fault
    at_s: float
    step: int | None
    phase: str
    after_s: float | None
    redone: int
    resumed: int | None
    workers: int

    @property
    def back_s(self) -> float:
        """Return when that step was complete, unix seconds; infinity if it never was."""
        return round(self.at_s + self.after_s, 6) if self.after_s is not None else inf


def costs(events: Sequence[Event], faults: Sequence[Fault]) -> list[Cost]:
    """Return the costs in the order in which they struck; of several with one recovery the last has its steps."""
    found = [_cost(event, faults[event["index"]], events) for event in events if event["event"] == "fault"]
    for at, (cost, later) in enumerate(pairwise(found)):
        if cost.redone and cost.resumed == later.resumed and later.redone and cost.back_s == later.back_s:
            found[at] = replace(cost, redone=0)  # both have one recovery
    return found


def _cost(struck: Event, fault: Fault, events: Sequence[Event]) -> Cost:
    """Return what one fault cost, by what was begun before it and what in later views."""
    begun = [event for event in events if event["event"] in ("reads", *DONE)]
    view = view_key(struck)
    before = [event["step"] for event in begun if view_key(event) <= view]
    later = [event for event in begun if event["t"] > struck["t"] and view_key(event) > view]
    aftermath = fault.aftermath()
    if aftermath is Aftermath.NO_LOSS:
        later = []
    elif aftermath is Aftermath.GROWTH:
        newcomers = _newcomers(struck, events)
        later = [event for event in later if event["worker"] in newcomers and view_key(event)[0] == view[0]]
    applied = next((event for event in later if event["event"] in DONE), None)
    first = min((event["step"] for event in later if view_key(event) == view_key(later[0])), default=None)
    grows = aftermath is Aftermath.GROWTH
    redone = 0 if first is None or not before or grows else max(0, max(before) - first + 1)
    return Cost(
        index=struck["index"],
        fault=fault,
        at_s=struck["t"],
        step=struck.get("step"),
        phase=struck.get("phase", fault.when.phase),
        after_s=applied["t"] - struck["t"] if applied is not None else None,
        redone=redone,
        resumed=first,
        workers=applied["world_size"] if applied is not None else 0,
    )


def _newcomers(struck: Event, events: Sequence[Event]) -> set[str]:
    """Return the workers of agents that came after the fault."""
    placed = [event for event in events if event["event"] == "placed"]
    known = {event["agent"] for event in placed if event["t"] < struck["t"]}
    return {event["worker"] for event in placed if event["agent"] not in known}
