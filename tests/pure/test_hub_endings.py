"""What the hub answers, story by story: workers that leave, finish or fail, and how a run ends."""

from __future__ import annotations

import pytest

from elastic.membership.exit_statuses import AGAIN
from elastic.membership.rules.endings import MISMATCH
from elastic.membership.rules.next_view import BOUNDARY
from tests.kit.stage import Stage, trains

FIRST = {"identity": "one", "runs": ["one"]}
SECOND = {"identity": "two", "runs": ["one", "two"]}


@pytest.mark.parametrize("signal", ["SIGTERM", "SIGINT"])
def test_a_worker_ended_by_a_request_to_leave_is_not_replaced(signal: str) -> None:
    stage = trains(2)
    assert stage.killed("A1", signal).to("start") == ""
    assert stage.over("A0").view == "A0"


def test_a_finished_run_waits_for_no_replacement_and_orders_none() -> None:
    stage = trains(2)
    stage.killed("A1")
    stage.over("A0")
    stage.worker("A0", "finished", step=9)
    assert stage.begin("A1").to("view regroup") == ""
    stage.ends("A0", 0)
    assert (stage.to("run_is_over"), stage.to("end")) == ("A", "A1'")


def test_a_node_lost_after_the_run_had_finished_costs_nothing() -> None:
    stage = trains(1, nodes=2)
    stage.together("A0 B0", "finished", step=9)
    stage.lost("B")
    assert stage.ends("A0", 0).only("run_is_over")["failed"] is False


def test_one_that_lost_the_last_exchange_finishes_without_those_that_have_finished() -> None:
    """Even if there are too few nodes now: nothing is left to train."""
    stage = trains(1, nodes=2, nodes_min=2)
    stage.worker("A0", "finished", step=9)
    stage.ends("A0", 0)
    assert stage.over("B0").view == "B0"
    stage.worker("B0", "finished", step=9)
    assert stage.ends("B0", 0).only("run_is_over")["failed"] is False


@pytest.mark.parametrize("how", ["raises", "exits"])
def test_a_script_that_fails_after_its_run_had_finished_has_failed(how: str) -> None:
    stage = trains(2)
    stage.together("A0 A1", "finished", step=9)
    if how == "raises":
        stage.raises("A0", "OSError: no space left")
    else:
        stage.ends("A0", 3)
    assert stage.to("start over") == ""
    over = stage.ends("A1", 0).only("run_is_over")
    assert over["failed"] is True
    assert ("OSError: no space left" if how == "raises" else "exit status 3") in over["why"]


def test_where_all_are_killed_after_the_run_has_finished_the_script_goes_on_from_there() -> None:
    """Nobody has come to its end: another run may follow, or an export. It was over, with status 0."""
    stage = trains(2)
    stage.together("A0 A1", "finished", step=9)
    stage.killed("A0")
    assert stage.killed("A1").to("start") == "A A"
    assert stage.begin("A0 A1").view == "A0' A1'"
    stage.together("A0' A1'", "finished", step=9)
    stage.ends("A0'", 0)
    assert stage.ends("A1'", 0).only("run_is_over")["failed"] is False


def test_runs_of_one_script_come_one_after_the_other() -> None:
    """The next begins once nobody is in the one before, and knows nothing of it; who was lost meanwhile is replaced."""
    stage = Stage(3).begin("A0 A1 A2", **FIRST)
    stage.together("A0 A1 A2", "finished", step=9)
    assert stage.ready("A0", **SECOND).view is None
    assert stage.killed("A1").to("start") == "A"
    assert stage.begin("A1", **FIRST).to("past") == "A1'"
    assert stage.ready("A1'", **SECOND).view is None
    assert stage.ready("A2", **SECOND).view == "A0 A1' A2"
    assert stage.only("view")["generation"] == 2
    assert stage.killed("A2", step=3).to("start") == "A"
    assert stage.over("A0 A1'", step=3).view == "A0 A1'"
    stage.together("A0 A1'", "finished", step=9)
    stage.ends("A0", 0)
    assert stage.ends("A1'", 0).only("run_is_over")["failed"] is False


def test_a_replacement_passes_the_runs_that_others_are_past_and_no_other_one() -> None:
    stage = Stage(2).begin("A0 A1", **FIRST)
    stage.together("A0 A1", "finished", step=9)
    stage.ready("A0 A1", **SECOND)
    stage.killed("A1")
    stage.over("A0")
    other = {"identity": "three", "runs": ["three"]}
    assert stage.begin("A1", **FIRST).to("past") == "A1'"
    assert stage.ready("A1'", **other).only("identity")["identity"] == "two"
    assert stage.ready("A1'", **SECOND).to("regroup") == "A0"


def test_a_worker_that_is_past_a_run_waits_until_the_others_are() -> None:
    """It has left that run by itself; the others go on with it, and lose nobody."""
    stage = Stage(2).begin("A0 A1", **FIRST)
    stage.leaves("A0")
    stage.over("A1", BOUNDARY)
    assert (stage.to("released"), stage.view) == ("A0", "A1")
    assert stage.ready("A0", **SECOND).to("regroup") == ""
    stage.worker("A1", "finished", step=9)
    assert stage.ready("A1", **SECOND).view == "A0 A1"


def test_workers_whose_script_ends_early_are_not_replaced() -> None:
    stage = trains(3)
    assert stage.ends("A1", 0).to("start") == ""
    assert stage.to("broken") == "A0 A2"
    assert stage.over("A0 A2").view == "A0 A2"


def test_the_same_failure_twice_at_one_step_ends_the_run_and_one_survivor_saves() -> None:
    stage = trains(3)
    assert stage.raises("A1").to("start") == "A"
    stage.over("A0 A2")
    stage.begin("A1")
    stage.over("A0 A2", BOUNDARY)
    assert stage.raises("A1'", "ValueError: bad at 0x7f").to("broken") == "A0 A2"
    stage.over("A0", step=7)
    assert stage.over("A2", step=8).to("end run_is_over") == ""
    assert stage.to("save") == "A2"
    assert stage.saved("A2", step=8).to("end") == "A0 A2"
    assert stage.only("run_is_over")["failed"] is True
    assert (
        "the same failure twice at step 7: ValueError: bad at 0x7f\nTraceback ..." in stage.only("run_is_over")["why"]
    )


def test_newcomers_are_told_of_the_end_and_save_nothing() -> None:
    stage = trains(3)
    stage.killed("A2")
    stage.over("A0 A1")
    stage.begin("A2")
    stage.raises("A1")
    stage.over("A0")
    assert stage.to("start") == ""
    stage.started("A1")
    stage.ready("A1'")
    stage.over("A0", BOUNDARY)
    stage.raises("A1'")
    assert stage.to("end") == ""
    assert stage.killed("A0").to("start") == ""
    stage.over("A2'", step=-1)
    assert (stage.to("save"), stage.to("end")) == ("", "A2'")


def test_one_that_asks_to_be_started_again_and_again_is_a_bug_unless_the_run_gets_on() -> None:
    """A script of its own may end with that status, every time."""
    stage = trains(2)
    last, step = "A1", 7
    for turn in range(60):
        stage.ends(last, AGAIN, step=step)
        assert stage.to("start") == "A"
        if turn % 15 == 14:
            step += 1
        stage.over("A0", step=step)
        last = "A1" + "'" * (turn + 1)
        stage.begin("A1")
    for turn in range(60, 90):
        stage.ends(last, AGAIN, step=step)
        if stage.to("start") == "":
            break
        stage.over("A0", step=step)
        last = "A1" + "'" * (turn + 1)
        stage.begin("A1")
    assert turn < 89
    assert f"exit status {AGAIN}" in stage.only("status")["text"]


def test_a_worker_that_has_raised_is_not_taken_for_a_killed_one() -> None:
    """It is killed while it comes to its end; its exception stays what it is."""
    stage = trains(2, restarts_max=0)
    stage.worker("A1", "failed", error="ValueError: bad", trace="", step=7)
    assert stage.killed("A1").to("start") == ""
    assert stage.over("A0").to("save") == "A0"
    assert stage.saved("A0").only("run_is_over")["failed"] is True


@pytest.mark.parametrize("how", ["before it is ready", "in the view"])
def test_a_newcomer_that_cannot_join_never_ends_a_healthy_run(how: str) -> None:
    stage = trains(3)
    stage.killed("A2")
    stage.over("A0 A1")
    for turn in (1, 2):
        id = stage.started("A2")
        if how == "in the view":
            stage.ready(id)
            stage.over("A0 A1", BOUNDARY)
            assert stage.view == f"A0 A1 {id}"
        stage.raises(id, "CudaError: out of memory", step=0 if how == "in the view" else None)
        assert stage.to("start") == ("A" if turn == 1 else "")
        answer = stage.orders
        if how == "in the view":
            stage.over("A0 A1")
            assert stage.view == "A0 A1"
    [status] = [order.message["text"] for order in answer if order.message["say"] == "status"]
    assert "cannot join" in status
    assert stage.to("run_is_over") == ""


def test_views_that_break_at_one_step_while_nobody_is_lost_end_the_run_with_a_sentence() -> None:
    """Workers that wait for each other in different collectives called it a lost peer, for ever; none was replaced."""
    stage = trains(2)
    assert stage.over("A0 A1").view == "A0 A1"
    assert stage.over("A0 A1").view == "A0 A1"
    assert stage.over("A0 A1").to("save") == "A0"
    why = stage.saved("A0").only("run_is_over")["why"]
    assert "3 views in a row broke at step 7, and no worker was lost" in why
    assert "A1 on A: in the exchange of step 7" in why


def test_a_view_that_breaks_is_none_of_many_where_the_run_got_on_or_one_was_lost() -> None:
    stage = trains(2)
    for step in range(20):
        assert stage.over("A0 A1", step=7 + step // 2).view == "A0 A1"
    stage.over("A0", step=16)
    assert stage.killed("A1").view == "A0"
    stage.begin("A1")
    assert stage.over("A0", BOUNDARY, step=16).view == "A0 A1'"
    for _ in range(2):
        assert stage.over("A0 A1'", step=16).view == "A0 A1'"


def test_scripts_that_go_different_ways_are_not_started_again() -> None:
    """The first one that says so is enough: the error names all of them."""
    stage = trains(2)
    stage.raises("A1", f"{MISMATCH}: rank 0 evaluates\n  and so on")
    assert stage.to("start") == ""
    assert stage.over("A0").to("save") == "A0"
    assert stage.saved("A0").only("run_is_over")["why"].startswith("the script does not do the same on all workers: ")


def test_hangs_count_as_failures() -> None:
    stage = trains(2, restarts_max=1)
    assert stage.killed("A1", hung=True, step=7).to("start") == "A"
    stage.over("A0")
    stage.begin("A1")
    stage.over("A0", BOUNDARY)
    stage.killed("A1'", hung=True, step=9)
    assert stage.over("A0").to("save") == "A0"
    assert "hang" in stage.saved("A0").only("run_is_over")["why"]
