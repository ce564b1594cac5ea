"""Who is at fault when nothing moves? One that hangs, or the place where all stand. And what the hub makes of it."""

from __future__ import annotations

import math
from collections.abc import Collection

import pytest

from elastic.membership.messages.messages import as_message
from elastic.membership.progress import LIMITED, Phase
from elastic.membership.stalls import ALONE, STORAGE, Hung, PhaseOfStep, Sighting, Stall, judge
from tests.kit.stage import Stage, trains

LIMIT_S, STALL_S = 30.0, 600.0


def at(
    worker: str, phase: Phase, quiet_s: float, *, step: int = 7, sign: int = 3, limit_s: float = LIMIT_S
) -> Sighting:
    limit_s = math.inf if phase == Phase.WAITING else limit_s
    return Sighting(worker=worker, phase=phase, step=step, sign=sign, quiet_s=quiet_s, limit_s=limit_s)


def judged(*seen: Sighting, silent: int = 0, killed_at: Collection[PhaseOfStep] = ()) -> Hung | Stall | None:
    sightings: dict[str, Sighting | None] = {one.worker: one for one in seen}
    sightings |= {f"silent{number}": None for number in range(silent)}
    return judge(sightings, killed_at=killed_at, stall_s=STALL_S)


@pytest.mark.parametrize("phase", LIMITED)
def test_one_for_whom_all_others_wait_is_at_fault(phase: Phase) -> None:
    found = judged(at("a", Phase.WAITING, 40), at("b", phase, 31), at("c", Phase.WAITING, 29))
    assert isinstance(found, Hung)
    assert found.sighting.worker == "b"


@pytest.mark.parametrize("phase", LIMITED)
def test_where_all_stand_at_one_place_nobody_is_at_fault(phase: Phase) -> None:
    """Whoever does not stand there waits for those who do, and proves nothing."""
    for waiting in (0, 1):
        found = judged(at("a", phase, 31), at("b", phase, 28), *[at("c", Phase.WAITING, 28)] * waiting)
        assert isinstance(found, Stall)
        assert (found.workers, found.waiting) == (("a", "b"), waiting)


def test_one_that_goes_on_where_another_stands_shows_that_the_other_hangs() -> None:
    for goes_on in (at("b", Phase.READING, 3), at("b", Phase.COMPUTING, 3), at("b", Phase.READING, 29, step=8)):
        assert judged(at("a", Phase.READING, 31), goes_on) == Hung(at("a", Phase.READING, 31))
    assert judged(at("a", Phase.READING, 31), silent=1) == Hung(at("a", Phase.READING, 31)), (
        "its node has nothing to report"
    )


@pytest.mark.parametrize("phase", STORAGE)
def test_whoever_takes_over_from_one_that_was_killed_at_its_storage_is_not_killed_there_as_well(phase: Phase) -> None:
    """The second kill at one step ended the run, while an NFS server was away for a minute."""
    seen = at("a", Phase.WAITING, 40), at("b", phase, 31)
    assert isinstance(judged(*seen), Hung)
    assert isinstance(judged(*seen, killed_at=[(phase, 7)]), Stall)
    assert isinstance(judged(*seen, killed_at=[(phase, 6)]), Hung)


def test_a_lone_worker_at_its_storage_is_waited_for_a_while_since_it_alone_holds_the_state() -> None:
    assert isinstance(judged(at("a", Phase.READING, LIMIT_S * ALONE)), Stall)
    assert isinstance(judged(at("a", Phase.READING, LIMIT_S * ALONE + 1)), Hung)
    assert isinstance(judged(at("a", Phase.COMPUTING, 31)), Hung)
    assert isinstance(judged(at("a", Phase.READING, 31), silent=1), Hung)


def test_a_stall_has_a_bound() -> None:
    for quiet_s, over in ((599.0, False), (601.0, True)):
        found = judged(at("a", Phase.READING, quiet_s), at("b", Phase.READING, quiet_s))
        assert isinstance(found, Stall)
        assert found.is_over_bound == over
    slow = judged(at("a", Phase.SAVING, 900, limit_s=800), at("b", Phase.SAVING, 900, limit_s=800))
    assert isinstance(slow, Stall)
    assert not slow.is_over_bound, "what may take long by itself has twice that"


# the hub


def sees(stage: Stage, *seen: Sighting) -> Stage:
    """Each node reports those of its workers."""
    answers = []
    for node in sorted({one.worker[0] for one in seen}):
        told = [as_message(one) for one in seen if one.worker[0] == node]
        answers += stage.told(node, "sighted", workers=told).orders
    return stage.heard(answers)


def killed(stage: Stage) -> list[str]:
    return [order.message["worker"] for order in stage.orders if order.message["say"] == "kill_hung"]


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_hang_in_an_evaluation_is_found_and_its_own_agent_told(nodes: int) -> None:
    stage = trains(2, nodes=2) if nodes == 2 else trains(3)
    hangs, *others = ("B1", "A0", "A1", "B0") if nodes == 2 else ("A2", "A0", "A1")
    sees(stage, at(hangs, Phase.EVALUATING, 31), *[at(other, Phase.WAITING, 30) for other in others])
    assert killed(stage) == [hangs]
    assert stage.to("kill_hung") == hangs[0]
    assert "it has evaluated for 31.0 s without a sign" in stage.only("kill_hung")["why"]


def test_a_stall_on_two_nodes_is_told_once_and_kills_nobody() -> None:
    """An agent saw its own workers only, and took a stall of storage for a hang of each."""
    stage = trains(1, nodes=2)
    sees(stage, at("A0", Phase.READING, 28), at("B0", Phase.READING, 31))
    assert (killed(stage), stage.to("status")) == ([], "A")
    text = stage.only("status")["text"]
    assert text.startswith("all 2 workers stood still in dataset[i] for step 7 for 31 s: is its storage stalled?")
    for quiet_s in range(32, 600):  # each agent reports by itself
        stage.later(0.5)
        assert sees(stage, at("A0", Phase.READING, quiet_s)).orders == []
        stage.later(0.5)
        assert sees(stage, at("B0", Phase.READING, quiet_s)).orders == []
    assert stage.later(10).only("status")["text"].startswith("dataset[i] for step 7 goes on, after 600 s")
    assert stage.later(10).orders == []


def test_a_lone_worker_is_killed_as_soon_as_people_were_told() -> None:
    """It was, a limit later: as if it were the last of several that stood still together."""
    stage = trains(1)
    sees(stage, at("A0", Phase.READING, 31))
    assert (killed(stage), stage.only("status")["text"][-8:]) == ([], "ts 150 s")
    stage.later(1)
    for quiet_s in range(32, 151):
        assert killed(sees(stage, at("A0", Phase.READING, quiet_s))) == []
        stage.later(1)
    assert killed(sees(stage, at("A0", Phase.READING, 151))) == ["A0"]


def test_when_a_stall_is_over_the_last_one_to_go_on_is_not_killed_for_having_stood_there() -> None:
    stage = trains(2)
    sees(stage, at("A0", Phase.READING, 45), at("A1", Phase.READING, 45))
    stage.later(1)
    assert killed(sees(stage, at("A0", Phase.READING, 46), at("A1", Phase.COMPUTING, 0.2))) == []
    assert "goes on" in stage.only("status")["text"]
    stage.later(29)
    assert killed(sees(stage, at("A0", Phase.READING, 75), at("A1", Phase.WAITING, 29))) == []
    stage.later(1)
    assert killed(sees(stage, at("A0", Phase.READING, 76), at("A1", Phase.WAITING, 30))) == ["A0"]


def test_what_an_agent_reported_long_ago_is_not_believed() -> None:
    stage = trains(1, nodes=2)
    sees(stage, at("A0", Phase.READING, 20))
    stage.later(20)
    assert killed(sees(stage, at("B0", Phase.READING, 31))) == ["B0"]


def test_a_stall_that_does_not_end_ends_the_run_with_a_sentence() -> None:
    stage = trains(2, stall_s=40.0)
    seen = at("A0", Phase.READING, 61), at("A1", Phase.READING, 61)
    sees(stage, *seen)
    assert sorted(killed(stage)) == ["A0", "A1"], "for their stacks, and since nobody hears that the run ends"
    stage.killed("A0", hung=True, step=7)
    stage.killed("A1", hung=True, step=7)
    over = stage.only("run_is_over")
    assert over["failed"]
    assert "all 2 workers stood still in dataset[i] for step 7 for 61 s" in over["why"]
    assert stage.to("start") == ""


def test_a_stall_of_storage_that_began_with_one_reader_costs_one_worker_and_not_the_run() -> None:
    """The others had read already. Their turn comes when they take over what it had."""
    stage = trains(3)
    sees(stage, at("A0", Phase.READING, 31), at("A1", Phase.WAITING, 31), at("A2", Phase.WAITING, 31))
    assert killed(stage) == ["A0"]
    stage.killed("A0", hung=True, step=7)
    assert stage.over("A1 A2").view == "A1 A2"
    sees(stage, at("A1", Phase.READING, 61, limit_s=60), at("A2", Phase.WAITING, 61))
    assert killed(stage) == []
    assert stage.only("status")["text"].startswith("the worker that the others wait for stood still in dataset[i]")
