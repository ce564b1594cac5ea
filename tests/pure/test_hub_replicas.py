"""Replicas of several workers, as the hub has them: let in, lost, replaced, released and judged whole."""

from __future__ import annotations

from typing import Any

import pytest

from elastic.membership.progress import Phase
from elastic.membership.rules.next_view import BOUNDARY
from elastic.membership.stalls import Hung, Sighting, Stall, judge, of_replica
from tests.kit.stage import MID_STEP, Stage, trains

FIRST, SECOND = "A0 A1", "A2 A3"


def lost(stage: Stage, first: str, *others: str, **facts: Any) -> Stage:
    """One of a replica is killed, and its agent ends the others with it."""
    orders = stage.killed(first, **facts).orders
    for other in others:
        orders += stage.killed(other, with_replica=True).orders
    stage.orders = orders
    return stage


def test_a_view_says_how_large_its_replicas_are() -> None:
    stage = trains(4, replica_size=2)
    assert stage.view == f"{FIRST} {SECOND}"
    assert stage.only("view")["replica_size"] == 2
    assert trains(2).only("view")["replica_size"] == 1


def test_nobody_of_a_replica_joins_before_all_of_it_are_ready() -> None:
    stage = Stage(4, replica_size=2)
    stage.begin("A0 A1 A2")
    assert stage.view is None
    stage.started("A3")
    assert stage.later(200.0).view == FIRST, "one that does not come holds up its own replica alone"
    assert stage.ready("A3").to("regroup") == FIRST
    assert stage.over(FIRST, BOUNDARY).view == f"{FIRST} {SECOND}"


def test_a_replica_that_loses_a_worker_is_lost_whole_and_replaced_whole() -> None:
    stage = trains(6, replica_size=2)
    lost(stage, "A3", "A2")
    assert [order.message["local_rank"] for order in stage.orders if order.message["say"] == "start"] == [2]
    assert stage.over("A0 A1 A4 A5").view == "A0 A1 A4 A5"
    gone = stage.only("view")["gone"]
    assert [(one["worker"], one["cause"]) for one in gone] == [
        ("A3", "SIGKILL"),
        ("A2", "it ended with its replica"),
    ]
    assert stage.begin("A2").to("regroup") == ""
    assert stage.begin("A3").to("regroup") == "A0 A1 A4 A5"
    assert stage.over("A0 A1 A4 A5", BOUNDARY).view == "A0 A1 A4 A5 A2' A3'"


def test_one_that_waits_for_the_next_view_is_not_in_it_without_its_replica() -> None:
    """It hears that the view is broken, and says so, before its agent has ended it."""
    stage = trains(4, replica_size=2)
    stage.killed("A3")
    assert stage.over(f"{FIRST} A2").view == FIRST
    assert stage.killed("A2", with_replica=True).to("broken") == ""
    assert stage.begin(SECOND).to("regroup") == FIRST


def test_a_view_holds_as_many_replicas_as_a_step_has_shares() -> None:
    """A replica needs one share; members of it may have none."""
    stage = trains(6, replica_size=2, shares=2)
    assert stage.view == f"{FIRST} {SECOND}"
    lost(stage, "A0", "A1")
    stage.over(SECOND, BOUNDARY)
    assert stage.view == "A2 A3 A4 A5"


def test_the_ends_of_a_replica_count_once() -> None:
    """Two workers that fail for one reason, at one step, would be a bug that a restart does not help."""
    stage = trains(4, replica_size=2)
    stage.raises("A2")
    assert stage.to("start") == "A"
    stage.killed("A3", with_replica=True)
    assert stage.to("start run_is_over end") == ""
    stage.over(FIRST)
    stage.begin(SECOND)
    stage.over(FIRST, BOUNDARY)
    stage.raises("A3'")
    stage.killed("A2'", with_replica=True)
    stage.over(FIRST, lost=False)
    assert "the same failure twice at step 7" in stage.later(200.0).only("run_is_over")["why"]


def test_kills_of_whichever_members_count_for_their_replica() -> None:
    stage = trains(4, replica_size=2)
    for times in range(7):
        mark = "'" * times
        members = [f"A2{mark}", f"A3{mark}"]
        lost(stage, members[times % 2], members[1 - times % 2], step=7)
        if times < 6:
            stage.later(60.0)
            stage.over(FIRST, MID_STEP)
            stage.begin(SECOND)
            stage.over(FIRST, BOUNDARY)
    assert stage.over(FIRST).to("save") == FIRST
    assert "as 6 before it in its place" in stage.saved("A0").only("run_is_over")["why"]


def test_all_of_a_replica_that_leaves_last_are_asked_to_save_and_are_released_together() -> None:
    stage = trains(2, replica_size=2)
    stage.leaves("A0")
    assert stage.to("save released") == "", "of its replica one still trains"
    stage.leaves("A1")
    assert stage.to("save") == "A0 A1"
    stage.saved("A0")
    stage.leaves("A0", saved=True)
    stage.leaves("A1", saved=True)
    assert {order.worker for order in stage.orders if order.message["say"] == "released"} <= {"A0", "A1"}
    stage.ends("A0", 0)
    assert stage.ends("A1", 0).only("run_is_over")["failed"] is False


def test_a_replica_that_leaves_while_another_holds_the_state_goes_at_once() -> None:
    stage = trains(4, replica_size=2)
    stage.leaves("A0")
    stage.leaves("A1")
    stage.over(SECOND, BOUNDARY)
    assert (stage.to("released"), stage.view) == (FIRST, SECOND)


def test_a_node_of_other_replicas_is_refused_by_name() -> None:
    stage = trains(4, replica_size=2, nodes_max=2)
    stage.told("B", "hello", slots=4, replica_size=4)
    assert stage.to("run_is_over") == "B"
    why = stage.only("run_is_over")["why"]
    assert "replicas of 2 workers, and B was started with --replica-size=4" in why
    assert stage.told("C", "hello", slots=4, replica_size=2).to("run_is_over") == ""


def at(worker: str, phase: Phase, quiet_s: float) -> Sighting:
    return Sighting(worker=worker, phase=phase, step=7, sign=3, quiet_s=quiet_s, limit_s=30.0)


def test_a_replica_is_judged_by_the_one_for_which_the_others_wait() -> None:
    """All of a replica stand in one pass while one of them hangs there: that is no stall of the whole run."""
    seen = of_replica([at("a", Phase.COMPUTING, 31), at("b", Phase.COMPUTING, 32), None])
    assert judge({"a": seen}, killed_at=(), stall_s=600.0) == Hung(at("b", Phase.COMPUTING, 32))
    reading = [of_replica([at(f"{name}0", Phase.COMPUTING, 40), at(f"{name}1", Phase.READING, 39)]) for name in "ab"]
    found = judge(dict(zip("ab", reading, strict=True)), killed_at=(), stall_s=600.0)
    assert isinstance(found, Stall), "both stand still at the storage"
    assert found.workers == ("a1", "b1")
    assert of_replica([None, None]) is None


@pytest.mark.parametrize("size", [1, 2])
def test_one_of_the_only_replica_that_hangs_is_killed(size: int) -> None:
    stage = trains(size, replica_size=size)
    workers = [f"A{slot}" for slot in range(size)]
    seen = [
        {"worker": worker, "phase": Phase.COMPUTING, "step": 7, "sign": 1, "quiet_s": 31.0, "limit_s": 30.0}
        for worker in workers
    ]
    stage.told("A", "sighted", workers=seen)
    assert stage.only("kill_hung")["worker"] in workers
