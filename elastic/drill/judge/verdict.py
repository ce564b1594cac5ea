"""What the judge found: facts, and every broken invariant with the events that broke it. Values only."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from elastic.events.event import Event

EVIDENCE_SHOWN = 8  # events per violation in prose; the value holds all
FACT_CHARS_SHOWN = 80


@dataclass(frozen=True)
class Violation:
    """One invariant that does not hold, and the records that show it."""

    invariant: str
    message: str
    evidence: tuple[Event, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.invariant}: {self.message}"]
        lines += [f"  {_line(event)}" for event in self.evidence[:EVIDENCE_SHOWN]]
        if len(self.evidence) > EVIDENCE_SHOWN:
            lines.append(f"  … and {len(self.evidence) - EVIDENCE_SHOWN} more events")
        return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The judge's verdict on a run: its facts, and what it broke.

    steps             steps in the state that survived
    redone            times that a step was begun again after work on it was lost
    discarded         applied steps that a later load threw away
    world_sizes       of the views that were formed, in order
    examples_applied  example index -> how often it is in the surviving state, over all epochs
    weights_sha256    the final digest, None if no worker finished
    checkpoints       how many were read to the last byte
    passed_over       steps among these whose examples were passed over, and are not in examples_applied
    """

    violations: tuple[Violation, ...]
    steps: int = 0
    redone: int = 0
    discarded: int = 0
    world_sizes: tuple[int, ...] = ()
    examples_applied: Counter[int] = field(default_factory=Counter)
    weights_sha256: str | None = None
    checkpoints: int = 0
    passed_over: tuple[int, ...] = ()

    @property
    def ok(self) -> bool:
        """Return whether every invariant holds."""
        return not self.violations

    def broken(self) -> set[str]:
        """Return the names of the invariants that do not hold."""
        return {violation.invariant for violation in self.violations}

    def __str__(self) -> str:
        sizes = ", ".join(map(str, self.world_sizes))
        applied = self.examples_applied.total()
        facts = f"{self.steps} steps, {self.redone} redone, {applied} examples applied, world sizes {sizes}"
        facts += f", passed over steps {', '.join(map(str, self.passed_over))}" if self.passed_over else ""
        weights = f"weights {self.weights_sha256 or 'unfinished'}"
        if self.ok:
            return f"every invariant holds: {facts}\n{weights}"
        return "\n".join([f"{len(self.violations)} violations: {facts}", weights, *map(str, self.violations)])


def differing(values: Iterable[tuple[object, Event]]) -> tuple[Event, ...]:
    """Return one event for each distinct value; nothing where all values are equal."""
    first: dict[object, Event] = {}
    for value, event in values:
        first.setdefault(json.dumps(value, sort_keys=True), event)
    return tuple(first.values()) if len(first) > 1 else ()


def _line(event: Event) -> str:
    """Return an event as one line, each of its facts cut at FACT_CHARS_SHOWN."""
    facts = []
    for name, fact in event.items():
        text = fact if isinstance(fact, str) else json.dumps(fact)
        facts.append(f"{name}={text if len(text) <= FACT_CHARS_SHOWN else text[:FACT_CHARS_SHOWN] + '…'}")
    return " ".join(facts)
