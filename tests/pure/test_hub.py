"""What the hub answers, story by story. What holds in every story is test_hub_simulated.py's."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from elastic.membership.hub import AGAIN, Hub, Order
from elastic.membership.rules import BOUNDARY
from elastic.membership.wire import Message

MID_STEP = "in the exchange of step 7"


class Stage:
    """A hub, those who talk to it, and what it has answered to the last of them. Workers are called node.place."""

    def __init__(self, workers: int = 4, *, nodes: int = 1, shares: int = 8, **rules: Any) -> None:
        self.hub = Hub(nodes_max=max(nodes, rules.pop("nodes_max", 1)), **rules)
        self.now_s = 0.0
        self.shares = shares
        self.orders: list[Order] = []
        self.starts: Counter[str] = Counter()
        for i in range(nodes):
            self.comes("ABC"[i], workers)

    def heard(self, orders: list[Order]) -> Stage:
        self.orders = orders
        return self

    def told(self, node: str, say: str, **facts: Any) -> Stage:
        return self.heard(self.hub.told(self.now_s, node, {"say": say, **facts}))

    def worker(self, id: str, say: str, **facts: Any) -> Stage:
        return self.told(id[0], say, worker=id, **facts)

    def together(self, ids: str, say: str, **facts: Any) -> Stage:
        answers: list[Order] = []
        for id in ids.split():
            answers += self.worker(id, say, **facts).orders
        self.orders = answers
        return self

    def comes(self, node: str, places: int) -> Stage:
        return self.told(node, "hello", places=places)

    def started(self, place: str) -> str:
        """Returns the id: A0 at first, A0', A0'' for those that come in its place."""
        id = place + "'" * self.starts[place]
        self.starts[place] += 1
        self.told(place[0], "started", worker=id, local_rank=int(place[1:]))
        return id

    def ready(self, ids: str, **facts: Any) -> Stage:
        return self.together(ids, "ready", shares=self.shares, **{"identity": "one", **facts})

    def begin(self, places: str, **facts: Any) -> Stage:
        """Starts workers that are then ready."""
        return self.ready(" ".join([self.started(place) for place in places.split()]), **facts)

    def over(self, ids: str, at: str = MID_STEP, *, step: int = 7, lost: bool | None = None) -> Stage:
        lost = at != BOUNDARY if lost is None else lost
        return self.together(ids, "over", generation=self.hub.generation, step=step, at=at, lost=lost)

    def killed(self, id: str, signal: str = "SIGKILL", **facts: Any) -> Stage:
        return self.worker(id, "exited", code=None, signal=signal, **facts)

    def ends(self, id: str, code: int, **facts: Any) -> Stage:
        return self.worker(id, "exited", code=code, signal=None, **facts)

    def raises(self, id: str, error: str = "ValueError: bad", *, step: int | None = 7) -> Stage:
        before = self.worker(id, "failed", error=error, trace="Traceback ...", step=step).orders
        self.orders = before + self.ends(id, 1, step=step).orders
        return self

    def leaves(self, id: str, *, lost: bool = False) -> Stage:
        return self.worker(id, "leaving", generation=self.hub.generation, step=7, lost=lost)

    def later(self, seconds: float) -> Stage:
        self.now_s += seconds
        return self.heard(self.hub.tick(self.now_s))

    def lost(self, node: str) -> Stage:
        return self.heard(self.hub.lost(self.now_s, node))

    @property
    def view(self) -> str | None:
        """The workers of the view that was just published, checked to be told to each of them, once."""
        views = [order for order in self.orders if order.message["say"] == "view"]
        if not views:
            return None
        members: list[str] = views[0].message["workers"]
        assert [order.worker for order in views] == members
        assert all(order.message == views[0].message for order in views)
        return " ".join(members)

    def to(self, say: str) -> str:
        """To whom this was just said: workers, or nodes."""
        return " ".join(order.worker or order.node for order in self.orders if order.message["say"] == say)

    def only(self, say: str) -> Message:
        """What was just said, the same to all."""
        messages = [order.message for order in self.orders if order.message["say"] == say]
        assert messages
        assert all(message == messages[0] for message in messages)
        return messages[0]


def trains(workers: int = 4, **rules: Any) -> Stage:
    stage = Stage(workers, **rules)
    nodes = rules.get("nodes", 1)
    return stage.begin(" ".join(f"{'ABC'[node]}{place}" for node in range(nodes) for place in range(workers)))


def test_a_run_starts_when_all_its_workers_are_ready() -> None:
    stage = Stage(4)
    stage.begin("A0 A1 A2")
    assert stage.view is None
    assert stage.begin("A3").view == "A0 A1 A2 A3"

    message = next(order.message for order in stage.orders if order.message["say"] == "view")
    assert message["generation"] == 1
    assert (message["nodes"], message["local_ranks"], message["one_node"]) == (["A"] * 4, [0, 1, 2, 3], True)


def test_a_start_does_not_wait_for_one_that_hangs() -> None:
    stage = Stage(2, start_s=120)
    stage.begin("A0")
    assert stage.later(119).view is None
    assert stage.later(2).view == "A0"


def test_a_killed_worker_is_replaced_and_comes_back_at_a_boundary() -> None:
    stage = trains(4)
    stage.killed("A2")
    assert (stage.to("start"), stage.to("broken"), stage.only("start")["local_rank"]) == ("A", "A0 A1 A3", 2)
    assert stage.over("A0 A1").view is None
    assert stage.over("A3").view == "A0 A1 A3"
    assert stage.begin("A2").to("regroup") == "A0 A1 A3"
    assert stage.later(1).orders == []
    assert stage.over("A0 A1 A3", BOUNDARY, step=8).view == "A0 A1 A3 A2'"
    assert stage.hub.generation == 3


def test_a_lost_peer_is_told_by_those_who_notice_before_its_agent_does() -> None:
    stage = trains(4)
    assert stage.over("A1").to("broken") == "A0 A2 A3"
    assert stage.over("A0 A3").orders == []
    assert stage.killed("A2").view == "A0 A1 A3"


def test_the_first_survivor_coordinates_after_a_lost_coordinator() -> None:
    stage = trains(4)
    stage.killed("A0")
    assert stage.over("A3 A2 A1").view == "A1 A2 A3"
    stage.begin("A0")
    assert stage.over("A1 A2 A3", BOUNDARY).view == "A1 A2 A3 A0'"


def test_two_killed_at_once_make_one_view() -> None:
    stage = trains(4)
    stage.killed("A1")
    assert stage.killed("A3").to("start") == "A"
    assert stage.over("A0 A2").view == "A0 A2"


def test_a_worker_killed_while_a_view_forms_makes_another_one() -> None:
    stage = trains(4)
    stage.killed("A1")
    stage.over("A0 A2 A3")
    assert stage.killed("A2").to("broken") == "A0 A3"
    assert stage.over("A0 A3").view == "A0 A3"
    assert stage.hub.generation == 3


def test_when_all_are_killed_their_replacements_start_from_storage_together() -> None:
    stage = trains(3)
    for id in ("A0", "A1", "A2"):
        assert stage.killed(id).to("start") == "A"
    assert stage.begin("A1").view is None
    assert stage.begin("A0").view is None
    assert stage.begin("A2").view == "A0' A1' A2'"


def test_newcomers_wait_for_each_other_a_moment() -> None:
    stage = trains(4, gather_s=0.3)
    stage.killed("A1")
    stage.killed("A2")
    stage.over("A0 A3")
    assert stage.begin("A1").to("regroup") == ""
    assert stage.later(0.2).to("regroup") == ""
    assert stage.later(0.2).to("regroup") == "A0 A3"


def test_nobody_joins_in_the_middle_of_a_step() -> None:
    """A regrouping was asked for, and before the boundary somebody dies."""
    stage = trains(3)
    stage.killed("A2")
    stage.over("A0 A1")
    assert stage.begin("A2").to("regroup") == "A0 A1"
    stage.killed("A1")
    assert stage.over("A0").view == "A0"
    assert stage.later(1).to("regroup") == "A0"
    assert stage.begin("A1").to("regroup") == ""
    assert stage.over("A0", BOUNDARY).view == "A0 A1' A2'"


def test_a_newcomer_that_dies_while_it_is_waited_for_costs_one_view() -> None:
    stage = trains(2)
    stage.killed("A1")
    stage.over("A0")
    stage.begin("A1")
    stage.killed("A1'")
    assert stage.over("A0", BOUNDARY).view == "A0"


def test_a_worker_that_leaves_is_released_and_not_replaced() -> None:
    stage = trains(3)
    assert stage.leaves("A1").orders == []
    stage.over("A0", BOUNDARY)
    stage.over("A2", BOUNDARY)
    assert (stage.to("released"), stage.view) == ("A1", "A0 A2")
    assert stage.ends("A1", 0).orders == []


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


def test_one_that_leaves_all_of_a_sudden_breaks_the_view() -> None:
    stage = trains(3)
    assert stage.leaves("A1", lost=True).to("broken") == "A0 A2"
    stage.over("A0 A2")
    assert (stage.to("released"), stage.view) == ("A1", "A0 A2")


def test_one_that_leaves_is_released_even_if_the_others_cannot_go_on() -> None:
    stage = trains(1, nodes=2, nodes_min=2)
    stage.leaves("B0")
    assert stage.over("A0", BOUNDARY).to("released") == "B0"
    assert stage.view is None


def test_one_that_leaves_is_released_when_the_run_ends() -> None:
    stage = trains(3)
    stage.raises("A0")
    stage.over("A1 A2")
    stage.begin("A0")
    stage.over("A1 A2", BOUNDARY)
    stage.leaves("A2")
    stage.raises("A0'")
    assert stage.over("A1").to("released") == "A2"
    assert stage.to("end") == "A1"


@pytest.mark.parametrize("signal", ["SIGTERM", "SIGINT"])
def test_a_worker_ended_by_a_request_to_leave_is_not_replaced(signal: str) -> None:
    stage = trains(2)
    assert stage.killed("A1", signal).to("start") == ""
    assert stage.over("A0").view == "A0"


def test_when_all_leave_the_run_is_over_and_has_not_failed() -> None:
    stage = trains(2)
    stage.leaves("A0")
    assert stage.leaves("A1").to("released") == "A0 A1"
    stage.ends("A0", 0)
    assert stage.ends("A1", 0).only("over") == {"say": "over", "failed": False, "why": ""}


def test_a_spare_takes_over_when_all_others_leave() -> None:
    stage = trains(3, shares=2)
    assert stage.view == "A0 A1"
    stage.leaves("A0")
    assert stage.leaves("A1").view == "A2"


def test_a_run_that_all_finish_is_over() -> None:
    stage = trains(2)
    stage.together("A0 A1", "finished", step=9)
    assert stage.ends("A0", 0).orders == []
    assert stage.ends("A1", 0).only("over")["failed"] is False
    assert stage.later(1).orders == []
    assert stage.comes("B", 1).only("over")["why"] == "the run is over"


def test_a_finished_run_waits_for_no_replacement_and_orders_none() -> None:
    stage = trains(2)
    stage.killed("A1")
    stage.over("A0")
    stage.worker("A0", "finished", step=9)
    assert stage.begin("A1").to("view regroup") == ""
    stage.ends("A0", 0)
    assert (stage.to("over"), stage.to("end")) == ("A", "A1'")


def test_nobody_is_started_in_the_place_of_one_killed_at_the_end() -> None:
    stage = trains(2)
    stage.worker("A1", "finished", step=9)
    assert stage.killed("A0").to("start") == ""
    assert stage.ends("A1", 0).only("over")["failed"] is False


def test_a_node_lost_after_the_run_had_finished_costs_nothing() -> None:
    stage = trains(1, nodes=2)
    stage.together("A0 B0", "finished", step=9)
    stage.lost("B")
    assert stage.ends("A0", 0).only("over")["failed"] is False


def test_one_that_lost_the_last_exchange_finishes_without_those_that_have_finished() -> None:
    """Even if there are too few nodes now: nothing is left to train."""
    stage = trains(1, nodes=2, nodes_min=2)
    stage.worker("A0", "finished", step=9)
    stage.ends("A0", 0)
    assert stage.over("B0").view == "B0"
    stage.worker("B0", "finished", step=9)
    assert stage.ends("B0", 0).only("over")["failed"] is False


@pytest.mark.parametrize("how", ["raises", "exits"])
def test_a_script_that_fails_after_its_run_had_finished_has_failed(how: str) -> None:
    stage = trains(2)
    stage.together("A0 A1", "finished", step=9)
    if how == "raises":
        stage.raises("A0", "OSError: no space left")
    else:
        stage.ends("A0", 3)
    assert stage.to("start over") == ""
    over = stage.ends("A1", 0).only("over")
    assert over["failed"] is True
    assert ("OSError: no space left" if how == "raises" else "exit status 3") in over["why"]


def test_a_worker_killed_after_it_has_finished_costs_nothing() -> None:
    stage = trains(1)
    stage.worker("A0", "finished", step=9)
    assert stage.killed("A0").only("over")["failed"] is False


def test_a_second_run_in_one_script_is_refused() -> None:
    stage = trains(1)
    stage.worker("A0", "finished", step=9)
    assert "one" in stage.ready("A0").only("end")["why"]
    assert "second Run" in stage.ends("A0", AGAIN).only("over")["why"]


def test_a_script_without_a_run_ends_when_all_its_workers_have() -> None:
    """However short it is: some may be at their end before others have begun."""
    stage = Stage(3)
    stage.ends(stage.started("A0"), 0)
    stage.started("A1")
    stage.ends("A1", 0)
    assert stage.to("over") == ""
    stage.started("A2")
    assert stage.ends("A2", 0).only("over")["failed"] is False


def test_a_worker_that_was_never_started_is_not_waited_for() -> None:
    stage = Stage(2)
    stage.ends(stage.started("A0"), 0)
    assert stage.told("A", "unstarted", local_rank=1).only("over")["failed"] is False


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
    stage.over("A2", step=8)
    ends = {order.worker: order.message for order in stage.orders if order.message["say"] == "end"}
    assert {worker: message["save"] for worker, message in ends.items()} == {"A0": False, "A2": True}
    assert stage.only("over")["failed"] is True
    assert "the same failure twice at step 7: ValueError: bad at 0x7f\nTraceback ..." in stage.only("over")["why"]


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
    assert [(o.worker, o.message["save"]) for o in stage.orders if o.message["say"] == "end"] == [("A2'", True)]


def test_one_that_does_not_come_to_a_clean_end_is_not_waited_for() -> None:
    stage = trains(2, ending_s=60, restarts_max=0)
    stage.raises("A1")
    assert stage.later(59).to("over") == ""
    assert stage.later(2).to("end") == "A0"
    assert stage.to("over") == "A"


def test_kills_and_requests_to_start_again_never_end_a_run() -> None:
    stage = trains(2, restarts_max=0)
    last = "A1"
    for turn in range(20):
        stage.killed(last) if turn % 2 else stage.ends(last, AGAIN, step=7)
        assert stage.to("start") == "A"
        stage.over("A0")
        last = "A1" + "'" * (turn + 1)
        stage.begin("A1")
        assert stage.over("A0", BOUNDARY).view == f"A0 {last}"


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
    assert stage.over("A0").only("over")["failed"] is True


def test_hangs_count_as_failures() -> None:
    stage = trains(2, restarts_max=1)
    assert stage.killed("A1", hung=True, step=7).to("start") == "A"
    stage.over("A0")
    stage.begin("A1")
    stage.over("A0", BOUNDARY)
    stage.killed("A1'", hung=True, step=9)
    assert "hang" in stage.over("A0").only("over")["why"]


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
    assert stage.to("over") == ""


def test_a_start_that_fails_twice_ends_the_run() -> None:
    stage = Stage(2)
    stage.started("A0")
    stage.started("A1")
    assert stage.raises("A0", "ImportError: no", step=None).to("start") == "A"
    assert stage.raises("A1", "ImportError: no", step=None).only("over")["failed"] is True


def test_spares_wait_outside_and_come_in_when_one_is_lost() -> None:
    stage = trains(3, shares=2)
    assert stage.view == "A0 A1"
    assert stage.to("regroup") == ""
    assert stage.later(10).to("regroup") == ""
    stage.killed("A0")
    assert stage.over("A1").view == "A1"
    assert stage.to("regroup") == "A1"
    assert stage.over("A1", BOUNDARY).view == "A1 A2"


def test_a_newcomer_with_fewer_shares_puts_no_survivor_out() -> None:
    stage = trains(3)
    stage.shares = 1
    stage.killed("A2")
    stage.over("A0 A1")
    stage.begin("A2")
    assert stage.over("A0 A1", BOUNDARY).view is not None
    assert stage.view is not None
    assert stage.view.startswith("A0 A1")


def test_ranks_go_node_by_node() -> None:
    stage = trains(2, nodes=2, nodes_min=1)
    assert stage.view == "A0 A1 B0 B1"
    stage.killed("A1")
    stage.over("A0 B0 B1")
    stage.begin("A1")
    assert stage.over("A0 B0 B1", BOUNDARY).view == "A0 A1' B0 B1"


def test_a_lost_node_is_gone_with_its_workers_and_with_those_on_their_way() -> None:
    stage = trains(2, nodes=2, nodes_min=1)
    stage.killed("B0")
    assert stage.lost("B").to("broken") == ""
    assert stage.over("A0 A1").view == "A0 A1"
    assert stage.told("B", "started", worker="B0'", local_rank=0).orders == []
    assert stage.told("B", "ready", worker="B0'", shares=8, identity="one").orders == []


def test_below_its_minimum_a_run_waits_says_so_once_and_ends_after_the_deadline() -> None:
    stage = trains(1, nodes=2, nodes_min=2, below_min_s=600)
    stage.lost("B")
    assert stage.over("A0").to("status") == ""  # its workers may be on their way
    assert stage.later(2).only("status")["text"].startswith("1 of at least 2 nodes are here (A)")
    assert stage.later(597).orders == []
    stage.later(2)
    stage.later(0.1)
    assert (stage.only("end")["save"], stage.only("over")["failed"]) == (True, True)
    assert "1 of at least 2 nodes were here for 600 s" in stage.only("over")["why"]


def test_below_its_minimum_one_survivor_is_named_who_saves_if_all_are_told_to_leave() -> None:
    """The farthest; another one when that one is lost, too."""
    stage = trains(3, nodes=2, nodes_min=2)
    stage.lost("A")
    stage.over("B0 B2")
    assert stage.to("keep") == ""
    assert stage.over("B1", step=8).to("keep") == "B1"
    assert stage.later(1).to("keep") == ""
    assert stage.killed("B1").to("keep") == "B0"


def test_below_its_minimum_a_run_goes_on_when_a_node_comes() -> None:
    """The survivors are in the middle of a step: they finish it alone, and then all go on together."""
    stage = trains(1, nodes=2, nodes_min=2)
    stage.lost("B")
    assert stage.over("A0").view is None
    stage.comes("C", 1)
    assert stage.begin("C0").view == "A0"
    assert stage.to("regroup") == "A0"
    assert stage.over("A0", BOUNDARY).view == "A0 C0"


def test_a_first_view_waits_for_the_nodes_that_have_met() -> None:
    stage = Stage(1, nodes=2, nodes_max=3, nodes_min=1, nodes_first=3, start_s=120)
    stage.begin("A0 B0")
    assert stage.view is None
    assert stage.later(100).orders == []
    stage.comes("C", 1)
    assert stage.begin("C0").view == "A0 B0 C0"


def test_a_first_view_does_not_wait_for_ever_for_a_node_that_has_met_and_gone() -> None:
    stage = Stage(1, nodes=2, nodes_min=1, nodes_first=3, start_s=120)
    stage.begin("A0 B0")
    assert stage.later(121).view == "A0 B0"


def test_a_node_that_comes_later_joins_at_a_boundary() -> None:
    stage = trains(1, nodes_max=2)
    stage.comes("B", 2)
    stage.begin("B0")
    assert stage.begin("B1").to("regroup") == "A0"
    assert stage.over("A0", BOUNDARY).view == "A0 B0 B1"


def test_a_node_too_many_is_refused_and_disturbs_nobody() -> None:
    stage = trains(1, nodes=2, nodes_max=2)
    assert stage.comes("C", 1).only("over")["failed"] is False
    assert stage.begin("C0").orders == []
    stage.ends("C0", 1)
    assert stage.lost("C").orders == []
    stage.lost("B")
    stage.over("A0")
    assert stage.comes("C", 1).orders == []


def test_a_run_whose_last_workers_were_lost_with_their_node_has_failed() -> None:
    stage = trains(1, nodes=2, nodes_min=1)
    stage.leaves("A0")
    stage.over("B0", BOUNDARY)
    stage.ends("A0", 0)
    over = stage.lost("B").only("over")
    assert (over["failed"], over["why"]) == (True, "B was lost, and nobody is left")


def test_a_node_whose_workers_have_left_is_not_lost() -> None:
    stage = trains(1, nodes=2, nodes_min=1)
    stage.together("A0 B0", "leaving", generation=1, step=7, lost=False)
    stage.ends("B0", 0)
    stage.lost("B")
    assert stage.ends("A0", 0).only("over")["failed"] is False


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
    stage.worker("A0", "put", generation=1, key="address", value="x")
    assert stage.to("board") == "A0 A1"
    assert stage.orders[0].message == {"say": "board", "generation": 1, "key": "address", "value": "x"}


def test_words_of_an_older_view_change_nothing() -> None:
    stage = trains(3)
    stage.killed("A2")
    stage.over("A0 A1")
    for word in ("over", "leaving", "put"):
        facts = {"step": 1, "at": MID_STEP, "lost": True, "key": "k", "value": "v"}
        assert stage.worker("A0", word, generation=1, **facts).orders == []
    stage.worker("A2", "over", generation=2, step=1, at=MID_STEP, lost=True)
    assert stage.orders == []
    stage.killed("A1")
    assert stage.over("A0").view == "A0"


def test_saying_over_twice_is_saying_it_once() -> None:
    stage = trains(2)
    stage.killed("A1")
    assert stage.over("A0").view == "A0"
    stage.over("A0", lost=True)
    assert stage.view == "A0"
    assert stage.hub.generation == 3


def test_words_that_nobody_knows_are_ignored() -> None:
    stage = trains(1)
    assert stage.worker("A0", "sings").orders == []
    assert stage.worker("nobody", "over", generation=1).orders == []
