"""A hub is lost, and the next one learns of the run from the nodes that come to it; nodes are lost, and the others may
go on or may not."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from elastic.membership.hub.hub import Hub
from elastic.membership.messages.messages import TO_AGENT, TO_HUB, TO_WORKER, parse
from elastic.membership.messages.wire import WireError
from elastic.membership.progress import Phase
from elastic.membership.rules.next_view import BOUNDARY
from elastic.membership.succession.node_report import NodeReport
from tests.kit.stage import MID_STEP

BEACON = {"nonce": "b", "endpoint": {}, "hub": {"host": "10.0.0.2", "port": 2, "nonce": "n"}}
CLAIM = {"claim": 1, "nonce": "first"}


class Run:
    """Nodes with a worker each, called A0, B0, …, in view 1 under the first hub."""

    def __init__(self, nodes: str, *, witness: bool, nodes_min: int = 1) -> None:
        self.now_s = 0.0
        self.nodes_min = nodes_min
        self.reports = {node: NodeReport() for node in nodes}
        self.heard: dict[str, list[dict[str, Any]]] = {node: [] for node in nodes}
        self.hub = Hub(nodes_max=len(nodes), nodes_first=len(nodes), nodes_min=nodes_min)
        for node in nodes:
            self.tell(node, "hello", places=1, address=f"10.0.0.{ord(node)}", port=1)
            self.tell(node, "started", worker=f"{node}0", local_rank=0)
        for node in nodes:
            self.tell(node, "ready", worker=f"{node}0", shares=8, identity="one")
        for agreed in (False, True) if witness else ():
            for node in nodes:
                self.tell(node, "witness", worker=f"{node}0", generation=1, claim=CLAIM, agreed=agreed)
        self.meets(nodes)

    def tell(self, node: str, say: str, **facts: Any) -> None:
        message = {"say": say, **facts}
        self.reports[node].note_said(parse(TO_HUB, message))
        self.orders(self.hub.receive(self.now_s, node, message))

    def orders(self, orders: list[Any]) -> None:
        for order in orders:
            said = parse(TO_AGENT if order.worker is None else TO_WORKER, order.message)
            self.reports[order.node].note_ordered(order.worker, said)
            self.heard[order.node].append(order.message)
            if order.message["say"] == "take_note":
                self.tell(order.node, "noted", number=order.message["number"])

    def meets(self, nodes: str) -> None:
        for node in nodes:
            self.tell(node, "entered", worker=f"{node}0", generation=self.hub.generation)

    def over(self, nodes: str, *, step: int = 7, at: str = MID_STEP) -> None:
        for node in nodes:
            facts = {"generation": self.hub.generation, "step": step, "at": at, "lost": at != BOUNDARY}
            self.tell(node, "view_is_over", worker=f"{node}0", **facts)

    def fails(self, node: str, worker: str, *, step: int) -> None:
        self.tell(node, "failed", worker=worker, error="ValueError: bad", step=step)
        self.tell(node, "exited", worker=worker, code=1)

    def is_killed(self, node: str, worker: str, *, step: int) -> None:
        self.tell(node, "exited", worker=worker, signal="SIGKILL", step=step)

    def moves(self, nodes: str, *, lost: str = "", left: str = "") -> None:
        """The hub is gone; these nodes come to the next one."""
        self.hub = Hub(nodes_max=9, takes_over=True, nodes_min=self.nodes_min)
        for node in (*lost, *left):
            self.orders(self.hub.without(self.now_s, node, left=node in left))
        for node in nodes:
            self.comes(node)

    def comes(self, node: str) -> None:
        report = self.reports[node].document()
        hello = {"say": "hello", "places": 1, "address": f"10.0.0.{ord(node)}", "port": 1, "report": report}
        self.orders(self.hub.receive(self.now_s, node, hello))

    def replaced(self, nodes: str) -> None:
        """Their workers, by others, A1 and so on, that are ready."""
        for node in nodes:
            self.tell(node, "started", worker=f"{node}1", local_rank=0)
            self.tell(node, "ready", worker=f"{node}1", shares=8, identity="one")

    def later(self, seconds: float) -> None:
        self.now_s += seconds
        self.orders(self.hub.tick(self.now_s))

    def said(self, node: str, say: str) -> list[dict[str, Any]]:
        return [message for message in self.heard[node] if message["say"] == say]

    def view(self, node: str) -> str:
        """Of the newest view that its worker was told of."""
        return " ".join(self.said(node, "view")[-1]["workers"])

    def claims(self, node: str) -> None:
        """Its worker was asked to, and does."""
        (words,) = self.said(node, "claim")[-1:]
        claim = {"claim": 2, "nonce": "second", "world": {"nodes": words["nodes"]}}
        self.tell(node, "claimed", worker=f"{node}0", generation=words["generation"], claim=claim)

    def loses_claim(self, node: str, *, to: str, number: int = 2) -> None:
        """Its worker was asked to, and finds that others have it."""
        (words,) = self.said(node, "claim")[-1:]
        theirs = {"claim": number, "nonce": "theirs", "world": {"nodes": list(to)}}
        facts = {"generation": words["generation"], "claim": theirs, "why": f"claim {number} is newer"}
        self.tell(node, "claimed", worker=f"{node}0", moved_on=True, **facts)


def test_a_hub_that_hands_over_costs_no_view() -> None:
    run = Run("ABC", witness=True)
    run.tell("A", "leaving", worker="A0", generation=1, step=7)
    run.over("BC", at=BOUNDARY)
    run.tell("A", "exited", worker="A0", code=0, expected=True)
    run.meets("BC")
    run.moves("B", left="A")
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
    run.orders(run.hub.without(run.now_s, "A", left=False))
    run.comes("B")
    run.reports["D"], run.reports["E"], run.heard["D"], run.heard["E"] = NodeReport(), NodeReport(), [], []
    run.comes("D")
    run.comes("E")
    assert not run.said("D", "full")
    assert run.said("E", "full")[-1]["nodes"] == [["B", "10.0.0.66", 1], ["D", "10.0.0.68", 1]]
    run.comes("C")
    assert not run.said("C", "full")
    run.later(10.0)
    run.comes("E")
    assert len(run.said("E", "full")) == 2


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
    run.tell("D", "hello", places=1, address="10.0.0.68", port=1)
    run.tell("D", "started", worker="D0", local_rank=0)
    run.tell("D", "ready", worker="D0", shares=8, identity="one")
    run.later(1.0)
    assert run.said("A", "regroup").pop()["generation"] == 1
    run.over("AB", at=BOUNDARY)
    run.meets("ABD")
    run.heard["A"] = run.said("A", "view")
    return run


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


def test_the_coordinator_learns_where_the_hub_is_though_no_view_comes() -> None:
    run = Run("ABC", witness=True)
    run.hub = Hub(nodes_max=9, takes_over=True, beacon=BEACON)
    run.comes("B")
    assert not run.said("B", "hub_at")
    run.comes("A")
    assert run.said("A", "hub_at") == [{"say": "hub_at", "beacon": BEACON}]


def test_what_workers_said_to_the_hub_before_is_not_asked_again() -> None:
    run = Run("ABC", witness=False)
    run.over("BC")
    run.moves("BC", lost="A")
    assert run.view("B") == "B0 C0"


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


def test_a_node_that_says_hello_twice_to_one_hub_is_counted_once() -> None:
    run = Run("ABC", witness=False)
    run.fails("B", "B0", step=3)
    run.orders(run.hub.lost(run.now_s, "B", dead=False))
    run.comes("B")
    run.tell("B", "started", worker="B1", local_rank=0)
    before = len(run.said("B", "start"))
    run.fails("B", "B1", step=4)
    assert len(run.said("B", "start")) == before + 1


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


def test_a_coordinator_that_is_killed_costs_no_claim_where_the_others_stand_soon() -> None:
    run = Run("ABC", witness=True)
    run.is_killed("A", "A0", step=7)
    run.over("BC")
    assert run.view("B") == "B0 C0"
    assert not run.said("B", "claim")


def test_who_stands_long_after_the_coordinator_has_gone_needs_the_claim() -> None:
    """Nobody has given signs of life in the storage since, and others may have begun anew from it."""
    run = Run("ABC", witness=True)
    run.is_killed("A", "A0", step=7)
    run.later(4.0)
    run.over("BC")
    assert not run.said("B", "view")[1:]
    run.claims("B")
    assert run.view("C") == "B0 C0"


def test_a_run_of_one_node_asks_for_no_claim() -> None:
    """Its storage need not be one that can tell two sides apart, and it has none."""
    hub = Hub(nodes_max=1, nodes_first=1)
    hub.receive(0.0, "A", {"say": "hello", "places": 2, "address": "10.0.0.1", "port": 1})
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


def test_another_worker_than_the_coordinator_costs_no_claim_however_long_the_others_take() -> None:
    run = Run("ABC", witness=True)
    run.is_killed("C", "C0", step=7)
    run.later(60.0)
    run.over("AB")
    assert run.view("A") == "A0 B0"
    assert not run.said("A", "claim")


def test_a_view_that_has_not_met_gives_no_signs_of_life() -> None:
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


def test_a_place_whose_worker_is_on_its_way_gets_no_second_one() -> None:
    hub = Hub(nodes_max=2, takes_over=True)
    empty = NodeReport().document()
    orders = hub.receive(0.0, "B", {"say": "hello", "places": 2, "starting": [1], "report": empty})
    assert [order.message for order in orders if order.message["say"] == "start"] == [{"say": "start", "local_rank": 0}]


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
        run.hub.receive(0.0, "C", {"say": "hello", "places": 1, "report": report})
    assert not run.said("A", "moved_on")


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
    """Its agent's beacon stands in that claim, and answers them: they would take the next one, and evict others."""
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
    run.later(3.0)
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
    """From the loss of the first host on, a loss of all workers cost 15 s of looking for signs of life, for the life of
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
    run.later(3.0)
    assert run.view("B") == " ".join(f"{node}1" for node in here)
    assert run.said("B", "view")[-1]["unanswered"] == unanswered


@pytest.mark.parametrize("met", [True, False])
def test_newcomers_look_for_one_that_went_on_without_their_hub_s_node(met: bool) -> None:
    """It needs no other claim, and asks nobody. Until its beacon had moved, they took its run: their own answered."""
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
        run.later(3.0)
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


def test_a_hub_that_has_handed_over_decides_nothing_and_says_where_to_go() -> None:
    run = Run("ABC", witness=True)
    run.orders(run.hub.hands_over(0.0, "A"))
    run.reports["X"], run.heard["X"] = NodeReport(), []
    run.tell("X", "hello", places=1, address="10.0.0.8", port=1)
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
    hub.receive(0.0, "A", {"say": "hello", "places": 1, "address": "10.0.0.1", "port": 1})
    hub.receive(0.0, "A", {"say": "started", "worker": "A0", "local_rank": 0})
    for number in (0, 1):
        hub.receive(0.0, "A", {"say": "failed", "worker": f"A{number}", "error": "ValueError: x", "trace": ""})
        hub.receive(0.0, "A", {"say": "exited", "worker": f"A{number}", "code": 1})
        hub.receive(0.0, "A", {"say": "started", "worker": f"A{number + 1}", "local_rank": 0})
    hub.tick(200.0)
    orders = hub.receive(201.0, "B", {"say": "hello", "places": 1})
    assert [order.message["failed"] for order in orders if order.message["say"] == "run_is_over"] == [True]


def test_what_follows_from_a_bye_is_said() -> None:
    run = Run("AB", witness=False)
    run.tell("B", "leaving", worker="B0", generation=1, step=7)
    run.over("A", at=BOUNDARY)
    rosters = len(run.said("A", "roster"))
    run.tell("B", "bye")
    assert len(run.said("A", "roster")) > rosters


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
