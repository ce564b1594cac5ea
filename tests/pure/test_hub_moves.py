"""A hub is lost, or hands over, and the next one learns of the run from the nodes that come to it."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from elastic.membership.hub.hub import Hub
from elastic.membership.messages.wire import WireError
from elastic.membership.progress import Phase
from elastic.membership.rules.next_view import BOUNDARY
from elastic.membership.succession.node_report import NodeReport
from tests.kit.successive_hubs import Run

LIVENESS = {"nonce": "b", "endpoint": {}, "hub": {"host": "10.0.0.2", "port": 2, "nonce": "n"}}


def test_a_hub_that_hands_over_costs_no_view() -> None:
    run = Run("ABC", witness=True)
    run.tell("A", "leaving", worker="A0", generation=1, step=7)
    run.over("BC", at=BOUNDARY)
    run.tell("A", "exited", worker="A0", code=0, expected=True)
    run.meets("BC")
    run.moves("B", departed="A")
    run.later(1.0)
    run.comes("C")
    run.later(10.0)
    assert run.hub.generation == 2
    assert run.view("B") == run.view("C") == "B0 C0"
    assert not run.said("B", "broken") + run.said("C", "broken")


def test_who_waits_for_a_place_takes_none_of_those_who_are_on_their_way_to_the_next_hub() -> None:
    """It may be the first to find that hub; what the others hold is the run."""
    run = Run("ABC", witness=True)
    run.hub = Hub(nodes_max=3, takes_over=True)
    run.hub.expect("ABC")
    run.orders(run.hub.without(run.now_s, "A", departed=False))
    run.comes("B")
    run.reports["D"], run.reports["E"], run.heard["D"], run.heard["E"] = NodeReport(), NodeReport(), [], []
    run.comes("D")
    run.comes("E")
    assert not run.said("D", "full")
    assert run.said("E", "full")[-1]["nodes"] == [("B", "10.0.0.66", 1), ("D", "10.0.0.68", 1)]
    run.comes("C")
    assert not run.said("C", "full")
    run.later(10.0)
    run.comes("E")
    assert len(run.said("E", "full")) == 2


def test_one_that_was_never_told_of_the_present_view_saves_all_the_same_at_the_end() -> None:
    """It was cut off as that view was published, and came back with what it held. It was asked by a number that it had
    never heard of, and was waited for in vain."""
    run = Run("ABC", witness=False)
    run.orders(run.hub.lost(run.now_s, "C", dead=False))
    run.over("B")
    before = deepcopy(run.reports["B"])
    run.over("A")
    assert run.view("B") == "A0 B0"
    run.reports["B"] = before
    run.orders(run.hub.lost(run.now_s, "B", dead=False))
    run.comes("B")
    run.orders(run.hub.lost(run.now_s, "A", dead=False))
    for seconds in (600.0, 1.0, 1.0):
        run.later(seconds)
    (asked,) = run.said("B", "save")
    run.tell("B", "saved", worker="B0", generation=1, step=7)
    assert asked["generation"] == 1
    assert "what was done is saved, 7 steps" in run.said("B", "run_is_over")[-1]["why"]


def test_the_next_hub_knows_which_of_the_script_s_runs_it_is() -> None:
    """What was known of the one before (that it is finished, its claims, which may have higher numbers) is no part of
    it; a newcomer passes that one by."""
    run = Run("ABC", witness=True)
    for node in "ABC":
        run.tell(node, "finished", worker=f"{node}0", step=9)
    for node in "ABC":
        run.tell(node, "ready", worker=f"{node}0", shares=8, identity="two", runs=["", "two"])
    assert run.hub.generation == 2
    run.meets("ABC")
    assert not run.reports["B"].finished
    assert run.reports["B"].claim is None
    run.moves("BC", lost="A")
    run.over("BC")
    run.later(2.0)
    run.reports["D"], run.heard["D"] = NodeReport(), []
    run.comes("D")
    run.tell("D", "started", worker="D0", local_rank=0)
    run.tell("D", "ready", worker="D0", shares=8, identity="one", runs=[""])
    assert run.view("B") == "B0 C0"
    assert run.said("D", "past")


def test_a_hub_that_is_lost_between_two_runs_costs_none_of_them() -> None:
    run = Run("ABC", witness=True)
    for node in "ABC":
        run.tell(node, "finished", worker=f"{node}0", step=9)
    run.tell("B", "ready", worker="B0", shares=8, identity="two", runs=["", "two"])
    run.moves("BC", lost="A")
    run.later(2.0)
    run.tell("C", "ready", worker="C0", shares=8, identity="two", runs=["", "two"])
    for _ in range(30):
        run.later(10.0)
    assert run.view("B") == run.view("C") == "B0 C0"


def test_the_coordinator_learns_where_the_hub_is_though_no_view_comes() -> None:
    run = Run("ABC", witness=True)
    run.hub = Hub(nodes_max=9, takes_over=True, liveness=LIVENESS)
    run.comes("B")
    assert not run.said("B", "hub_at")
    run.comes("A")
    assert run.said("A", "hub_at") == [{"say": "hub_at", "liveness": LIVENESS}]


@pytest.mark.parametrize("times", [1, 2])
def test_a_new_hub_goes_on_counting(times: int) -> None:
    """It began anew: a script that fails at one step was started again and again, for as long as hubs were lost."""
    run = Run("ABC", witness=False)
    run.fails("B", "B0", step=3)
    run.moves("BC", lost="A")
    for _ in range(times - 1):  # it is the same hub to whom B says hello once more
        run.orders(run.hub.lost(run.now_s, "B", dead=False))
        run.comes("B")
    run.tell("B", "started", worker="B1", local_rank=0)
    before = len(run.said("B", "start"))
    run.fails("B", "B1", step=3)
    assert len(run.said("B", "start")) == before
    assert "the same failure twice at step 3" in str(run.said("B", "status") + run.said("B", "run_is_over"))


def test_kills_at_one_step_are_counted_by_the_next_hub_too() -> None:
    """What the kernel kills because a step needs too much memory: its replacements come later and later."""
    run = Run("ABC", witness=False)
    for life in range(2):
        run.is_killed("B", f"B{life}", step=3)
        run.tell("B", "started", worker=f"B{life + 1}", local_rank=0)
    run.moves("BC", lost="A")
    run.is_killed("B", "B2", step=3)
    assert "in 1 s: it was killed as the last ones there" in run.said("B", "status")[-1]["text"]


def test_a_view_waits_for_those_who_have_not_come_to_the_next_hub_yet() -> None:
    run = Run("ABCD", witness=False)
    run.moves("BC", lost="A")
    run.over("BC")
    run.later(1.0)
    assert run.hub.generation == 1
    run.comes("D")
    run.over("D")
    assert run.view("B") == "B0 C0 D0"


def test_what_a_node_of_the_roster_knows_is_waited_for() -> None:
    """It may be the only one that was told of a newer view."""
    run = Run("AB", witness=False)
    run.over("AB", at=BOUNDARY)
    assert run.hub.generation == 2
    run.hub = Hub(nodes_max=9, takes_over=True)
    run.hub.expect("AB")
    older = Run("AB", witness=False)
    older.over("B", at=BOUNDARY)
    run.reports["B"] = older.reports["B"]
    run.comes("B")
    assert run.hub.generation == 1
    run.comes("A")
    assert run.hub.generation == 2


def test_a_node_of_an_older_view_is_moved_on_from_and_joins_again() -> None:
    run = Run("ABC", witness=True)
    run.orders(run.hub.lost(0.0, "C", dead=False))
    run.over("AB")
    run.claims("A")
    assert run.view("A") == "A0 B0"
    run.comes("C")
    assert run.said("C", "moved_on")
    run.reports["C"] = NodeReport()
    run.comes("C")
    assert run.said("C", "start") == [{"say": "start", "local_rank": 0}]


def test_a_hub_that_was_away_gives_way_to_a_newer_view_and_its_own_node_is_moved_on_from() -> None:
    run = Run("ABC", witness=False)
    old = run.hub
    run.moves("BC", lost="A")
    run.over("BC")
    assert run.view("B") == "B0 C0"
    run.hub = old
    run.orders(old.lost(0.0, "B", dead=False))
    run.comes("B")
    assert run.said("A", "moved_on")


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"view": {}},
        {"view": {"say": "end", "why": "x"}},
        {"known": [{"generation": "x"}]},
        {"workers": [{"worker": "C0", "local_rank": 0, "generation": 1, "said": [{"say": "put"}]}]},
        {"workers": [{"worker": "A0", "local_rank": 0, "generation": 1, "said": []}]},
    ],
)
def test_a_report_that_is_none_or_speaks_for_others_changes_nothing(wrong: dict[str, Any]) -> None:
    run = Run("ABC", witness=True)
    run.orders(run.hub.lost(0.0, "C", dead=False))
    report = {**run.reports["C"].document(), **wrong} if wrong else wrong
    with pytest.raises(WireError):
        run.hub.receive(0.0, "C", {"say": "hello", "slots": 1, "report": report})
    assert not run.said("A", "moved_on")


def test_one_that_was_moved_on_from_is_not_looked_at_for_hangs_any_more() -> None:
    """It was seen to be stuck as it went; the agent with the hub died at the next look at the others."""
    run = Run("ABCD", witness=True)
    run.moves("BCD", lost="A")
    run.over("BCD")
    stuck = {"worker": "D0", "phase": int(Phase.COMPUTING), "step": 7, "sign": 3, "quiet_s": 99.0, "limit_s": 1.0}
    run.tell("D", "sighted", workers=[stuck])
    run.loses_claim("B", to="ABC")
    assert run.said("D", "moved_on")
    run.tell("B", "sighted", workers=[{**stuck, "worker": "B0", "quiet_s": 0.1}])
    assert not run.said("B", "kill_hung")


def test_a_hub_that_has_handed_over_decides_nothing_and_says_where_to_go() -> None:
    run = Run("ABC", witness=True)
    run.orders(run.hub.hands_over(0.0, "A"))
    run.reports["X"], run.heard["X"] = NodeReport(), []
    run.tell("X", "hello", slots=1, address="10.0.0.8", port=1)
    run.orders(run.hub.lost(0.1, "B", dead=False))
    run.orders(run.hub.lost(0.1, "C", dead=False))
    run.later(30.0)
    assert run.heard["X"] == [{"say": "hub_is", "address": "10.0.0.66", "port": 1, "stays": False, "version": None}]


def test_who_is_in_no_view_knows_of_it_by_the_roster() -> None:
    """Most of the view before would begin anew, beside those two who go on."""
    run = Run("ABCDE", witness=False)
    for node in "CDE":
        run.is_killed(node, f"{node}0", step=7)
    run.over("AB")
    assert run.view("B") == "A0 B0"
    run.moves("CDE", lost="AB")
    for node in "CDE":
        run.tell(node, "started", worker=f"{node}1", local_rank=0)
    for node in "CDE":
        run.tell(node, "ready", worker=f"{node}1", shares=8, identity="one")
    run.later(20.0)
    assert run.view("C") == "A0 B0 C0 D0 E0"


def test_one_that_was_moved_on_from_votes_for_no_older_view() -> None:
    run = Run("ABCDE", witness=False)
    run.orders(run.hub.lost(0.0, "D", dead=False))
    run.orders(run.hub.lost(0.0, "E", dead=False))
    run.over("ABC")
    run.meets("ABC")
    assert run.view("C") == "A0 B0 C0"
    run.reports["C"] = run.reports["C"].without_workers()
    run.moves("DEC", lost="AB")
    run.over("DE")
    run.later(2.0)
    assert run.view("D") == "A0 B0 C0 D0 E0"
    assert "1 of the 3 nodes of view 2" in run.said("D", "status")[-1]["text"]


def test_one_that_comes_after_a_failed_run_fails() -> None:
    hub = Hub()
    hub.receive(0.0, "A", {"say": "hello", "slots": 1, "address": "10.0.0.1", "port": 1})
    hub.receive(0.0, "A", {"say": "started", "worker": "A0", "local_rank": 0})
    for number in (0, 1):
        hub.receive(0.0, "A", {"say": "failed", "worker": f"A{number}", "error": "ValueError: x", "trace": ""})
        hub.receive(0.0, "A", {"say": "exited", "worker": f"A{number}", "code": 1})
        hub.receive(0.0, "A", {"say": "started", "worker": f"A{number + 1}", "local_rank": 0})
    hub.tick(200.0)
    orders = hub.receive(201.0, "B", {"say": "hello", "slots": 1})
    assert [order.message["failed"] for order in orders if order.message["say"] == "run_is_over"] == [True]


def test_one_whose_view_broke_before_it_had_the_state_waits_on_under_the_next_hub() -> None:
    """The view after that did without it. It was no newcomer to the next hub, and waited for ever."""
    run = Run("AB", witness=False)
    run.tell("B", "started", worker="B1", local_rank=1)
    run.tell("B", "ready", worker="B1", shares=8, identity="one")
    run.over("AB", at=BOUNDARY)
    assert run.view("B") == "A0 B0 B1"
    run.is_killed("A", "A0", step=7)
    run.tell("B", "view_is_over", worker="B1", generation=2, step=-1, at=BOUNDARY, lost=True, whole=False)
    run.over("B", step=8)
    assert run.view("B") == "B0"
    run.meets("B")
    run.moves("B", lost="A")
    assert run.said("B", "regroup"), "as under the hub before"
    assert {said["generation"] for said in run.said("B", "broken")} == {2}, "the view that does without it is whole"
    run.is_killed("B", "B0", step=8)
    run.later(200.0)
    assert run.view("B") == "B1"


def test_what_a_member_answers_to_the_hub_before_changes_nothing() -> None:
    """It was asked whether it accepts another identity, by a hub that was lost. The next one had nobody to compare it
    with, and has let it in."""
    run = Run("AB", witness=False)
    run.is_killed("B", "B0", step=7)
    run.tell("B", "started", worker="B1", local_rank=0)
    run.tell("B", "ready", worker="B1", shares=8, identity="another")
    assert run.said("B", "identity")
    run.is_killed("A", "A0", step=7)
    run.moves("B", lost="A")
    run.orders(run.hub.lost(run.now_s, "A", dead=True))
    run.later(10.0)
    generation = run.hub.generation
    assert run.view("B") == "B1"
    run.tell("B", "ready", worker="B1", shares=8, identity="another", accepted=True)
    run.later(10.0)
    assert run.hub.generation == generation


def test_a_script_that_begins_a_second_run_without_ending_its_first_is_heard() -> None:
    """It is no late answer: nobody has asked."""
    run = Run("A", witness=False)
    run.tell("A", "ready", worker="A0", shares=8, identity="one", runs=["one", "other"])
    run.later(200.0)
    assert run.hub.generation == 2
    assert run.view("A") == "A0"
