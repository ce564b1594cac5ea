"""Nodes are lost, or heartbeats: the others may go on, or may not, or only under the run's next claim."""

from __future__ import annotations

import pytest

from elastic.membership.hub.hub import Hub
from elastic.membership.rules.next_view import BOUNDARY
from elastic.membership.succession.node_report import NodeReport
from tests.kit.stage import MID_STEP
from tests.kit.successive_hubs import CLAIM, Run


def test_the_hub_crashes_and_those_who_are_left_go_on_under_the_next_claim() -> None:
    run = Run("ABC", witness=True)
    run.moves("BC", lost="A")
    assert run.said("B", "broken")
    assert run.said("C", "broken")
    run.over("BC")
    assert not run.said("C", "claim")
    run.claims("B")
    assert run.view("B") == run.view("C") == "B0 C0"
    assert run.hub.generation == 2
    assert run.said("C", "view")[-1]["claim"]["nonce"] == "second"
    assert run.said("C", "view")[-1]["witness"]


def test_a_newcomer_that_reads_the_claim_later_makes_the_storage_a_witness() -> None:
    """The storage failed as it came; of a view with it only a majority goes on, until all know better."""
    run = _joined_by_one_that_could_not_read()
    assert not run.said("A", "view")[-1]["witness"]
    run.tell("D", "has_read", worker="D0", claim=CLAIM)
    assert run.said("A", "regroup") == [{"say": "regroup", "generation": 2}]
    run.over("ABD", at=BOUNDARY)
    assert run.view("D") == "A0 B0 D0"
    assert run.said("D", "view")[-1]["witness"]
    run.meets("ABD")
    run.later(10.0)
    assert run.said("A", "regroup") == [{"say": "regroup", "generation": 2}]


def test_a_newcomer_that_reads_another_claim_later_changes_nothing() -> None:
    run = _joined_by_one_that_could_not_read()
    run.tell("D", "has_read", worker="D0", claim={**CLAIM, "nonce": "of a folder of its own"})
    run.later(10.0)
    assert not run.said("A", "regroup")


def _joined_by_one_that_could_not_read() -> Run:
    """In view 2, of which nobody was asked to regroup."""
    run = Run("AB", witness=True)
    run.moves("AB")
    run.reports["D"], run.heard["D"] = NodeReport(), []
    run.tell("D", "hello", slots=1, address="10.0.0.68", port=1)
    run.tell("D", "started", worker="D0", local_rank=0)
    run.tell("D", "ready", worker="D0", shares=8, identity="one")
    run.later(1.0)
    assert run.said("A", "regroup").pop()["generation"] == 1
    run.over("AB", at=BOUNDARY)
    run.meets("ABD")
    run.heard["A"] = run.said("A", "view")
    return run


def test_one_that_does_not_come_is_gone_where_the_others_are_a_majority() -> None:
    run = Run("ABCDE", witness=False)
    run.moves("BCE", lost="A")
    run.over("BCE")
    run.later(1.0)
    assert run.hub.generation == 1
    run.later(1.0)
    assert run.view("B") == "B0 C0 E0"


def test_a_minority_stays_says_why_and_goes_on_once_the_others_are_back() -> None:
    run = Run("ABCD", witness=False)
    run.moves("BC", lost="AD")
    run.over("BC")
    run.later(60.0)
    assert run.hub.generation == 1
    assert "2 of the 4 nodes of view 1 are here" in run.said("B", "status")[-1]["text"]
    assert run.hub.missing() == ["A", "D"]
    run.comes("D")
    run.over("D")
    assert run.view("B") == "B0 C0 D0"


def test_one_half_leaves_the_claim_to_the_others_for_a_moment() -> None:
    run = Run("ABCD", witness=True)
    run.moves("BC", lost="AD")
    run.over("BC")
    assert not run.said("B", "claim")
    assert "2 of the 4 nodes of view 1 are here, which is no majority" in run.said("B", "status")[-1]["text"]
    run.later(1.1)
    run.claims("B")
    assert run.view("B") == "B0 C0"


def test_the_side_that_does_not_get_the_claim_is_moved_on_from() -> None:
    run = Run("ABCD", witness=True)
    run.moves("BC", lost="AD")
    run.over("BC")
    run.later(1.1)
    run.loses_claim("B", to="AD")
    assert run.said("B", "moved_on")
    assert run.said("C", "moved_on")
    assert run.hub.generation == 1


def test_a_storage_that_fails_is_asked_again() -> None:
    run = Run("ABC", witness=True)
    run.moves("BC", lost="A")
    run.over("BC")
    run.tell("B", "claimed", worker="B0", generation=2, claim=None, why="timed out")
    assert any("timed out" in status["text"] for status in run.said("B", "status"))
    assert len(run.said("B", "claim")) == 1
    run.later(1.1)
    assert len(run.said("B", "claim")) == 2
    run.claims("B")
    assert run.view("B") == "B0 C0"


def test_another_one_is_asked_where_the_first_dies_as_it_claims() -> None:
    run = Run("ABCD", witness=True)
    run.moves("BCD", lost="A")
    run.over("BCD")
    assert run.said("B", "claim")
    run.tell("B", "exited", worker="B0", signal="SIGKILL")
    run.claims("C")
    assert run.view("C") == "C0 D0"


def _is_back_before_the_others_stand(run: Run, nodes: str) -> None:
    for node in nodes:
        run.orders(run.hub.lost(run.now_s, node, dead=False))
    for node in nodes:
        run.comes(node)
    run.over("".join(node for node in "ABC" if f"{node}0" in run.reports[node].workers))


def test_a_node_that_is_back_with_the_state_costs_no_claim() -> None:
    run = Run("ABC", witness=True)
    _is_back_before_the_others_stand(run, "C")
    assert run.view("C") == "A0 B0 C0"
    assert not any(run.said(node, "claim") for node in "ABC")


@pytest.mark.parametrize(
    ("killed", "stand_after_s", "asked"),
    [
        pytest.param("A", 0.0, False, id="the coordinator, and the others stand soon"),
        pytest.param("A", 4.0, True, id="the coordinator, and they take long"),
        pytest.param("C", 60.0, False, id="another one, however long they take"),
    ],
)
def test_who_stands_long_after_the_last_heartbeats_needs_the_claim(
    killed: str, stand_after_s: float, asked: bool
) -> None:
    """Nobody has given any in the storage since, and others may have begun anew from it."""
    run, others = Run("ABC", witness=True), "ABC".replace(killed, "")
    run.is_killed(killed, f"{killed}0", step=7)
    run.later(stand_after_s)
    run.over(others)
    assert bool(run.said(others[0], "claim")) is asked
    assert len(run.said(others[0], "view")) == (1 if asked else 2)
    if asked:
        run.claims(others[0])
    assert run.view(others[1]) == f"{others[0]}0 {others[1]}0"


def test_while_the_storage_does_not_answer_people_are_told_once_and_the_run_ends_in_the_end() -> None:
    run = Run("AB", witness=True)
    run.is_killed("A", "A0", step=7)
    run.later(4.0)
    run.over("B")
    for seconds in (4.0, 2.0, 600.0):
        run.later(seconds)
    told = [status["text"] for status in run.said("A", "status") if "has not said who may go on" in status["text"]]
    assert len(told) == 1
    assert "heartbeats" in told[0]
    run.later(600.0)
    assert "the storage did not answer" in run.said("B", "run_is_over")[-1]["why"]


def test_a_run_of_one_node_asks_for_no_claim() -> None:
    """Its storage need not be one that can tell two sides apart, and it has none."""
    hub = Hub(nodes_max=1)
    hub.receive(0.0, "A", {"say": "hello", "slots": 2, "address": "10.0.0.1", "port": 1})
    for rank in (0, 1):
        hub.receive(0.0, "A", {"say": "started", "worker": f"A{rank}", "local_rank": rank})
    for rank in (0, 1):
        hub.receive(0.0, "A", {"say": "ready", "worker": f"A{rank}", "shares": 8, "identity": "one"})
    for agreed in (False, True):
        facts = {"worker": "A0", "generation": 1, "claim": CLAIM, "agreed": agreed}
        hub.receive(0.0, "A", {"say": "witness", **facts})
    hub.receive(0.0, "A", {"say": "entered", "worker": "A0", "generation": 1})
    hub.receive(1.0, "A", {"say": "exited", "worker": "A0", "signal": "SIGKILL"})
    facts = {"generation": 1, "step": 7, "at": MID_STEP, "lost": True}
    orders = hub.receive(60.0, "A", {"say": "view_is_over", "worker": "A1", **facts})
    assert [order.message["workers"] for order in orders if order.message["say"] == "view"] == [["A1"]]


def test_a_view_that_has_not_met_gives_no_heartbeats() -> None:
    run = Run("ABC", witness=True)
    run.is_killed("A", "A0", step=7)
    run.over("BC")
    run.orders(run.hub.lost(run.now_s, "C", dead=False))
    run.later(60.0)
    run.comes("C")
    run.over("BC")
    assert run.view("C") == "B0 C0"
    assert len(run.said("C", "view")) == 2
    run.claims("B")
    assert len(run.said("C", "view")) == 3


def test_the_majority_of_a_run_whose_storage_is_no_witness_asks_it_for_nothing() -> None:
    """It says so to the hub, and grants nothing: it creates objects although they exist."""
    run = Run("ABC", witness=False)
    for node in "ABC":
        run.tell(node, "witness", worker=f"{node}0", generation=1, claim=CLAIM, agreed=False)
    run.is_killed("A", "A0", step=7)
    run.later(60.0)
    run.over("BC")
    assert run.view("B") == "B0 C0"
    assert not run.said("B", "claim")


def test_a_claim_is_for_the_nodes_that_it_names_and_is_asked_for_again_where_one_of_them_is_lost() -> None:
    """The one that is lost may be with others, whom the newest claim does not name; or it may ask by itself."""
    run = Run("ABCY", witness=True)
    run.orders(run.hub.lost(0.0, "C", dead=False))
    run.over("ABY")
    assert run.said("A", "claim")[-1]["nodes"] == ["A", "B", "Y"]
    run.orders(run.hub.lost(1.0, "Y", dead=False))
    assert run.said("A", "claim")[-1]["nodes"] == ["A", "B"]
    first = {"claim": 2, "nonce": "second", "world": {"nodes": ["A", "B", "Y"]}}
    run.tell("A", "claimed", worker="A0", generation=2, claim=first)
    assert run.hub.generation == 1
    run.tell("A", "claimed", worker="A0", generation=2, claim={**first, "claim": 3, "world": {"nodes": ["A", "B"]}})
    assert run.view("A") == "A0 B0"
    assert run.said("B", "view")[-1]["claim"]["claim"] == 3


def test_one_that_was_away_while_the_claim_was_asked_for_makes_it_be_asked_for_again() -> None:
    run = Run("ABC", witness=True)
    run.orders(run.hub.lost(0.0, "C", dead=False))
    run.over("AB")
    run.hub.loses("B", dead=False)
    run.comes("B")
    run.over("B")
    assert len(run.said("A", "claim")) == 2
    run.claims("A")
    assert run.view("B") == "A0 B0"


def test_who_is_not_named_by_the_newest_claim_is_moved_on_from_and_the_others_ask_again() -> None:
    run = Run("ABCD", witness=True)
    run.moves("BCD", lost="A")
    run.over("BCD")
    run.loses_claim("B", to="ABC")
    assert run.said("D", "moved_on")
    assert not run.said("B", "moved_on") + run.said("C", "moved_on")
    run.later(1.1)
    assert run.said("B", "claim")[-1]["nodes"] == ["B", "C"]


def test_another_is_asked_where_one_stays_in_its_storage_and_who_waits_too_long_ends() -> None:
    run = Run("ABC", witness=True)
    run.moves("BC", lost="A")
    run.over("BC")
    assert not run.said("C", "claim")
    run.later(5.1)
    assert len(run.said("B", "claim")) == len(run.said("C", "claim")) == 1
    run.later(600.0)
    run.later(200.0)
    assert "A may be going on elsewhere" in run.said("B", "run_is_over")[-1]["why"]


@pytest.mark.parametrize("dies", ["before it is asked", "once it was asked", "under the hub before"])
def test_a_worker_that_is_dying_is_not_asked_for_the_claim(dies: str) -> None:
    """Its agent says that it has ended before its process is gone. What is asked of it goes to a process that reads
    nothing any more, and the others would stand still for as long as one has to answer."""
    run = Run("ABC", witness=True)
    if dies == "under the hub before":
        run.is_killed("B", "B0", step=7)
        run.moves("BC", lost="A")
    else:
        run.orders(run.hub.lost(0.0, "A", dead=False))
    if dies == "before it is asked":
        run.is_killed("B", "B0", step=7)
    run.over("C" if dies != "once it was asked" else "BC")
    asked_before = len(run.said("B", "claim"))
    if dies == "once it was asked":
        assert asked_before == 1
        run.is_killed("B", "B0", step=7)
    run.later(2.6)  # those who are fewer than half of the nodes let others try first
    assert len(run.said("C", "claim")) == 1
    run.later(30.0)
    assert len(run.said("B", "claim")) == asked_before
    run.claims("C")
    assert run.view("C") == "C0"


@pytest.mark.parametrize("answers", [False, True])
def test_newcomers_hear_that_one_who_is_away_may_go_on_under_a_claim_of_this_hub_s_asking(answers: bool) -> None:
    """Its agent's endpoint stands in that claim, and answers them: they would take the next one, and evict others."""
    run = Run("ABC", witness=True)
    run.is_killed("A", "A0", step=7)
    run.orders(run.hub.lost(0.0, "B", dead=False))
    run.over("C")
    (words,) = run.said("C", "claim")
    if answers:
        run.tell("C", "claimed", worker="C0", generation=words["generation"], claim=None, why="it failed")
    run.orders(run.hub.lost(0.0, "C", dead=False))
    run.tell("A", "started", worker="A1", local_rank=0)
    run.tell("A", "ready", worker="A1", shares=8, identity="one")
    run.later(6.0)
    assert run.view("A") == "A1"
    assert run.said("A", "view")[-1]["unanswered"] == (not answers)


@pytest.mark.parametrize(
    ("away", "unanswered"),
    [
        pytest.param("", False, id="all agents of the last view are here"),
        pytest.param("left", False, id="one has left in order"),
        pytest.param("lost", True, id="one is away, and its worker may go on"),
        pytest.param("refuses", True, id="one refuses connections, or a firewall does"),
    ],
)
def test_newcomers_of_a_hub_that_took_over_ask_the_storage_only_where_somebody_may_be_elsewhere(
    away: str, unanswered: bool
) -> None:
    """From the loss of the first host on, a loss of all workers cost 15 s of looking for heartbeats, for the life of
    the run: nobody but dead processes of agents that were here could have given any."""
    run = Run("ABC", witness=True)
    run.moves("BC", lost="A")
    run.over("BC")
    run.claims("B")
    assert run.view("C") == "B0 C0"
    run.meets("BC")
    if away == "left":
        run.tell("C", "bye")
    elif away:
        run.hub.loses("C", dead=False, refuses=away == "refuses")
    here = "B" if away else "BC"
    for node in here:
        run.is_killed(node, f"{node}0", step=9)
        run.tell(node, "started", worker=f"{node}1", local_rank=0)
    for node in here:
        run.tell(node, "ready", worker=f"{node}1", shares=8, identity="one")
    run.later(6.0)
    assert run.view("B") == " ".join(f"{node}1" for node in here)
    assert run.said("B", "view")[-1]["unanswered"] == unanswered


@pytest.mark.parametrize("met", [True, False])
def test_newcomers_look_for_one_that_went_on_without_their_hub_s_node(met: bool) -> None:
    """It needs no other claim, and asks nobody. Until its endpoint had moved, they took its run: their own answered."""
    run = Run("AB", witness=True)
    run.is_killed("A", "A0", step=7)
    run.over("B")
    assert run.view("B") == "B0"
    if met:
        run.meets("B")
    run.orders(run.hub.lost(run.now_s, "B", dead=False))
    for life in (1, 2):
        run.tell("A", "started", worker=f"A{life}", local_rank=0)
        run.tell("A", "ready", worker=f"A{life}", shares=8, identity="one")
        run.later(6.0)
        assert run.view("A") == f"A{life}"
        assert run.said("A", "view")[-1]["unanswered"]
        run.fails("A", f"A{life}", step=life)  # it found that somebody lives


@pytest.mark.parametrize(("knowing", "unanswered"), [("ABC", False), ("AC", True), ("C", True)])
def test_who_has_not_told_this_hub_of_the_last_view_may_be_with_others_meanwhile(
    knowing: str, unanswered: bool
) -> None:
    """The end of its connection has not been noticed: with those who came here since, it may hold the state."""
    run = Run("ABC", witness=True)
    before = {node: NodeReport.from_document(report.document()) for node, report in run.reports.items()}
    run.over("ABC", at=BOUNDARY)
    assert run.hub.generation == 2
    run.meets("ABC")
    for node in "ABC":
        run.is_killed(node, f"{node}0", step=9)
        if node not in knowing:
            run.reports[node] = before[node].without_workers()
    run.moves("ABC")
    for node in "ABC":
        run.tell(node, "started", worker=f"{node}1", local_rank=0)
    for node in "ABC":
        run.tell(node, "ready", worker=f"{node}1", shares=8, identity="one")
    run.later(20.0)
    assert run.view("A") == "A1 B1 C1"
    assert run.said("A", "view")[-1]["unanswered"] == unanswered


def test_an_answer_that_comes_when_all_are_back_makes_the_next_view_save_under_that_claim() -> None:
    run = Run("ABC", witness=True)
    run.orders(run.hub.lost(0.0, "C", dead=False))
    run.over("AB")
    words = run.said("A", "claim")[-1]
    run.comes("C")
    run.over("C")
    assert run.view("C") == "A0 B0 C0"
    claim = {"claim": 2, "nonce": "second", "world": {"nodes": words["nodes"]}}
    run.tell("A", "claimed", worker="A0", generation=words["generation"], claim=claim)
    assert run.said("C", "broken")[-1]["generation"] == 2
    run.over("ABC")
    assert run.said("C", "view")[-1]["claim"]["claim"] == 2


def test_a_view_that_does_not_come_for_want_of_nodes_is_noted_by_nobody() -> None:
    """Or who had noted it would stand still, once its only node is lost."""
    run = Run("ABCDE", witness=False, nodes_min=3)
    for node in "BCDE":
        run.is_killed(node, f"{node}0", step=7)
    run.over("A")
    run.moves("BCDE", lost="A")
    run.replaced("BCDE")
    run.later(30.0)
    assert run.view("B") == "B1 C1 D1 E1"


def test_who_is_in_no_part_of_the_next_view_notes_it_and_is_counted() -> None:
    run = Run("ABC", witness=False)
    for node in "BC":
        run.is_killed(node, f"{node}0", step=7)
    run.over("A")
    noted = [run.said(node, "take_note") for node in "BC"]
    assert [[message["nodes"] for message in messages] for messages in noted] == [[["A"]], [["A"]]]
    assert run.view("A") == "A0"
    run.moves("BC", lost="A")  # which is cut off, and goes on
    run.replaced("BC")
    run.later(30.0)
    assert run.hub.generation < 3
    assert not run.said("B", "view")[1:], "they are two of the three, and know that A may go on"


def test_a_view_that_was_to_come_is_not_taken_for_the_one_that_has_met() -> None:
    """Two sides of a cut go on from the view that has met, or wait for it; both had, where one of its nodes was noted
    as all of it."""
    run = Run("ABCDEFG", witness=False, nodes_min=3)
    for node in "BCDEFG":
        run.is_killed(node, f"{node}0", step=7)
    run.over("A", at=BOUNDARY)
    run.replaced("BC")
    assert run.view("A") == "A0 B1 C1"
    run.moves("DEFABC", lost="G")
    for node, worker in (("A", "A0"), ("B", "B1"), ("C", "C1")):
        run.tell(node, "entered", worker=worker, generation=2)
    for node in "BCF":
        run.orders(run.hub.lost(run.now_s, node, dead=False))
    run.over("A", step=8)
    run.replaced("DE")
    run.later(30.0)
    assert run.view("A") == "A0 B1 C1", "it is one of the three, and two may go on"


def test_newcomers_leave_the_run_to_others_who_may_hold_its_state() -> None:
    """Their connection broke before they had the state: they began from the storage, which was the others', and failed.
    Also where they are the most of the view."""
    run = _newcomers_alone()
    run.later(4.0)
    assert run.hub.generation == 2
    assert run.hub.missing() == ["A"]
    run.later(2.0)
    assert run.hub.generation == 3


def test_newcomers_do_not_wait_for_one_whose_machine_takes_no_connections() -> None:
    run = _newcomers_alone()
    run.hub.loses("A", dead=False, refuses=True)
    run.later(0.1)
    assert run.hub.generation == 3


def _newcomers_alone() -> Run:
    """B's and C's workers were replaced, and A, with the state and the hub, is lost before they have it."""
    run = Run("ABC", witness=True)
    for node in "BC":
        run.is_killed(node, f"{node}0", step=7)
    run.replaced("BC")
    run.over("A", at=BOUNDARY)
    assert run.view("B") == "A0 B1 C1"
    run.moves("BC", lost="A")
    for node in "BC":
        facts = {"generation": 2, "step": -1, "at": BOUNDARY, "lost": True}
        run.tell(node, "view_is_over", worker=f"{node}1", **facts)
    return run
