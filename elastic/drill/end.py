"""What became of a launch, and of a drill with its last one; and is a launch followed by another one? Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from elastic.drill.judge.verdict import Verdict
from elastic.events.event import Event

if TYPE_CHECKING:
    from elastic.drill.faults.base import Fault
    from elastic.drill.plan.drill_plan import DrillPlan

_FAILED = 1  # the status of an agent whose run ended by an error


@dataclass(frozen=True)
class LaunchEnd:
    """The end of a launch: its exit status, and what it left on the machine.

    Attributes:
        exit_code: Of the launcher; negative: the signal that ended it.
        left_behind: Processes, shared memory and temporary files that outlived it, in words; empty where all is well.
    """

    exit_code: int
    left_behind: tuple[str, ...]


@dataclass(frozen=True)
class End:
    """The end of a drilled run: what it printed and recorded, and the verdict on that.

    Attributes:
        exit_code: Of the launcher; negative: the signal that ended it.
        output: What the last launch printed, both streams.
        events: Of all launches.
        verdict: The judge's, on all launches together; `print` shows it.
        left_behind: Processes, shared memory and temporary files that outlived it, in words; empty where all is well.
        not_reached: Faults of the plan whose moment never came, in words.
    """

    exit_code: int
    output: str
    events: Sequence[Event]
    verdict: Verdict
    left_behind: tuple[str, ...]
    not_reached: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Return whether all planned faults struck, all invariants hold, the exit status is 0, and nothing is left."""
        return self.verdict.ok and not (self.exit_code or self.left_behind or self.not_reached)

    @property
    def config(self) -> dict[str, Any]:
        """Return the configuration that the run recorded when it started; empty if it did not."""
        return next((dict(e["config"]) for e in self.events if e["event"] == "run_started"), {})

    @property
    def batch_size(self) -> int:
        """Return how many examples a step has."""
        return int(self.config["batch_size"])

    @property
    def world_sizes(self) -> list[int]:
        """Return the sizes of the views that were formed, in order."""
        return list(self.verdict.world_sizes)

    @property
    def examples_applied(self) -> Counter[int]:
        """Return how often each example, by its index, is in the state that survived."""
        return self.verdict.examples_applied

    @property
    def steps_redone(self) -> int:
        """Return how often a step was begun again after work on it was lost."""
        return self.verdict.redone

    @property
    def weights_sha256(self) -> str | None:
        """Return the SHA-256 of the model's final state; None if no worker finished."""
        return self.verdict.weights_sha256


def restart_reason(
    launched: Sequence[Event], plan: DrillPlan, code: int = 0, overdue: Container[str] = ()
) -> str | None:
    """Return why a launch that has ended must be followed by another one; None: it is over, as it should be or not.

    It "lost" everything, an agent was lost or all workers "left", or it "found" what a fault did.

    launched  its events
    code      of a launcher that had no reason to end so
    overdue   workers that were killed because they had not left in time
    """
    if any(event["event"] == "finished" for event in launched):
        return None
    struck = list(_struck(launched, plan))
    for why in ("lost", "left"):
        if any(fault.restarts == why for _, fault in struck):
            return why
    if _found(launched, plan):
        return "found"
    last: Sequence[str] = next(
        (event["workers"] for event in reversed(launched) if event["event"] == "view_formed"), ()
    )
    gone = {event["worker"] for event in launched if event["event"] == "left"}
    gone |= {worker for worker, fault in struck if fault.lost() != 0 or fault.leaves}
    has_left = any(worker in gone or worker in overdue for worker in last)
    return "left" if has_left and not code and any(fault.leaves for _, fault in struck) else None


def unexplained_status(codes: Mapping[int, int | None], launched: Sequence[Event], plan: DrillPlan) -> int:
    """Return the exit status of a launcher that had no reason to end so; 0: there is none.

    codes  of the launchers, by pid
    """
    agents = {event["worker"]: event["agent"] for event in launched if event["event"] == "placed"}
    hit: dict[int, list[Fault]] = defaultdict(list)
    several = False  # workers, whoever their agents are, were killed at once
    for worker, fault in _struck(launched, plan):
        hit[agents.get(worker, 0)].append(fault)
        several |= len(fault.ranks) > 1
    found = _found(launched, plan)
    for pid, code in codes.items():
        if code == _FAILED and found:
            continue
        taken = several or any(fault.lost() != 0 for fault in hit[pid])
        if code and not any(fault.excuses(code, taken=taken) for fault in hit[pid]):
            return code
    return 0


def _found(launched: Sequence[Event], plan: DrillPlan) -> bool:
    """Return whether a worker of that launch ended with an error that says what a fault has done in it."""
    errors = [str(event["error"]) for event in launched if event["event"] == "error"]
    return any(fault.finds(error) for _, fault in _struck(launched, plan) for error in errors)


def _struck(launched: Sequence[Event], plan: DrillPlan) -> Iterator[tuple[str, Fault]]:
    """Yield (worker, fault) for each fault that struck in the launch."""
    return ((event["worker"], plan.faults[event["index"]]) for event in launched if event["event"] == "fault")
