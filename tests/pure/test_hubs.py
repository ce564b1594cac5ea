"""The hub's port is open to whoever reaches the machine: what strangers say there changes nothing."""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from elastic.launch.hubs import _UNKNOWN_MAX, HubHere
from elastic.membership.hub import Hub

NONCE = "known to the run"


class Stand:
    """A hub in a loop that this test turns."""

    def __init__(self, opened: ExitStack) -> None:
        self._opened = opened
        listener = socket.create_server(("127.0.0.1", 0))
        self._address = listener.getsockname()
        self._loop = selectors.DefaultSelector()
        self.hub = HubHere(Hub(nodes_max=9), "first", listener=listener, nonce=NONCE)
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
