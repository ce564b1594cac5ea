"""Which steps and examples of a run were passed over as bad, and why. Pure: events in, facts out."""

from __future__ import annotations

from dataclasses import dataclass

from elastic.report.ledger import Counting


@dataclass(frozen=True, kw_only=True)
class PassedOver:
    """Steps `first` to `step`, the bad one, whose examples were passed over. examples: some of them or all, by their
    numbers in the dataset; examples_count: how many they are, without those that were passed over before"""

    first: int
    step: int
    why: str
    examples: tuple[int, ...]
    examples_count: int


def passed_over(counting: Counting) -> tuple[PassedOver, ...]:
    """Of the steps that the run consists of; in order."""
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
