"""Which exit status of a drill's launchers is a failure, and after which end is the run started again?"""

from __future__ import annotations

import signal

from elastic.drill.end import restart_reason, unexplained_status
from elastic.drill.faults import At, Fault, Kill, KillAgent, KillAll, LeaveNode, Slow, Stop, Terminate
from elastic.drill.plan.drill_plan import DrillPlan
from elastic.events.event import Event

NOW = At(5, "applied", later=True)
PLACED: list[Event] = [{"event": "placed", "worker": f"w{at}", "agent": 100 + at // 2} for at in range(4)]


def status(codes: dict[int, int | None], *struck: tuple[str, Fault]) -> int:
    """struck: whom, by what"""
    plan = DrillPlan(workers=4, nodes=2, faults=tuple(fault for _, fault in struck))
    faults: list[Event] = [{"event": "fault", "worker": who, "index": at} for at, (who, _) in enumerate(struck)]
    return unexplained_status(codes, PLACED + faults, plan)


def test_an_agent_that_was_killed_is_no_failure_and_another_one_is() -> None:
    assert status({100: -signal.SIGKILL, 101: 0}, ("w1", KillAgent(1, NOW))) == 0
    assert status({100: 0, 101: -signal.SIGKILL}, ("w1", KillAgent(1, NOW))) == -signal.SIGKILL
    assert status({100: -signal.SIGKILL, 101: 1}, ("w1", KillAgent(1, NOW))) == 1


def test_an_agent_that_leaves_may_say_that_a_worker_of_its_node_was_taken() -> None:
    """It was stopped on its way to the boundary. (Random drill 125.)"""
    leaves, stops = ("w1", LeaveNode(1, NOW)), ("w0", Stop(0, NOW))
    assert status({100: 1, 101: 0}, leaves, stops) == 0
    assert status({100: 1, 101: 0}, leaves) == 1
    assert status({100: 0, 101: 1}, leaves, stops) == 1
    assert status({100: 1, 101: 0}, leaves, ("w2", Kill(2, NOW))) == 1


def again(
    *events: Event, struck: Fault, code: int = 0, overdue: tuple[str, ...] = (), beside: Fault | None = None
) -> str | None:
    plan = DrillPlan(workers=4, nodes=2, faults=(struck,) if beside is None else (struck, beside))
    begun: list[Event] = [
        {"event": "view_formed", "worker": "w0", "workers": ["w0", "w1"]},
        {"event": "fault", "worker": "w1", "index": 0},
    ]
    return restart_reason([*begun, *events], plan, code, overdue)


ALONE: Event = {"event": "view_formed", "worker": "w0", "workers": ["w0"]}


def test_a_run_is_started_again_where_a_fault_ended_it() -> None:
    assert again(struck=KillAll(NOW)) == "lost"
    assert again(struck=KillAgent(1, NOW), code=1) == "left"
    assert again(struck=Terminate(1, NOW)) == "left"
    assert again(ALONE, struck=Terminate(1, NOW), overdue=("w0",)) == "left"
    assert again({"event": "finished", "worker": "w0"}, struck=KillAll(NOW)) is None


def test_a_run_that_failed_is_not_started_again_because_somebody_had_left_before() -> None:
    """Launched once more, it finished, and nothing was said of the failure."""
    assert again(struck=Terminate(1, NOW), code=1) is None
    assert again(struck=LeaveNode(1, NOW), code=1) is None


def test_nor_is_one_that_ended_though_those_who_were_there_had_no_reason_to() -> None:
    assert again(ALONE, struck=Terminate(1, NOW)) is None
    slowed: Event = {"event": "fault", "worker": "w0", "index": 1}
    assert again(slowed, ALONE, struck=Terminate(1, NOW), beside=Slow(0, NOW)) is None
    assert again(ALONE, {"event": "left", "worker": "w0"}, struck=Terminate(1, NOW)) == "left"
