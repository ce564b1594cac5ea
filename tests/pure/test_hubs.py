"""The hub's port is open to whoever reaches the machine: what strangers say there changes nothing."""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from elastic.launch.hubs import _UNKNOWN_MAX, HubElsewhere, HubHere
from elastic.membership.hub import Hub
from elastic.membership.wire import Message

NONCE = "known to the run"


class Stand:
    """A hub in a loop that this test turns."""

    def __init__(self, opened: ExitStack) -> None:
        self._opened = opened
        listener = socket.create_server(("127.0.0.1", 0))
        self._address = listener.getsockname()
        self._loop = selectors.DefaultSelector()
        self.said: list[str] = []
        self.hub = HubHere(Hub(nodes_max=9), "first", say=self.said.append, listener=listener, nonce=NONCE)
        self.hub.open(self._loop, lambda worker, message: None, lambda why: None)
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


@pytest.mark.parametrize("name", ["second", "first"], ids=["a living node's", "the hub's own"])
def test_a_name_that_is_taken_is_nobody_elses(stand: Stand, name: str) -> None:
    """The second one of a name took over what was meant for the first, and spoke for its workers."""
    stand.connect({"say": "hello", "node": "second", "run": NONCE, "places": 1})
    stand.turn()
    late = stand.connect({"say": "hello", "node": name, "run": NONCE, "places": 1})
    stand.turn()
    late.settimeout(5)
    assert b"is here already" in late.recv(1000)
    assert stand.hub.others() == ["second"]


def test_where_the_hub_is_gone_one_worker_of_the_node_saves_before_they_go() -> None:
    """Nobody else could tell them: the coordinator may have been lost with the hub's node."""
    said: list[tuple[str | None, Message]] = []
    gone: list[str] = []
    loop = selectors.DefaultSelector()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    hub = HubElsewhere(ours, nonce=NONCE, say=gone.append)
    hub.open(loop, lambda worker, message: said.append((worker, message)), gone.append)

    def tell(say: str, worker: str, **facts: object) -> list[tuple[str | None, Message]]:
        said.clear()
        hub.tell({"say": say, "worker": worker, **facts})
        return list(said)

    def leaving(worker: str, *, step: int = 7, **facts: object) -> list[tuple[str | None, Message]]:
        return tell("leaving", worker, generation=3, step=step, **facts)

    save, go = {"say": "save", "generation": 3}, {"say": "released", "safe": True}
    assert leaving("one") == []
    theirs.close()
    for key, _ in loop.select(1.0):
        key.data()
    assert gone
    assert said == [("one", save)]
    assert leaving("two") == []
    assert tell("exited", "one", code=1) == [("two", save)]
    assert leaving("three") == []
    assert sorted(tell("saved", "two", generation=3, step=7)) == [("three", go), ("two", go)]
    assert leaving("four", step=8, whole=False) == [("four", {"say": "released", "safe": False})]
    assert leaving("five", saved=True) == [("five", go)]
    hub.close()
