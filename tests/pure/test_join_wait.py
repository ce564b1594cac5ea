"""A launcher that starts one node too many waits for a place, asks ever more rarely, and gives up with a deadline."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from elastic.launch.hub import rules
from elastic.launch.hub.link import HubLink
from elastic.launch.hub.rules import JOIN_PAUSE_MAX_S, JoinWait
from elastic.launch.node_rules import ThisNode
from elastic.membership.hub.hub import Hub
from elastic_checkpoint.net.event_loop import EventLoop, run_once

NONCE = "known to the run"


def test_the_pauses_grow_to_a_bound_and_the_wait_has_an_end() -> None:
    wait = JoinWait(100.0, 60.0)
    asked = [now for now in (100.0 + 0.25 * tick for tick in range(240)) if wait.is_due(now)]
    pauses = [later - earlier for earlier, later in zip([100.0, *asked], asked, strict=False)]
    assert pauses[:4] == [0.5, 1.0, 2.0, 4.0]
    assert set(pauses[4:]) == {JOIN_PAUSE_MAX_S}
    assert not wait.is_over(159.9)
    assert wait.is_over(160.0)


class NodesInOneLoop:
    """Nodes in one loop: the first has the hub, and room for two."""

    def __init__(self, opened: ExitStack) -> None:
        self._opened = opened
        self._loop = EventLoop()
        self.said: dict[str, list[str]] = {}
        self.links: dict[str, HubLink] = {}
        self.ordered: dict[str, list[str]] = {}
        self._hub = self.comes("first", join_s=9.0)

    def comes(self, name: str, *, join_s: float) -> socket.socket:
        listener = socket.create_server(("127.0.0.1", 0))
        connected = socket.create_connection(self._hub.getsockname()) if self.links else None
        said, ordered = self.said.setdefault(name, []), self.ordered.setdefault(name, [])
        link = self.links[name] = HubLink(
            ThisNode(node=name, address="127.0.0.1", run=NONCE),
            lambda takes_over: Hub(nodes_max=2, takes_over=takes_over),
            say=said.append,
            listener=listener,
            connected=connected,
            join_s=join_s,
        )
        link.open(
            self._loop,
            lambda worker, message: ordered.append(message["say"]),
            gone=lambda why: said.append(f"gone: {why}"),
            moved_on=lambda why: said.append(f"moved on: {why}"),
            waits=lambda why: said.append(f"waits: {why}"),
            not_admitted=lambda why: said.append(f"no place: {why}"),
            slots=lambda: (1, []),
            catch_up=lambda: None,
        )
        self._opened.callback(link.close)
        return listener

    def until(self, holds: Callable[[], object], within_s: float = 20.0) -> None:
        deadline = time.monotonic() + within_s
        while not holds():
            assert time.monotonic() < deadline, (self.said, self.ordered)
            run_once(self._loop, 0.02)
            for link in self.links.values():
                link.tick(time.monotonic())


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[NodesInOneLoop]:
    monkeypatch.setattr(rules, "JOIN_PAUSE_S", 0.05)
    with ExitStack() as opened:
        yield NodesInOneLoop(opened)


def test_a_node_too_many_waits_and_joins_when_another_leaves(nodes: NodesInOneLoop) -> None:
    nodes.comes("second", join_s=9.0)
    nodes.until(lambda: nodes.links["first"].others() == ["second"])
    nodes.comes("third", join_s=9.0)
    nodes.until(lambda: nodes.said["third"])
    assert nodes.said["third"][0].startswith("waits: the run has its 2 nodes already: this node waits for a place, 9 s")
    nodes.links.pop("second").close()
    nodes.until(lambda: "start" in nodes.ordered["third"])
    assert len(nodes.said["third"]) == 1


def test_a_node_that_finds_no_place_in_time_says_so(nodes: NodesInOneLoop) -> None:
    nodes.comes("second", join_s=9.0)
    nodes.until(lambda: nodes.links["first"].others() == ["second"])
    nodes.comes("third", join_s=1.0)
    nodes.until(lambda: len(nodes.said["third"]) == 2)
    assert nodes.said["third"][1].startswith("no place: no place in the run came free within 1 s\n")
    assert nodes.ordered["third"] == []
