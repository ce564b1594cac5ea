"""What the hub answers to those who want to leave: nobody who leaves in order throws the newest state away."""

from __future__ import annotations

from typing import Any

import pytest

from elastic.membership.exit_statuses import CUT_SHORT
from elastic.membership.rules.next_view import BOUNDARY
from tests.kit.stage import MID_STEP, trains


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_leaving_worker_that_is_killed_is_not_replaced(when: str) -> None:
    stage = trains(3)
    stage.leaves("A1")
    if when == "before":
        stage.killed("A1")
        assert (stage.to("start"), stage.to("broken")) == ("", "A0 A2")
    stage.over("A0 A2", BOUNDARY)
    assert stage.view == "A0 A2"
    if when == "after":
        assert stage.killed("A1").orders == []


@pytest.mark.parametrize("said", ["nothing", "leaving"])
@pytest.mark.parametrize(
    ("how", "cause"),
    [
        ({"signal": "SIGKILL", "expected": True}, "SIGKILL"),
        ({"code": 3, "expected": True}, "exit status 3"),
        ({"signal": "SIGTERM"}, "SIGTERM"),
    ],
)
def test_one_that_was_told_to_leave_and_is_killed_before_it_may_go_is_lost_with_its_cause(
    said: str, how: dict[str, Any], cause: str
) -> None:
    """Its agent has seen how it ended; a report says who was lost, and had nothing to say of why."""
    stage = trains(3)
    if said == "leaving":
        stage.leaves("A1")
    stage.worker("A1", "exited", **{"code": None, "signal": None, "step": 7, "t": 5.0, **how})
    stage.over("A0 A2", BOUNDARY if said == "leaving" else MID_STEP)
    assert stage.view == "A0 A2"
    (gone,) = stage.only("view")["gone"]
    assert (gone["worker"], gone["cause"], gone["step"], gone["t"]) == ("A1", cause, 7, 5.0)
    assert stage.only("view")["not_lost"] == []


def test_of_those_that_were_told_to_leave_in_order_or_in_no_view_nobody_is_told_as_lost() -> None:
    stage = trains(4)
    spare = stage.started("A0")
    stage.killed(spare, "SIGTERM", expected=True)
    stage.ends("A1", 0, expected=True)
    stage.leaves("A2")
    stage.over("A0 A3", BOUNDARY)
    assert stage.view == "A0 A3"
    assert stage.only("view")["gone"] == []
    stage.killed("A2", expected=True)
    stage.killed("A3")
    stage.over("A0")
    assert [gone["worker"] for gone in stage.only("view")["gone"]] == ["A3"]


def test_one_that_leaves_all_of_a_sudden_breaks_the_view() -> None:
    stage = trains(3)
    assert stage.leaves("A1", lost=True).to("broken") == "A0 A2"
    stage.over("A0 A2")
    assert (stage.to("released"), stage.view) == ("A1", "A0 A2")


def test_one_whose_machine_goes_before_a_boundary_is_not_replaced_and_others_learn_why() -> None:
    """Whether its agent or somebody else has told it."""
    stage = trains(3)
    assert stage.ends("A1", CUT_SHORT).to("broken") == "A0 A2"
    assert stage.to("start") == ""
    stage.over("A0 A2")
    assert stage.view == "A0 A2"
    (gone,) = stage.only("view")["gone"]
    assert gone["worker"] == "A1"
    assert gone["cause"] == "told to leave, it came to no boundary before its machine was to go"


def test_a_run_whose_last_machines_go_before_a_boundary_has_not_failed() -> None:
    """The same command goes on from what is saved; a scheduler that hears of a failure may not give it."""
    stage = trains(2)
    stage.ends("A0", CUT_SHORT)
    assert stage.ends("A1", CUT_SHORT).only("run_is_over") == {"say": "run_is_over", "failed": False, "why": ""}


def test_one_that_is_left_alone_with_the_newest_state_saves_it_first() -> None:
    """The last other worker is killed at the very boundary where it leaves."""
    stage = trains(2)
    stage.leaves("A1")
    assert stage.killed("A0").to("save") == "A1"
    assert stage.begin("A0").orders == [], "what is in storage is older: nobody begins from there"
    assert stage.saved("A1").to("released") == "A1"
    assert stage.only("released")["safe"] is True
    assert stage.view == "A0'"


def test_where_the_one_that_saves_is_lost_or_fails_the_next_one_does() -> None:
    stage = trains(4)
    for id in ("A1", "A2", "A3"):
        stage.leaves(id)
    assert stage.killed("A0", step=7).to("save") == "A1"
    assert stage.killed("A1").to("save") == "A2"
    assert stage.ends("A2", 1).to("save") == "A3"
    assert stage.saved("A3").to("released") == "A3"


def test_a_run_whose_last_worker_is_killed_before_it_has_saved_has_failed() -> None:
    stage = trains(1)
    assert stage.leaves("A0").to("save") == "A0"
    over = stage.killed("A0").only("run_is_over")
    assert over["failed"] is True
    assert "A0, told to leave, ended before what it held was saved: SIGKILL" in over["why"]


def test_a_run_that_another_worker_has_saved_has_not_failed() -> None:
    """However the others of a node that is told to leave ended."""
    stage = trains(3)
    stage.killed("A0", expected=True, step=7)
    stage.leaves("A1")
    assert stage.leaves("A2").to("save") == "A1"
    assert stage.killed("A1", expected=True).to("save") == "A2"
    stage.saved("A2")
    assert stage.ends("A2", 0, expected=True).only("run_is_over")["failed"] is False


def test_one_that_is_ahead_of_those_who_stay_hands_on_what_it_holds_and_leaves_then() -> None:
    """Another worker was killed in that step's exchange, and some got through it."""
    stage = trains(3)
    stage.leaves("A1", step=8)
    stage.over("A2", step=7)
    assert stage.killed("A0", step=7).view == "A1 A2"
    assert stage.to("released save") == ""
    stage.leaves("A1", step=8)
    assert stage.over("A2", BOUNDARY, step=8).to("released") == "A1"
    assert stage.view == "A2"


def test_one_whose_script_has_left_the_loop_saves_for_those_who_are_behind() -> None:
    stage = trains(3)
    stage.leaves("A1", step=8, lost=True, joins=False)
    stage.over("A2", step=7)
    assert stage.killed("A0", step=7).to("save") == "A1"
    assert stage.view is None
    assert stage.saved("A1", step=8).view == "A2"


def test_below_its_minimum_one_is_released_that_others_who_wait_could_save_for() -> None:
    stage = trains(2, nodes=2, nodes_min=2)
    stage.lost("B")
    stage.over("A0", whole=False)
    stage.over("A1")
    assert stage.leaves("A1").to("save") == "A1", "A0 stands in its script's own code, and cannot save"
    stage.saved("A1")
    assert stage.leaves("A0", whole=False).only("released")["safe"] is True

    stage = trains(3, nodes=2, nodes_min=2)
    stage.lost("A")
    stage.over("B0 B2")
    stage.over("B1", step=8)
    assert stage.leaves("B0").to("released") == "B0"
    assert stage.leaves("B1", step=8).to("save") == "B1"
    assert stage.leaves("B2").orders == []
    assert stage.killed("B1").to("save") == "B2"


def test_one_that_holds_what_nobody_can_save_is_told_so() -> None:
    stage = trains(1, nodes=2, nodes_min=2)
    stage.lost("B")
    stage.over("A0", whole=False)
    assert stage.leaves("A0", whole=False).only("released")["safe"] is False
    assert stage.ends("A0", 1).only("run_is_over")["failed"] is True


def test_one_that_waits_too_long_for_others_who_are_busy_saves_and_goes() -> None:
    """They may be killed after it has gone; and its machine does not wait for ever."""
    stage = trains(3)
    stage.leaves("A1")
    stage.leaves("A2")
    assert stage.later(29).to("save") == ""
    assert stage.later(2).to("save") == "A1"
    assert stage.later(1).orders == []
    assert stage.saved("A1").to("released") == "A1 A2"
    assert stage.over("A0", BOUNDARY).view == "A0"


def test_when_a_run_fails_another_one_saves_where_the_farthest_could_not() -> None:
    stage = trains(3, restarts_max=0)
    stage.raises("A0")
    stage.over("A2", step=8)
    assert stage.over("A1").to("save") == "A2"
    assert stage.ends("A2", 1, step=8).to("save") == "A1"
    assert stage.to("run_is_over") == ""
    assert stage.saved("A1").only("run_is_over")["failed"] is True


def test_a_save_at_the_end_of_a_run_that_failed_has_a_deadline() -> None:
    stage = trains(2, restarts_max=0, ending_s=60)
    stage.raises("A0")
    assert stage.over("A1").to("save") == "A1"
    assert stage.later(119).to("end over") == ""
    assert stage.later(2).only("run_is_over")["failed"] is True
