"""Which examples a run left out since they raised, and which steps it passed over as bad? Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from elastic.events.event import Event
from elastic.report.ledger import CountedSteps


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """Names an example that was left out of a step, by its index in the dataset, with the error as it was recorded."""

    step: int
    epoch: int
    index: int
    error: str


@dataclass(frozen=True, kw_only=True)
class PassedOver:
    """Names steps `first` to `step`, the bad one, whose examples were passed over.

    Attributes:
        examples: Some of them or all, by their indices in the dataset.
        examples_count: How many they are, without those that were passed over before.
    """

    first: int
    step: int
    why: str
    examples: tuple[int, ...]
    examples_count: int


def left_out(events: Iterable[Event], counting: CountedSteps) -> tuple[LeftOut, ...]:
    """Return those of the steps that the run consists of, in order: as the view read them that applied the step."""
    found = {
        LeftOut(step=event["step"], epoch=event["epoch"], index=event["index"], error=event["error"])
        for event in events
        if counting.may_count(event)
    }
    return tuple(sorted(found, key=lambda one: (one.step, one.index)))


def passed_over(counting: CountedSteps) -> tuple[PassedOver, ...]:
    """Return those of the steps that the run consists of, in order."""
    records = {event["step"]: event for _, event in sorted(counting.passed_over.items())}
    return tuple(
        PassedOver(
            first=event["first"],
            step=step,
            why=event["why"],
            examples=tuple(event.get("examples", ())),
            examples_count=event.get("examples_count", 0),
        )
        for step, event in sorted(records.items())
    )
