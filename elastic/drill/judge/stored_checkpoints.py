"""Does storage hold what training had? Pure: what the judge asks of the checkpoints that the run could go on from.

The digests are of what was really read there, and not of what the run says that it saved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from elastic.drill.judge.grouping import grouped
from elastic.drill.judge.verdict import Violation
from elastic.events.event import Event


@dataclass(frozen=True)
class StoredCheckpoint:
    """One checkpoint, read to the last byte.

    claim, step  that its name says
    wrong        what is damaged; None: it is whole
    digest       SHA-256 of the models' state in it, as `weights` events have it; None where it is damaged
    """

    name: str
    claim: int
    step: int
    wrong: str | None = None
    digest: str | None = None


def storage_holds(
    checkpoints: Sequence[StoredCheckpoint], of_kind: Mapping[str, Sequence[Event]], *, may_fall_back: bool
) -> Iterator[Violation]:
    """Yield a violation for each checkpoint that is damaged or holds other weights, and for an end that is not saved.

    checkpoints  newest first
    """
    for one in checkpoints:
        if one.wrong is not None:
            yield Violation("checkpoint", f"{one.name}: {one.wrong}")
    yield from _of_their_steps(checkpoints, [*of_kind["weights"], *of_kind["changed"]])
    finished = of_kind["finished"][-1:]
    newest = checkpoints[0].step if checkpoints else None
    if finished and (newest is None or newest < finished[0]["step"]) and not may_fall_back:
        what = "there is no checkpoint" if newest is None else f"the newest checkpoint is of step {newest}"
        yield Violation("durable", f"the run finished with {finished[0]['step']} steps, and {what}", tuple(finished))


def _of_their_steps(checkpoints: Sequence[StoredCheckpoint], weights: Sequence[Event]) -> Iterator[Violation]:
    """Yield a violation for each checkpoint with other weights than training had after its steps."""
    after = grouped(weights, lambda event: int(event["step"]) + 1)  # steps applied -> what they came to, wherever
    for one in checkpoints:
        there = [event for event in after[one.step] if (event.get("claim") or 0) <= one.claim]
        if one.digest is None or not there or one.digest in {event["digest"] for event in there}:
            continue
        others = sorted({event["step"] + 1 for event in weights if event["digest"] == one.digest})
        holds = f"those after {others[0]}" if others else "others"
        what = f"{one.name} says that it holds the weights after {one.step} steps, and holds {holds}"
        yield Violation("state", what, (there[0],))
