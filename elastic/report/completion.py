"""How far did a run come? Pure: its events in, one of three words out, the same for whoever shows it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum

from elastic.events.event import Event
from elastic.report.views import views


class Completion(str, Enum):
    """Says how far a run came.

    FINISHED    all steps are done
    LEFT        all of the last view have left in order: the run can go on
    UNFINISHED  it may be going on
    """

    FINISHED, LEFT, UNFINISHED = "finished", "left", "unfinished"

    __str__ = str.__str__


def completion(events: Sequence[Event]) -> Completion:
    """Return how far a run came, by the records of its newest launch."""
    newest = max((event.get("claim") or 0 for event in events), default=0)
    ended: dict[str, list[Event]] = {"finished": [], "left": []}
    for event in events:
        if event["event"] in ended and (event.get("claim") or 0) == newest:
            ended[event["event"]].append(event)
    if ended["finished"]:
        return Completion.FINISHED
    departed = {event["worker"] for event in ended["left"]}
    members = next((view.workers for view in reversed(views(events))), ())
    if departed and (departed.issuperset(members) or _departed_for_all(events, ended["left"], newest)):
        return Completion.LEFT
    return Completion.UNFINISHED


def _departed_for_all(events: Iterable[Event], departed: Iterable[Event], newest: int) -> bool:
    """Return whether one who left did so for all."""
    # Under torchrun all leave or nobody does. Where the coordinator is lost in its last save, another one claims the
    # run to save in its place; what others tell is of the claim before.
    claimed = (event for event in events if event["event"] == "claimed")
    saved_it = {event["worker"] for event in claimed if event.get("claim") == newest and not event.get("generation")}
    return any(event["worker"] in saved_it and not event.get("generation") for event in departed)
