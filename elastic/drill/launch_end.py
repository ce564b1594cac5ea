"""A launch of a drill's run has ended: did it end as it should, and is it followed by another one? Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence

from elastic.drill.faults.base import Fault
from elastic.drill.plan.drill_plan import DrillPlan
from elastic.events.event import Event

_FAILED = 1  # the status of an agent whose run ended by an error


def restart_reason(
    launched: Sequence[Event], plan: DrillPlan, code: int = 0, overdue: Container[str] = ()
) -> str | None:
    """Why a launch that has ended must be followed by another one: "lost" everything, or an agent was lost or all
    workers "left", or it "found" what a fault did; None: it is over, as it should be or not.

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
    """The exit status of a launcher that had no reason to end so; 0: there is none.

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
    """Whether a worker of that launch ended with an error that says what a fault has done in it."""
    errors = [str(event["error"]) for event in launched if event["event"] == "error"]
    return any(fault.finds(error) for _, fault in _struck(launched, plan) for error in errors)


def _struck(launched: Sequence[Event], plan: DrillPlan) -> Iterator[tuple[str, Fault]]:
    """(worker, fault) of those that struck in the launch."""
    return ((event["worker"], plan.faults[event["index"]]) for event in launched if event["event"] == "fault")
