"""All that is known when both runs of a drill have ended, and what it means for each promise. Values only.

The judge's invariants are many; people read of ten promises, each of which stands for some of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from elastic.drill.judge.verdict import Verdict, Violation
from elastic.drill.plan.drill_plan import DrillPlan
from elastic.drill.report.costs import Cost
from elastic.drill.report.diagnosis import Diagnosis
from elastic.events.event import Event

PROMISES: dict[str, frozenset[str]] = {
    "weights, optimizer and sums are those of the undisturbed run": frozenset(
        {"reference", "state", "repeat", "final"}
    ),
    "every example was applied exactly once in each epoch": frozenset(
        {"coverage", "batch", "shares", "record", "passed"}
    ),
    "an example is the same wherever and whenever it is read": frozenset({"content"}),
    "no step was applied twice, and none skipped": frozenset({"position", "lineage", "writer"}),
    "done again: only steps in flight, or not saved when all was lost": frozenset(
        {"redone", "restarted", "storage", "durable", "zombie"}
    ),
    "all workers of every view agreed on step and digest": frozenset({"view", "sides", "agreement", "named"}),
    "no worker was lost but those that were taken": frozenset({"lost"}),
    "every checkpoint that is listed verifies": frozenset({"checkpoint"}),
    "the run came to its end, each wait by its deadline": frozenset({"finished", "deadline"}),
    "no process, socket, thread, file or shared memory was left behind": frozenset({"left"}),
}


@dataclass(frozen=True, kw_only=True)
class Findings:
    """Holds all that is known at a drill's end.

    baseline, faulted   the verdicts on the run without faults and the one with them
    events       of both, in that order
    struck       what each fault cost, in the order in which they struck
    never        faults whose moment did not come, in words
    storage      what went wrong with storage, in words; empty where nothing was to
    checkpoints  how many were read to the last byte
    sizes        dataset length and batch size
    replay       the command that strikes the same faults again
    kept         where both runs lie; None: they are removed
    elsewhere    of what is kept, the storage of both runs, where that is not a folder of the drill's
    """

    plan: DrillPlan
    baseline: Verdict
    faulted: Verdict
    events: tuple[Sequence[Event], Sequence[Event]]
    struck: Sequence[Cost]
    never: Sequence[str]
    storage: str
    checkpoints: int
    sizes: tuple[int, int]
    exact: bool
    diagnoses: Sequence[Diagnosis]
    replay: str
    kept: Path | None
    seconds: float = field(default=0.0)
    elsewhere: str | None = None

    @property
    def broken(self) -> tuple[tuple[str, Violation], ...]:
        """Return (run, violation) of both runs."""
        baseline = (("without faults", one) for one in self.baseline.violations)
        return (*baseline, *(("with faults", one) for one in self.faulted.violations))

    @property
    def replaced(self) -> bool:
        """Return whether it was seen that somebody comes after a loss, wherever one was to."""
        sizes = self.faulted.world_sizes
        lost = any(cost.fault.lost() for cost in self.struck)
        # as many at the end as at first, or more in some view than in the one before
        return not lost or sizes[-1] >= sizes[0] or any(later > size for size, later in pairwise(sizes))

    @property
    def finished(self) -> bool:
        """Return whether the run with faults came to its end; before that no promise is kept."""
        return self.faulted.weights_sha256 is not None

    def of_promise(self, promise: str) -> list[tuple[str, Violation]]:
        """Return (run, violation) for each violation of this promise."""
        return [(run, one) for run, one in self.broken if one.invariant in PROMISES[promise]]

    @property
    def others(self) -> list[tuple[str, Violation]]:
        """Return violations of no promise's; there should be none."""
        known = frozenset().union(*PROMISES.values())
        return [(run, one) for run, one in self.broken if one.invariant not in known]
