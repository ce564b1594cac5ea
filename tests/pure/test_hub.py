"""What the hub answers, story by story: starts, losses, nodes. What holds in every story is test_hub_simulated.py's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from elastic.membership.messages.messages import TO_HUB, TO_WORKER, parse
from elastic.membership.messages.wire import WireError
from elastic.membership.rules.next_view import BOUNDARY
from elastic.membership.succession.node_report import NodeReport
from tests.kit.stage import MID_STEP, Stage, trains


def test_a_lost_peer_is_told_by_those_who_notice_before_its_agent_does() -> None:
    stage = trains(4)
    assert stage.over("A1").to("broken") == "A0 A2 A3"
    assert stage.over("A0 A3").orders == []
    assert stage.killed("A2").view == "A0 A1 A3"


def test_a_view_says_who_is_not_in_it_and_was_not_lost() -> None:
    """One that leaves, and one that has received no state yet and joins later; not those that were killed."""
    stage = trains(5)
    stage.killed("A1")
    stage.leaves("A2", lost=True)
    stage.over("A3", step=-1)
    assert stage.over("A0 A4").view == "A0 A4"
    assert sorted(stage.only("view")["not_lost"]) == ["A2", "A3"]
    assert [one["worker"] for one in stage.only("view")["gone"]] == ["A1"]


def test_a_hub_that_takes_over_knows_whom_the_run_has_lost() -> None:
    """Of a node that was lost with the hub before nothing was heard here; of one that had said that it goes, something
    was."""
    before = trains(1, nodes=3)
    view = {"say": "view", **before.only("view")}
    stage = Stage(nodes=0, nodes_max=3, takes_over=True)
    report = NodeReport()
    report.note_said(parse(TO_HUB, {"say": "started", "worker": "C0", "local_rank": 0}))
    report.note_ordered("C0", parse(TO_WORKER, view))
    stage.hub.without(stage.now_s, "B", departed=True)
    stage.lost("A")
    stage.told("C", "hello", slots=1, report=report.document())
    assert stage.over("C0").view == "C0"
    assert stage.only("view")["not_lost"] == ["B0"], "A0 was"


def test_a_hub_that_takes_over_looks_through_the_view_once_however_many_nodes_report_it() -> None:
    """Each of 2,048 reports was compared with all of 16,384 workers: a third of the time of a takeover."""

    class Workers(list[str]):
        looked_through = 0

        def __iter__(self) -> Iterator[str]:
            Workers.looked_through += 1
            return super().__iter__()

    looks = []
    for nodes in (2, 3):
        names = "ABC"[:nodes]
        view = parse(TO_WORKER, {"say": "view", **trains(1, nodes=nodes).only("view")})
        view = replace(view, workers=Workers(view.workers))
        stage = Stage(nodes=0, nodes_max=nodes, takes_over=True)
        Workers.looked_through = 0
        for node in names:
            report = NodeReport()
            report.note_said(parse(TO_HUB, {"say": "started", "worker": f"{node}0", "local_rank": 0}))
            report.note_ordered(f"{node}0", replace(view, workers=[*view.workers]))
            stage.told(node, "hello", slots=1, report={**report.document(), "view": view})
        looks.append(Workers.looked_through - nodes)  # less what is copied above
    assert looks[0] == looks[1]


def test_a_newcomer_that_dies_while_it_is_waited_for_costs_one_view() -> None:
    stage = trains(2)
    stage.killed("A1")
    stage.over("A0")
    stage.begin("A1")
    stage.killed("A1'")
    assert stage.over("A0", BOUNDARY).view == "A0"


def test_spares_wait_outside_and_come_in_when_one_is_lost() -> None:
    stage = trains(3, shares=2)
    assert stage.view == "A0 A1"
    assert stage.to("regroup") == ""
    assert stage.later(10).to("regroup") == ""
    stage.killed("A0")
    assert stage.over("A1").view == "A1"
    assert stage.to("regroup") == "A1"
    assert stage.over("A1", BOUNDARY).view == "A1 A2"


def test_people_are_told_of_spares_once_for_so_many() -> None:
    stage = trains(4, shares=2, nodes_max=2)
    text = stage.only("status")["text"]
    assert text.startswith("2 workers wait as spares")
    assert "virtual_workers=2" in text
    assert stage.later(10).to("status") == ""
    stage.killed("A3")
    assert stage.begin("A3").to("status") == ""
    stage.killed("A0")
    assert stage.over("A1").to("status") == ""
    assert stage.over("A1", BOUNDARY).to("status") == "", "one is taken in, and one is left"
    assert stage.begin("A0").to("status") == ""
    stage.comes("B", 1)
    assert stage.begin("B0").only("status")["text"].startswith("3 workers wait")


def test_below_its_minimum_a_run_waits_says_so_once_and_ends_after_the_deadline() -> None:
    stage = trains(1, nodes=2, nodes_min=2, below_min_s=600)
    stage.lost("B")
    assert stage.over("A0").to("status") == ""  # its workers may be on their way
    assert stage.later(2).only("status")["text"].startswith("1 of at least 2 nodes are here (A)")
    assert (stage.to("save"), stage.only("save")["waits"]) == ("A0", True)
    assert stage.later(597).orders == []  # the save failed
    stage.later(2)
    assert (stage.later(0.1).to("save"), stage.only("save")["waits"]) == ("A0", False)
    stage.saved("A0")
    assert (stage.to("end"), stage.only("run_is_over")["failed"]) == ("A0", True)
    assert "1 of at least 2 nodes were here for 600 s" in stage.only("run_is_over")["why"]
    assert "what was done is saved, 7 steps" in stage.only("run_is_over")["why"]


@pytest.mark.parametrize("becomes", ["its save fails", "it is killed", "it is late"])
def test_a_run_that_waited_too_long_and_could_not_save_says_so(becomes: str) -> None:
    stage = trains(1, nodes=2, nodes_min=2, below_min_s=600, ending_s=60)
    stage.lost("B")
    stage.over("A0")
    if becomes == "it is killed":
        stage.killed("A0")
        stage.begin("A0")
    stage.later(0.1)
    stage.later(601)
    stage.later(601)
    if becomes == "its save fails":
        stage.ends("A0", 1)
    elif becomes == "it is late":
        stage.later(121)
    else:
        stage.later(0.1)
    why = stage.only("run_is_over")["why"]
    assert "of 7 steps the newest are not known to be saved; what was committed is whole" in why
    assert "or wait longer" in why


def test_below_its_minimum_a_run_has_saved_what_it_holds_and_then_waits() -> None:
    """Nobody knew better than to keep ten minutes' only copy of the newest state on the one machine that was left."""
    stage = trains(2, nodes=2, nodes_min=2, below_min_s=600)
    stage.together("B0 B1", "leaving", generation=1, step=7, saved=False)
    assert stage.over("A0 A1", BOUNDARY).to("released") == "B0 B1"
    stage.lost("B")
    assert stage.later(2).to("save") == "A0"
    assert stage.saved("A0").orders == []
    assert stage.later(300).to("save") == ""
    stage.comes("C", 1)
    assert stage.begin("C0").view == "A0 A1 C0"


def test_a_run_that_waits_too_long_below_its_minimum_and_has_saved_ends_at_once() -> None:
    stage = trains(1, nodes=2, nodes_min=2, below_min_s=600)
    stage.lost("B")
    stage.over("A0", BOUNDARY)
    stage.later(2)
    stage.saved("A0")
    stage.later(599)
    assert stage.later(0.1).to("save") == ""
    assert stage.only("run_is_over")["failed"] is True


def test_where_the_next_coordinator_is_behind_nobody_is_asked_to_save_for_the_wait() -> None:
    """Whoever saves goes on saving; and who is ahead gives the state to who is behind when the next view forms."""
    stage = trains(2, nodes=2, nodes_min=2, below_min_s=600)
    stage.lost("B")
    stage.over("A0", step=7)
    stage.over("A1", BOUNDARY, step=8)
    assert (stage.later(2).to("status"), stage.to("save")) == ("A", "")


def test_a_first_view_waits_for_the_nodes_that_have_met() -> None:
    """As long as it takes a node to come; and for its workers, once it has, as for any."""
    stage = Stage(1, nodes=2, nodes_max=3, nodes_min=1, met="ABC", start_s=120)
    stage.begin("A0 B0")
    assert stage.view is None
    assert stage.later(4).orders == []
    stage.comes("C", 1)
    assert stage.later(100).orders == []
    assert stage.begin("C0").view == "A0 B0 C0"


def test_a_first_view_waits_five_seconds_for_a_node_that_has_met_and_does_not_come() -> None:
    """It waited two minutes for one that had died in between."""
    stage = Stage(1, nodes=2, nodes_min=1, met="ABC", start_s=120)
    stage.begin("A0 B0")
    assert stage.later(4.9).orders == []
    assert stage.later(0.2).view == "A0 B0"


def test_until_there_is_a_view_the_roster_names_all_who_have_met_and_are_not_lost() -> None:
    """In the order in which each of them knows the others, so that no two take themselves for the next hub."""

    def roster(stage: Stage) -> list[str]:
        return [node for node, *_ in stage.only("roster")["nodes"]]

    stage = Stage(1, nodes=1, nodes_max=4, met="ACB")
    stage.told("D", "hello", slots=1, address="10.0.0.9", port=1)
    assert roster(stage) == list("ACBD")
    stage.lost("C")
    stage.told("B", "hello", slots=1, address=f"10.0.0.{ord('B')}", port=1)
    assert roster(stage) == list("ABD")
    stage.begin("A0 B0 D0")
    assert roster(stage) == list("DB")  # this stage's A listens nowhere


def test_a_node_too_many_is_told_that_the_run_is_full_and_disturbs_nobody() -> None:
    stage = trains(1, nodes=2, nodes_max=2)
    assert stage.comes("C", 1).only("full") == {"say": "full", "nodes_max": 2, "nodes": []}
    assert stage.begin("C0").orders == []
    stage.ends("C0", 1)
    assert stage.comes("C", 1).to("full") == "C", "it asks again"
    assert stage.lost("C").orders == []


def test_a_node_that_waits_for_a_place_gets_the_one_that_comes_free() -> None:
    """With workers that are ordered then: those that it had started ended with its first refusal."""
    stage = trains(1, nodes=2, nodes_max=2)
    stage.comes("C", 1)
    stage.lost("B")
    stage.over("A0")
    report = NodeReport().document()
    assert stage.told("C", "hello", slots=1, report=report).to("start") == "C"
    assert stage.begin("C0").to("regroup") == "A0"
    assert stage.over("A0", BOUNDARY).view == "A0 C0"
    assert stage.told("C", "hello", slots=1, report=report).orders == [], "it asked once more before it heard"


def test_a_newcomer_of_another_identity_joins_only_if_it_accepts_that() -> None:
    stage = trains(2)
    stage.killed("A1")
    stage.over("A0")
    assert stage.begin("A1", identity="two").only("identity")["identity"] == "one"
    assert stage.later(10).to("regroup") == ""
    assert stage.ready("A1'", identity="two", accepted=True).to("regroup") == "A0"
    assert stage.over("A0", BOUNDARY).view == "A0 A1'"


def test_a_spare_that_was_ready_before_the_run_had_an_identity_is_compared_too() -> None:
    stage = Stage(3, shares=2)
    stage.begin("A0 A1")
    assert stage.begin("A2", identity="two").view == "A0 A1"
    assert stage.only("identity")["identity"] == "one"


def test_what_is_put_on_the_board_reaches_the_members_and_nobody_else() -> None:
    stage = trains(3, shares=2)
    stage.worker("A0", "put", generation=1, key="address", value="eA==")
    assert stage.to("board") == "A0 A1"
    assert stage.orders[0].message == {"say": "board", "generation": 1, "entries": {"address": "eA=="}}


def test_words_that_nobody_knows_are_refused_and_those_of_nobody_ignored() -> None:
    stage = trains(1)
    with pytest.raises(WireError, match="no known word: 'sings'"):
        stage.worker("A0", "sings")
    assert stage.worker("nobody", "finished", step=1).orders == []


def test_a_node_speaks_for_its_own_workers_alone() -> None:
    """Ids were bound to nobody: any node could end, hang or replace another one's workers."""
    stage = trains(2, nodes=2)
    seen = {"worker": "B0", "phase": 1, "step": 7, "sign": 3, "quiet_s": 99, "limit_s": 1}
    for word, facts in (
        ("exited", {"worker": "B0", "signal": "SIGKILL"}),
        ("view_is_over", {"worker": "B0", "generation": 1, "step": 7, "at": MID_STEP}),
        ("started", {"worker": "B0", "local_rank": 0}),
        ("sighted", {"workers": [seen]}),
    ):
        with pytest.raises(WireError, match="B0"):
            stage.told("A", word, **facts)
    assert stage.told("nobody", "started", worker="C0", local_rank=0).orders == []
    assert stage.over("A0 A1 B0 B1").view == "A0 A1 B0 B1"
