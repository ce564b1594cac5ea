"""What did each fault cost? Pure: from the events of a run, told by the workers.

A worker that is lost costs what the others had begun and do again, and the time until they complete a step in the view
that follows; losing all costs what was done since the last save as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from elastic.drill.faults import Fault, Hold, Join, KillChild, Slow
from elastic.drill.lineage import place_of
from elastic.observe.events import Event


@dataclass(frozen=True, kw_only=True)
class Cost:
    """
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


def costs(events: Sequence[Event], faults: Sequence[Fault]) -> list[Cost]:
    """In the order in which they struck."""
    begun = [event for event in events if event["event"] in ("reads", "step_applied")]
    return [_cost(event, faults[event["index"]], begun) for event in events if event["event"] == "fault"]


def _cost(struck: Event, fault: Fault, begun: Sequence[Event]) -> Cost:
    place = place_of(struck)
    later = [event for event in begun if event["t"] > struck["t"] and place_of(event) > place]
    if isinstance(fault, Slow | Hold) or (isinstance(fault, KillChild) and fault.of != "loader"):
        later = []  # nobody is lost, and whatever view follows is another fault's
    elif isinstance(fault, Join):  # the view that it brings is larger
        later = [event for event in later if event["world_size"] > struck.get("world_size", 0)]
    before = [event["step"] for event in begun if place_of(event) <= place]
    applied: Any = next((event for event in later if event["event"] == "step_applied"), None)
    first = min((event["step"] for event in later if place_of(event) == place_of(later[0])), default=None)
    redone = 0 if first is None or not before or isinstance(fault, Join) else max(0, max(before) - first + 1)
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
