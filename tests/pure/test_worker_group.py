"""What a launch is, as the hub has it: torchrun's, all of whose workers start again together, or a run's."""

from __future__ import annotations

from typing import Any

import pytest

from elastic.membership.exit_statuses import AGAIN
from elastic.membership.hub.orders import Order
from elastic.membership.messages.messages import World
from elastic.membership.messages.wire import Message
from elastic.membership.succession.node_report import NodeReport, ReportedWorker
from tests.kit.stage import Stage


class Launch(Stage):
    """Nodes where a group may meet; `placed` is each node's world, as it was told last."""

    def __init__(self, nodes: str = "A", workers: int = 2, *, met: str = "", **rules: Any) -> None:
        self.placed: dict[str, Message] = {}
        self.said: list[str] = []
        super().__init__(nodes=0, met=met, nodes_max=3, **rules)
        for node in nodes:
            self.arrives(node, workers)

    def heard(self, orders: list[Order]) -> Launch:
        super().heard(orders)
        for order in orders:
            if order.message["say"] == "world":
                self.placed[order.node] = order.message
            if order.message["say"] == "status":
                self.said.append(order.message["text"])
        return self

    def arrives(self, node: str, workers: int = 2) -> Launch:
        self.told(node, "hello", slots=workers, address=f"10.0.0.{ord(node)}", port=1, group_port=ord(node))
        return self

    def start(self, slots: str) -> list[str]:
        return [self.started(slot) for slot in slots.split()]

    def forms(self, node: str = "A") -> Launch:
        self.told(node, "group_forms")
        return self

    def stopped(self, ids: str) -> Launch:
        """As they were told to."""
        orders = []
        for id in ids.split():
            orders += self.worker(id, "exited", code=None, signal="SIGTERM", expected=True).orders
        self.orders = orders
        return self

    def ranks(self) -> dict[str, tuple[int, int, int]]:
        """Of each node its first rank, the world size and the restart count."""
        return {
            node: (world["first_rank"], world["world_size"], world["restart_count"])
            for node, world in self.placed.items()
        }


def test_nodes_are_placed_in_the_order_in_which_they_came() -> None:
    launch = Launch("A", 2, met="AB")
    assert launch.placed == {}
    launch.arrives("B", 3)
    assert launch.ranks() == {"A": (0, 5, 0), "B": (2, 5, 0)}
    assert {world["master_addr"] for world in launch.placed.values()} == {"10.0.0.65"}
    assert {world["master_port"] for world in launch.placed.values()} == {65}


def test_a_node_that_has_met_and_does_not_come_holds_nobody_up_for_long() -> None:
    launch = Launch("A", met="AB")
    launch.later(1)
    assert launch.ranks() == {}
    launch.later(5)
    assert launch.ranks() == {"A": (0, 2, 0)}


def test_all_start_again_where_one_is_lost_of_a_group_that_has_formed() -> None:
    launch = Launch(restarts_max=1)
    launch.start("A0 A1")
    launch.forms().killed("A0")
    assert launch.to("stop_all") == "A"
    assert launch.to("start") == ""
    launch.stopped("A1")
    assert [order.message["local_rank"] for order in launch.orders if order.message["say"] == "start"] == [0, 1]
    assert launch.ranks() == {"A": (0, 2, 1)}
    assert launch.said[-1] == "A0 was lost (SIGKILL), restart 1 of 1: all start again, 2 workers now"

    launch.start("A0 A1")
    launch.raises("A1'", step=None)
    launch.stopped("A0'")
    over = launch.only("run_is_over")
    assert over["failed"]
    assert "ValueError: bad" in over["why"]
    assert "--max-restarts=1 allows no further start" in over["why"]


def test_a_loss_is_counted_once_however_many_end_of_it() -> None:
    launch = Launch(workers=3)
    launch.start("A0 A1 A2")
    launch.forms().killed("A0")
    launch.raises("A1", "RuntimeError: connection closed by peer", step=None)
    launch.stopped("A2")
    assert launch.ranks() == {"A": (0, 3, 1)}


def test_one_that_is_lost_before_a_group_forms_is_replaced_alone_and_all_start_again_should_it_form() -> None:
    """Nobody knows whether it was there already: its keys would be met by the one that has taken its place."""
    launch = Launch()
    launch.start("A0 A1")
    launch.killed("A0")
    assert launch.to("stop_all start") == "A"
    assert launch.to("stop_all") == ""
    launch.start("A0")
    launch.forms()
    assert launch.to("stop_all") == "A"
    launch.stopped("A0' A1")
    assert launch.ranks() == {"A": (0, 2, 1)}


@pytest.mark.parametrize("formed_first", [True, False])
def test_a_launch_whose_worker_has_come_to_a_run_is_none_of_torchruns(formed_first: bool) -> None:
    launch = Launch()
    ids = launch.start("A0 A1")
    if formed_first:
        launch.forms()
    launch.ready(ids[0])
    if not formed_first:
        launch.forms()
    launch.killed("A1")
    assert launch.to("stop_all") == ""
    assert launch.to("start") == "A"


def test_a_node_that_comes_makes_all_start_again_in_a_larger_world_and_counts_for_nothing() -> None:
    launch = Launch(restarts_max=0)
    launch.start("A0 A1")
    launch.forms().arrives("B")
    assert launch.to("stop_all") == "A B"
    launch.stopped("A0 A1")
    assert launch.to("stop_all start") == ""  # B's have not answered that none of them starts
    launch.told("B", "unstarted", local_rank=0)
    launch.told("B", "unstarted", local_rank=1)
    assert launch.ranks() == {"A": (0, 4, 0), "B": (2, 4, 0)}
    assert launch.to("start") == "A A B B"


def test_a_node_that_comes_before_a_group_forms_starts_at_once() -> None:
    """A run's start is not held up for what its script will not ask for."""
    launch = Launch()
    launch.start("A0 A1")
    launch.arrives("B")
    assert launch.to("stop_all") == ""
    assert launch.ranks() == {"A": (0, 2, 0), "B": (2, 4, 0)}
    launch.start("B0 B1")
    launch.forms()
    assert launch.to("stop_all") == "A B"


@pytest.mark.parametrize("how", ["leaves", "is lost"])
def test_those_who_are_left_start_again_in_a_smaller_world(how: str) -> None:
    launch = Launch("AB", restarts_max=0)
    launch.start("A0 A1 B0 B1")
    launch.forms()
    if how == "leaves":
        launch.stopped("B0 B1").told("B", "bye")
    else:
        launch.lost("B")
    launch.raises("A0", "RuntimeError: connection closed by peer", step=None)
    launch.stopped("A1")
    assert launch.placed["A"]["world_size"] == 2
    assert launch.placed["A"]["restart_count"] == 0
    for id in launch.start("A0 A1"):
        launch.ends(id, 0)
    assert not launch.only("run_is_over")["failed"]


def test_those_who_are_left_wait_for_the_nodes_that_were_asked_for() -> None:
    launch = Launch("AB", nodes_min=2, below_min_s=60)
    launch.start("A0 A1 B0 B1")
    launch.forms().lost("B")
    launch.stopped("A0 A1")
    assert launch.to("start") == ""
    launch.later(2)
    assert "1 of at least 2 nodes are here" in launch.said[-1]
    launch.arrives("C")
    launch.told("C", "unstarted", local_rank=0)
    launch.told("C", "unstarted", local_rank=1)
    assert launch.to("start") == "A A C C"


def test_workers_that_come_to_their_end_end_the_launch() -> None:
    launch = Launch()
    launch.start("A0 A1")
    launch.forms().ends("A0", 0)
    assert launch.to("stop_all run_is_over") == ""
    assert not launch.ends("A1", 0).only("run_is_over")["failed"]
    assert launch.said == []


def test_a_script_that_forms_no_group_and_begins_no_run_is_told_so_once() -> None:
    launch = Launch()
    launch.start("A0 A1")
    launch.ends("A0", 0).ends("A1", 0)
    (text,) = launch.said
    assert "formed no group of torch.distributed's and began no elastic.Run" in text
    assert "\n" not in text


def test_what_a_run_would_add_is_said_once() -> None:
    launch = Launch()
    launch.start("A0 A1")
    launch.forms().later(6).later(6)
    (text,) = launch.said
    assert "in a Run the others would go on" in text


def test_a_script_that_always_asks_to_be_started_again_is_not_for_ever() -> None:
    launch = Launch(restarts_max=1)
    launch.start("A0 A1")
    launch.forms().ends("A0", AGAIN)
    launch.stopped("A1").later(2)
    assert launch.ranks() == {"A": (0, 2, 1)}
    launch.start("A0 A1")
    launch.ends("A0'", AGAIN)
    launch.stopped("A1'").later(2)
    why = launch.only("run_is_over")["why"]
    assert "asked to be started again (status 75); --max-restarts=1 allows no further start" in why


def test_what_a_node_that_leaves_makes_others_ask_for_counts_for_nothing() -> None:
    """Those may have ended before its own workers have, and before it says that it goes."""
    launch = Launch("AB", met="AB", restarts_max=0)
    launch.start("A0 A1 B0 B1")
    launch.forms().ends("A0", AGAIN)
    launch.stopped("A1 B0 B1").told("B", "bye")
    assert launch.ranks()["A"] == (0, 2, 0)
    assert launch.to("start") == "A A"


def test_a_hub_that_takes_over_from_one_that_leaves_has_all_start_again() -> None:
    launch = Launch("AB")
    launch.start("A0 A1 B0 B1")
    launch.forms()
    report = NodeReport(restarts=0, workers={id: ReportedWorker(id, int(id[1])) for id in ("B0", "B1")}).document()
    for departed, follows in ((True, "stop_all"), (False, "run_is_over")):
        after = Launch("", takes_over=True)
        after.heard(after.hub.without(0.0, "A", departed=departed))
        hello = {"slots": 2, "address": "10.0.0.66", "port": 1, "group_port": 66}
        after.told("B", "hello", **hello, report=report)
        orders = [*after.orders, *after.later(30).orders, *after.later(200).orders]
        assert follows in [order.message["say"] for order in orders], departed


def taken_over(*, departed: bool, **report: Any) -> Launch:
    """The launch of B's hub after A's is gone, with what B reports of its two workers."""
    found = NodeReport(workers={id: ReportedWorker(id, int(id[1])) for id in ("B0", "B1")}, **report)
    found.note_ordered(None, World(group_rank=1, group_world_size=2, first_rank=2, world_size=4,
                                   master_addr="10.0.0.65", master_port=65))  # fmt: skip
    after = Launch("", takes_over=True, restarts_max=0)
    after.heard(after.hub.without(0.0, "A", departed=departed))
    after.told("B", "hello", slots=2, address="10.0.0.66", port=1, group_port=66, report=found.document())
    orders = [*after.orders, *after.later(30).orders]
    after.orders = orders
    return after


@pytest.mark.parametrize("departed", [True, False])
def test_all_start_again_where_the_node_is_gone_at_which_a_group_would_have_met(departed: bool) -> None:
    """Its address is dead: they would come there later, and wait for torch's timeout."""
    launch = taken_over(departed=departed)
    assert launch.to("stop_all") == "B"
    launch.stopped("B0 B1")
    assert launch.ranks() == {"B": (0, 2, 0)}
    assert launch.placed["B"]["master_addr"] == "10.0.0.66"
    assert launch.to("start") == "B B"
    launch.start("B0 B1")
    launch.forms("B")
    assert launch.later(10).to("stop_all run_is_over") == ""


def test_workers_of_a_run_stay_where_the_node_is_gone_at_which_a_group_would_have_met() -> None:
    launch = taken_over(departed=False, generation=1)
    assert launch.to("stop_all") == ""
