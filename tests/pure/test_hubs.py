"""The hub's port is open to whoever reaches the machine: what strangers say there changes nothing."""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from elastic.launch.hub_link import _UNKNOWN_MAX, HubLink, Place
from elastic.membership.hub import Hub

NONCE = "known to the run"


class Stand:
    """A node with the hub, in a loop that this test turns."""

    def __init__(self, opened: ExitStack) -> None:
        self._opened = opened
        listener = socket.create_server(("127.0.0.1", 0))
        self._address = listener.getsockname()
        self._loop = selectors.DefaultSelector()
        self.said: list[str] = []
        place = Place(node="first", address="127.0.0.1", run=NONCE)
        self.hub = HubLink(place, lambda takes_over: Hub(nodes_max=9), say=self.said.append, listener=listener)
        self.hub.open(
            self._loop,
            lambda worker, message: None,
            gone=self.said.append,
            moved_on=self.said.append,
            waits=self.said.append,
            no_place=self.said.append,
            places=lambda: (0, []),
            catch_up=lambda: None,
        )
        opened.callback(self.hub.close)

    def connect(self, *words: object) -> socket.socket:
        sock = self._opened.enter_context(socket.create_connection(self._address))
        for word in words:
            sock.sendall(word if isinstance(word, bytes) else json.dumps(word).encode() + b"\n")
        return sock

    def turn(self, within_s: float = 0.5) -> None:
        deadline = time.monotonic() + within_s
        while ready := self._loop.select(0.05):
            for key, _ in ready:
                key.data()
            self.hub.settle()
            if time.monotonic() > deadline:
                return


@pytest.fixture
def stand() -> Iterator[Stand]:
    with ExitStack() as opened:
        yield Stand(opened)


@pytest.mark.parametrize(
    "word",
    [
        {"say": "hello", "node": "x", "run": "\ud800"},
        {"say": "hello", "node": "x", "run": "another"},
        {"say": "hello", "node": "x", "run": None},
        {"say": "hello", "node": "x"},
        {"say": "hello", "node": ["x"], "run": NONCE},
        {"say": "exited", "worker": "w", "run": NONCE, "node": "x"},
        [],
        b"\xff\xfe\n",
        b"{" * 5000 + b"\n",
    ],
)
def test_a_stranger_is_hung_up_on_and_a_node_of_the_run_is_heard(stand: Stand, word: object) -> None:
    stranger = stand.connect(word)
    stand.turn()
    stranger.settimeout(5)
    assert b"board" not in stranger.recv(1000)
    assert stand.hub.others() == []

    stand.connect({"say": "hello", "node": "second", "run": NONCE, "places": 1})
    stand.turn()
    assert stand.hub.others() == ["second"]


def test_connections_that_say_nothing_are_bounded(stand: Stand) -> None:
    silent = [stand.connect() for _ in range(_UNKNOWN_MAX + 5)]
    stand.turn(2.0)
    silent[0].settimeout(5)
    assert silent[0].recv(1) == b""
    stand.connect({"say": "hello", "node": "second", "run": NONCE, "places": 1})
    stand.turn()
    assert stand.hub.others() == ["second"]


def test_a_node_of_the_run_that_says_nonsense_is_told_once_in_the_log_and_changes_nothing(stand: Stand) -> None:
    """A KeyError in the agent's loop ended the run: of all nodes."""
    stand.connect(
        {"say": "hello", "node": "second", "run": NONCE, "places": 1}, {"say": "view_is_over"}, {"say": "started"}
    )
    stand.turn()
    assert [line.split(":")[0] for line in stand.said] == ["a message of second is dropped"] * 2
    assert stand.hub.others() == ["second"]
    noise = [{"say": "view_is_over", "worker": number} for number in range(100)]
    stand.connect({"say": "hello", "node": "third", "run": NONCE, "places": 1}, *noise)
    stand.turn(2.0)
    assert sum("third" in line for line in stand.said) == 10
    assert "more of the kind is dropped in silence" in stand.said[-1]


def test_the_hubs_own_name_is_nobody_elses(stand: Stand) -> None:
    late = stand.connect({"say": "hello", "node": "first", "run": NONCE, "places": 1})
    stand.turn()
    late.settimeout(5)
    assert b"is here already" in late.recv(1000)
    assert stand.hub.others() == []


def test_a_node_that_comes_again_is_one_that_lost_its_connection(stand: Stand) -> None:
    """It may know of that before we do. Who says hello knows what only agents of the run know."""
    first = stand.connect({"say": "hello", "node": "second", "run": NONCE, "places": 1})
    stand.turn()
    stand.connect({"say": "hello", "node": "second", "run": NONCE, "places": 1})
    stand.turn()
    first.settimeout(5)
    while first.recv(1000):
        pass
    assert stand.hub.others() == ["second"]


def test_whoever_knows_the_run_learns_where_its_hub_is(stand: Stand) -> None:
    asks = stand.connect({"say": "where_is_the_hub", "run": NONCE})
    stand.turn()
    asks.settimeout(5)
    assert json.loads(asks.recv(1000))["address"] == "127.0.0.1"


def test_what_all_workers_of_a_node_are_told_travels_once(stand: Stand) -> None:
    """A view of a thousand workers went a thousand times over the network, and each of them names all."""
    workers = [f"w{number}" for number in range(4)]
    words: list[object] = [{"say": "hello", "node": "second", "run": NONCE, "places": 4}]
    words += [{"say": "started", "worker": one, "local_rank": rank} for rank, one in enumerate(workers)]
    words += [{"say": "ready", "worker": one, "shares": 8, "identity": "one"} for one in workers]
    second = stand.connect(*words)
    stand.turn()
    lines = [json.loads(line) for line in second.recv(1 << 16).splitlines()]
    (view,) = [line for line in lines if line["say"] == "view"]
    assert view["to"] == view["workers"] == workers
    assert view["nodes"] == ["second"] * 4
    assert [line["to"] for line in lines if line["say"] == "roster"] in ([None], [])


def test_the_hub_of_many_workers_says_one_thing_to_each_node_however_many_come_at_once() -> None:
    """Of all that came in one turn, what follows is decided once: rosters went out for each node that came, to all."""
    hub, nodes = Hub(nodes_min=1, nodes_max=64, nodes_first=64), [f"n{number}" for number in range(64)]
    for node in nodes:
        hub.hear(0.0, node, {"say": "hello", "node": node, "places": 1, "address": "10.0.0.1", "port": 1})
    orders = hub.follows(0.0)
    assert [order.node for order in orders if order.message["say"] == "roster"] == nodes
    for node in nodes:
        hub.hear(0.0, node, {"say": "started", "worker": f"w{node}", "local_rank": 0})
        hub.hear(0.0, node, {"say": "ready", "worker": f"w{node}", "shares": 64, "identity": "one"})
    views = [order for order in hub.follows(0.0) if order.message["say"] == "view"]
    assert [order.node for order in views] == nodes
    assert all(order.message is views[0].message for order in views)
