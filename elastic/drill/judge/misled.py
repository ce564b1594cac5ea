"""What is a worker that a fault has misled no witness of, and was it named? Pure: from a run's events, and its faults.

Until the run finds that something is wrong in a worker, workers of a view need not agree: what they applied is thrown
away then. What survives is judged as ever.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from elastic.drill.judge.surviving_steps import SurvivingSteps, ViewKey, view_key
from elastic.drill.judge.verdict import Violation
from elastic.events.event import Event

_TELL = 3  # workers, of whom most may be right


class Fault(Protocol):
    """A fault of the plan, as far as it is asked here. See faults/base.py."""

    @property
    def misleads(self) -> bool: ...
    def finds(self, error: str) -> bool: ...
    def in_words(self) -> str: ...


@dataclass(frozen=True)
class Misled:
    """The worker of a view that a fault has misled in it first, and the time of the fault's record (unix seconds)."""

    worker: str
    at_s: float


def misled(events: Sequence[Event], faults: Sequence[Fault]) -> dict[ViewKey, Misled]:
    """Return the worker that is misled first in each view, by that view."""
    found: dict[ViewKey, Misled] = {}
    for event in events:
        if (fault := _fault(event, faults)) is not None and fault.misleads:
            found.setdefault(view_key(event), Misled(event["worker"], event["t"]))
    return found


def _fault(event: Event, faults: Sequence[Fault]) -> Fault | None:
    """Return the plan's fault that this event is of; an earlier launch of the run may have had another plan."""
    return faults[event["index"]] if event["event"] == "fault" and event["index"] < len(faults) else None


def sound_events(events: Sequence[Event], lineage: SurvivingSteps, known: Mapping[ViewKey, Misled]) -> Iterator[Event]:
    """Yield the events that are evidence, in views where a worker was misled: what it said before, and what others say.

    Without the others' records of a step that survives from another view.
    """
    for event in events:
        view, step = view_key(event), event.get("step")
        at = known.get(view)
        if at is None or event["t"] < at.at_s:
            yield event
        elif event["worker"] != at.worker:
            done = lineage.path.get(step) if step is not None else None
            if done is None or done.view == view:
                yield event


def unnamed(events: Sequence[Event], faults: Sequence[Fault]) -> Iterator[Violation]:
    """Yield violations for misleading faults that others found without naming worker and host, if two others agree."""
    errors = [event for event in events if event["event"] == "error"]
    for struck in events:
        fault = _fault(struck, faults)
        if fault is None or not fault.misleads or struck["world_size"] < _TELL:
            continue
        found = [one for one in errors if view_key(one) == view_key(struck) and fault.finds(str(one["error"]))]
        of_others = any(one["worker"] != struck["worker"] for one in found)
        if of_others and not any(f"rank {struck['rank']} (on " in str(one["error"]) for one in found):
            what = f"{fault.in_words()}: that was found, and rank {struck['rank']} and its host are not named"
            yield Violation("named", what, (struck, found[0]))
