"""Was the same example read wherever it was read? Pure: from the digests that a drill notes beside the indices.

A step reads the same indices whoever computes it, and what is drawn at random inside `dataset[i]` is seeded from the
seed, the epoch and i. So one index at one step has one content, in the undisturbed run and in this one, the first time
and when it is done again. Where it has two, the dataset depends on something that elastic cannot give back. A step that
is filled from the next epoch (last_batch="carry") may read an index in both, with a content in each: it tells nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from elastic.drill.judge.surviving_steps import ViewKey, view_key
from elastic.drill.judge.verdict import Violation
from elastic.events.event import Event


@dataclass(frozen=True)
class Conflict:
    """One example that two reads brought in two versions, and the records of the reads."""

    step: int
    index: int
    contents: tuple[str, str]
    first: Event
    second: Event


def conflicts(events: Sequence[Event], reference: Sequence[Event] = ()) -> Iterator[Conflict]:
    """Yield each example that had another content before.

    reference  an undisturbed run's events, whose version counts as the first
    """
    known: dict[tuple[int, int], tuple[str, Event]] = {}
    runs = [[event for event in run if event["event"] == "reads"] for run in (reference, events)]
    twice = _read_twice(runs[0]) | _read_twice(runs[1])
    for event in (*runs[0], *runs[1]):
        for index, content in notes(event):
            if (event["step"], index) not in twice:
                was, first = known.setdefault((event["step"], index), (content, event))
                if was != content:
                    yield Conflict(event["step"], index, (was, content), first, event)


def _read_twice(reads: Sequence[Event]) -> set[tuple[int, int]]:
    """Return (step, index) of what two shares of one step read in one view."""
    seen: dict[tuple[ViewKey, int, int], tuple[str, int]] = {}
    return {
        (read["step"], index)
        for read in reads
        for index in read["indices"]
        if seen.setdefault((view_key(read), read["step"], index), (read["worker"], read["share"]))
        != (read["worker"], read["share"])
    }


def notes(read: Event) -> list[tuple[int, str]]:
    """Return (index, digest) for what one record read, without examples read twice or without a digest."""
    indices: list[int] = read["indices"]
    contents: list[Any] = read.get("contents") or []
    return [
        (index, content)
        for index, content in zip(indices, contents, strict=False)
        if content is not None and indices.count(index) == 1
    ]


def content(events: Sequence[Event], reference: Sequence[Event] | str | None) -> Iterator[Violation]:
    """Yield one violation, of the first conflict, if an example had two contents at one step."""
    found = list(conflicts(events, reference if reference is not None and not isinstance(reference, str) else ()))
    if found:
        one = found[0]
        steps = len({conflict.step for conflict in found})
        what = (
            f"example {one.index} of step {one.step} was not the same when it was read elsewhere or again; "
            f"so were {len(found)} reads in {steps} steps"
        )
        yield Violation("content", what, (one.first, one.second))
