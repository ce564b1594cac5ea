"""What an agent does with its way to the hub: what it says to one that it comes to, and where it goes from there."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from elastic.launch.hub.link import HubLink
from elastic.launch.node_rules import ThisNode
from elastic.membership.hub.hub import Hub
from elastic.membership.messages.messages import (
    Claimed,
    Entered,
    Hello,
    HubIs,
    MovedOn,
    Ready,
    Roster,
    Started,
    ViewIsOver,
    Witness,
    as_message,
)
from elastic.membership.messages.wire import LINE_MAX, Lines, encode
from elastic.version import __version__
from elastic_checkpoint.net.event_loop import EventLoop, run_once

RUN = "known to the run"
WITHIN_S = 30.0
IS_OVER = as_message(ViewIsOver(worker="x0", generation=1, step=3, at="in step", lost=True))


class Listening:
    """Somewhere a node may look for the hub."""

    def __init__(self, opened: ExitStack) -> None:
        self._opened = opened
        self._listener = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
        self._listener.settimeout(WITHIN_S)
        self.address = self._listener.getsockname()

    def accepts(self) -> Talking:
        return Talking(self._opened.enter_context(self._listener.accept()[0]))

    def is_called(self) -> bool:
        return bool(select.select([self._listener], [], [], 0)[0])

    def closes(self) -> None:
        self._listener.close()

    def in_roster(self, name: str) -> tuple[str, str, int]:
        return (name, *self.address)


class Talking:
    """The other end of a node's connection: it says what the test says, and keeps what it hears."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._lines = Lines()
        sock.settimeout(WITHIN_S)

    def say(self, said: Any) -> None:
        self._socket.sendall(encode({"to": None, **as_message(said)}))

    def asks(self, said: Any) -> None:
        """As an agent, of another one."""
        self._socket.sendall(encode(as_message(said)))

    def ends(self) -> None:
        self._socket.close()

    def ends_once_heard(self) -> None:
        """Where the node's pings lie unread, to close resets the connection, and what was said last is lost."""
        self._socket.shutdown(socket.SHUT_WR)

    def is_told(self) -> bool:
        return bool(select.select([self._socket], [], [], 0)[0])

    def hears(self) -> list[dict[str, Any]]:
        """At least one message; none where the node has hung up."""
        heard: list[dict[str, Any]] = []
        while not heard and (data := self._socket.recv(1 << 16)):
            heard = self._lines.feed(data)
        return heard


class Node:
    """An agent's link, in a loop that the test turns.

    its_workers_say  what lies in its workers' channels
    ordered          what it was told to do by hubs
    gone             why its workers are of no use, as it gave up
    not_admitted     the same, before it had any in the run
    finds            where the hub is found by those who know of the run; None: nowhere
    """

    def __init__(self, opened: ExitStack, *, run: str = RUN) -> None:
        self._opened = opened
        self._run = run
        self._loop = opened.enter_context(EventLoop())
        self._listener = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.address = self._listener.getsockname()
        self.ordered: list[dict[str, Any]] = []
        self.its_workers_say: list[dict[str, Any]] = []
        self.said: list[str] = []
        self.gone: list[str] = []
        self.not_admitted: list[str] = []
        self.finds: Listening | None = None

    def joins(self, hub: Listening) -> Talking:
        self._opens(socket.create_connection(hub.address))
        return hub.accepts()

    def serves(self) -> None:
        self._opens(None)

    def is_called(self) -> Talking:
        return Talking(self._opened.enter_context(socket.create_connection(self.address)))

    def in_roster(self, name: str) -> tuple[str, str, int]:
        return (name, *self.address)

    def _opens(self, connected: socket.socket | None) -> None:
        self.link = HubLink(
            ThisNode(node="x", address="127.0.0.1", run=self._run),
            lambda takes_over: Hub(nodes_max=9, takes_over=takes_over),
            say=self.said.append,
            listener=self._listener,
            connected=connected,
            find_hub=lambda: socket.create_connection(self.finds.address) if self.finds is not None else None,
        )
        self.link.open(
            self._loop,
            lambda worker, message: self.ordered.append(message),
            gone=self.gone.append,
            moved_on=self.said.append,
            waits=self.said.append,
            not_admitted=self.not_admitted.append,
            slots=lambda: (1, []),
            catch_up=self._catch_up,
        )
        self._loop.end_turn()
        self._opened.callback(self.link.close)

    def tells(self, said: Any) -> None:
        self.link.tell(as_message(said))
        self._loop.end_turn()

    def turn_until(self, holds: Callable[[], object]) -> None:
        deadline = time.monotonic() + WITHIN_S
        while not holds():
            assert time.monotonic() < deadline, self.said
            run_once(self._loop, 0.05)
            self.link.tick(time.monotonic())
            self._loop.end_turn()

    def is_ordered(self, say: str) -> bool:
        self.link.settle()
        return any(message["say"] == say for message in self.ordered)

    def turn(self, within_s: float = WITHIN_S) -> None:
        run_once(self._loop, within_s)
        self._loop.end_turn()

    def _catch_up(self) -> None:
        while self.its_workers_say:
            self.link.tell(self.its_workers_say.pop(0))


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def node(opened: ExitStack) -> Node:
    return Node(opened)


def test_an_agent_says_hello_before_anything_that_its_workers_said_meanwhile(opened: ExitStack, node: Node) -> None:
    """What came before the hello was taken for a stranger's word, and the node was sent away with status 1."""
    first, second = Listening(opened), Listening(opened)
    hub = node.joins(first)
    assert [one["say"] for one in hub.hears()] == ["hello"]
    node.tells(Started(worker="x0", local_rank=0))
    hub.say(Roster(nodes=[second.in_roster("next")]))
    node.turn()
    node.its_workers_say = [IS_OVER]
    hub.ends()
    node.turn()  # it hears that,
    node.turn()  # and is connected to the next
    hello, *more = second.accepts().hears()
    assert hello["say"] == "hello"
    assert [one["said"] for one in hello["report"]["workers"]] == [[IS_OVER]]
    assert more == []


def test_a_node_whose_hub_is_lost_before_it_knows_anybody_looks_for_it_anew(opened: ExitStack, node: Node) -> None:
    """It had come while the hub moved, and ended with 1; whatever had started it had to start it again."""
    first, second = Listening(opened), Listening(opened)
    hub = node.joins(first)
    hub.hears()
    node.finds = second
    hub.ends()
    node.turn_until(second.is_called)
    found = second.accepts()
    node.turn_until(found.is_told)
    assert [one["say"] for one in found.hears()] == ["hello"]
    assert node.gone + node.not_admitted == []
    assert any("it is looked for where this node found it" in line for line in node.said)


def test_a_node_that_was_moved_on_from_looks_beyond_those_whom_it_knows(opened: ExitStack, node: Node) -> None:
    """They may all be gone by then, and the run goes on with others."""
    first, second = Listening(opened), Listening(opened)
    hub = node.joins(first)
    hub.hears()
    hub.say(Roster(nodes=[("x", "127.0.0.1", 1), first.in_roster("first")]))
    node.turn()
    first.closes()
    node.finds = second
    hub.say(MovedOn(why="claim 2 is another's"))
    hub.ends()
    node.turn_until(second.is_called)


def test_a_newcomer_that_finds_no_hub_says_that_it_may_come_again(
    opened: ExitStack, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no part in the run yet, or none any more: nothing has failed."""
    monkeypatch.setattr("elastic.launch.hub.rules.SEEK_S", 0.1)
    hub = node.joins(Listening(opened))
    hub.hears()
    hub.ends()
    node.turn_until(lambda: node.not_admitted)
    (why,) = node.not_admitted
    assert why.startswith("no hub was found within 0 s")
    assert node.gone == []


@pytest.mark.parametrize("silent", [False, True])
def test_a_newcomer_waits_for_who_is_silent_and_not_where_all_refuse(
    silent: bool, opened: ExitStack, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is over, or what is left of it is written elsewhere; who is silent may be on another side of a cut."""
    monkeypatch.setattr("elastic.launch.hub.rules.REFUSED_S", 0.3)
    monkeypatch.setattr("elastic.launch.hub.rules.SEEK_S", 4.0)
    monkeypatch.setattr("elastic.launch.hub.rules.PAUSE_S", 0.01)
    hub = Listening(opened)
    talks = node.joins(hub)
    talks.hears()
    others = [("gone", "127.0.0.1", 1)] + ([Listening(opened).in_roster("silent")] if silent else [])
    talks.say(Roster(nodes=[*others, hub.in_roster("first"), node.in_roster("x")]))
    node.turn()
    hub.closes()
    talks.say(MovedOn(why="claim 2 is another's"))
    talks.ends()
    node.turn_until(lambda: node.not_admitted)
    (why,) = node.not_admitted
    assert ("no hub was found" in why, "have refused connections" in why) == (silent, not silent)


def test_a_line_of_the_hub_may_be_as_long_as_a_large_run_needs(opened: ExitStack, node: Node) -> None:
    """More than 1 MiB ended the connection of every agent, at some thousands of workers."""
    hub = node.joins(Listening(opened))
    hub.hears()
    nodes = [(f"ip-10-0-{number // 256}-{number % 256}.ec2.internal-4711", "10.0.0.1", 7000) for number in range(20000)]
    roster = Roster(nodes=nodes)
    assert len(encode(as_message(roster))) > LINE_MAX
    says = threading.Thread(target=hub.say, args=[roster])
    says.start()
    node.turn_until(lambda: not says.is_alive())
    hub.ends_once_heard()
    node.turn_until(lambda: node.said)
    assert "the next of 20000 nodes is asked" in node.said[0]


def test_two_nodes_that_look_for_the_hub_do_not_send_each_other_to_themselves(opened: ExitStack, node: Node) -> None:
    """Both were moved on from and wait for a cut to heal. Each is with the other, who is no hub and says nothing; who
    had come half a second before that was sent to its own address, was refused there, and ended with 1."""
    nobody_knows = [Listening(opened), Listening(opened)]
    other = Listening(opened)
    hub = node.joins(nobody_knows[0])
    hub.hears()
    others = [one.in_roster(f"n{number}") for number, one in enumerate([*nobody_knows, other])]
    hub.say(Roster(nodes=[node.in_roster("x"), *others]))
    node.turn()
    hub.say(MovedOn(why="claim 2 is another's"))
    node.turn_until(nobody_knows[0].is_called)
    address, port = other.address
    caller = node.is_called()
    caller.asks(Hello(node="other", address=address, port=port, slots=1, run=RUN))
    for one in nobody_knows:
        node.turn_until(one.is_called)
        one.accepts().say(HubIs())
    node.turn_until(other.is_called)
    node.turn_until(caller.is_told)
    assert caller.hears() == [{"to": None, **as_message(HubIs(version=__version__))}]


def test_who_is_sent_to_itself_asks_the_next_one(opened: ExitStack, node: Node) -> None:
    first, second = Listening(opened), Listening(opened)
    hub = node.joins(first)
    hub.hears()
    hub.say(Roster(nodes=[node.in_roster("x"), first.in_roster("first"), second.in_roster("second")]))
    node.turn()
    hub.say(MovedOn(why="claim 2 is another's"))
    node.turn_until(first.is_called)
    no_hub = first.accepts()
    address, port = node.address
    no_hub.say(HubIs(address=address, port=port))
    node.turn_until(second.is_called)
    assert node.ordered == []
    assert not any(f":{port}" in line for line in node.said)


def test_the_address_of_another_run_is_not_asked_again_and_ends_nothing(opened: ExitStack, node: Node) -> None:
    """A machine was given back, and its address is another job's, as are its ports. What that job's agent said of
    itself was taken for the end of this run: the node ended with 1."""
    first, second = Listening(opened), Listening(opened)
    stranger = Node(opened, run="another")
    stranger.serves()
    hub = node.joins(first)
    hub.hears()
    names = [node.in_roster("x"), stranger.in_roster("gone"), first.in_roster("first"), second.in_roster("second")]
    hub.say(Roster(nodes=names))
    node.turn()
    hub.say(MovedOn(why="claim 2 is another's"))
    first.closes()

    def second_is_called() -> bool:
        stranger.turn(0.0)
        return second.is_called()

    node.turn_until(second_is_called)
    assert node.ordered == []
    second.accepts().say(HubIs())
    node.turn_until(second_is_called)
    assert sum("is none of this run" in line for line in node.said) == 1


def test_a_hub_that_falls_silent_is_lost_to_an_agent_that_is_always_late(opened: ExitStack, node: Node) -> None:
    """Each late tick began its lease anew."""
    hub = node.joins(Listening(opened))
    hub.hears()
    hub.say(Roster(nodes=[node.in_roster("x")]))
    node.turn()
    now_s = time.monotonic()
    for late in range(1, 9):
        node.link.tick(now_s + 2.0 * late)
    assert any("the connection to the run's hub is lost: nothing was heard of it" in line for line in node.said)


def test_a_hub_that_is_moved_on_from_in_its_own_tick_looks_for_the_other_one(opened: ExitStack, node: Node) -> None:
    """Its worker had said that others have the claim, and died: both were heard in one tick, and the agent failed."""
    elsewhere = Listening(opened)
    node.serves()
    other = node.is_called()
    _, address, port = elsewhere.in_roster("y")
    other.asks(Hello(node="y", run=RUN, slots=1, address=address, port=port))
    node.turn_until(lambda: node.link.others() == ["y"])
    claim = {"claim": 1, "nonce": "first"}
    for worker, says in (("x0", node.tells), ("y0", other.asks)):
        says(Started(worker=worker, local_rank=0))
        says(Ready(worker=worker, shares=8, identity="one"))
    node.turn_until(lambda: node.is_ordered("view"))
    for agreed in (False, True):
        node.tells(Witness(worker="x0", generation=1, claim=claim, agreed=agreed))
    node.tells(Entered(worker="x0", generation=1))
    other.ends()
    node.turn_until(lambda: node.is_ordered("broken"))
    node.link.tell(IS_OVER)
    node.turn_until(lambda: node.is_ordered("claim"))
    theirs = {"claim": 2, "nonce": "theirs", "world": {"nodes": ["y"]}}
    node.tells(Claimed(worker="x0", generation=2, claim=theirs, why="claim 2 is newer", moved_on=True))
    node.link.tick(time.monotonic())
    assert node.said == ["claim 2 is newer"]
    node.turn_until(elsewhere.is_called)
