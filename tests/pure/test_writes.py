"""What is said in a turn of the loop leaves in one write, at its end.

Each is a system call, a record of TLS and a turn of the hub's, which has as many to read as there are workers.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from elastic.launch.hub.link import HubLink
from elastic.launch.node_rules import ThisNode
from elastic.membership.hub.hub import Hub
from elastic.membership.messages.messages import Hello, Ready, Started, as_message
from elastic.membership.messages.wire import Lines, encode
from elastic_checkpoint.net.connection import Connection
from elastic_checkpoint.net.event_loop import EventLoop, run_once
from elastic_checkpoint.net.transport import Transport, client_side, server_side

SECRET = "known to its nodes alone, and random"
RUN = "known to the run"
WITHIN_S = 30.0
TOLD = [{"say": "ready", "number": number} for number in range(8)]
HEADER = 5  # bytes of a record of TLS, of which the last two are its length


class Other:
    """The other end, by hand: what each write to it, or each record of TLS, has said."""

    def __init__(self, sock: socket.socket, transport: Transport | None = None) -> None:
        sock.settimeout(WITHIN_S)
        self._socket = sock
        self._transport = transport
        self._lines = Lines()
        self._rest = b""

    def says(self, *messages: Any) -> None:
        data = b"".join(map(encode, messages))
        self._socket.sendall(self._transport.encrypt(data) if self._transport else data)

    def ends(self) -> None:
        self._socket.close()

    def writes(self, messages: int) -> list[list[dict[str, Any]]]:
        """Until there are so many messages, or the end."""
        found: list[list[dict[str, Any]]] = []
        while sum(map(len, found)) < messages and (arrived := self._socket.recv(1 << 20)):
            said = map(self._lines.feed, self._decrypted(self._transport, arrived) if self._transport else [arrived])
            found += [messages for messages in said if messages]
        return found

    def is_told_more(self) -> bool:
        self._socket.setblocking(False)
        try:
            return bool(self._socket.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return False
        finally:
            self._socket.settimeout(WITHIN_S)

    def _decrypted(self, transport: Transport, arrived: bytes) -> Iterator[bytes]:
        self._rest += arrived
        while len(self._rest) >= HEADER + (length := int.from_bytes(self._rest[3:HEADER], "big")):
            record, self._rest = self._rest[: HEADER + length], self._rest[HEADER + length :]
            yield transport.decrypt(record)
            if transport.pending:
                self._socket.sendall(transport.encrypt())


@pytest.fixture
def loop() -> Iterator[EventLoop]:
    with EventLoop() as loop:
        yield loop


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def ends(opened: ExitStack, loop: EventLoop, heard: list[Any], kind: int) -> tuple[Connection, Other]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
    opened.enter_context(theirs)
    connection = Connection(loop, ours, heard.append, heard.append)
    opened.callback(connection.close)
    return connection, Other(theirs)


def test_what_is_said_in_a_turn_arrives_in_order_and_in_one_write(loop: EventLoop, opened: ExitStack) -> None:
    """To each of two, to whom it is said by turns. A packet of these sockets is a write."""
    pairs = [ends(opened, loop, [], socket.SOCK_SEQPACKET) for _ in range(2)]
    for message in TOLD:
        for connection, _ in pairs:
            connection.say(message)
    loop.end_turn()
    assert [other.writes(len(TOLD)) for _, other in pairs] == [[TOLD], [TOLD]]
    assert not any(other.is_told_more() for _, other in pairs)


def test_who_has_hung_up_is_noticed_after_what_it_said_though_there_is_something_to_say(
    loop: EventLoop, opened: ExitStack
) -> None:
    heard: list[Any] = []
    connection, other = ends(opened, loop, heard, socket.SOCK_STREAM)
    other.says(*TOLD)
    other.ends()
    connection.say({"say": "too late"})
    while None not in heard:
        assert run_once(loop, WITHIN_S)
    assert heard == [*TOLD, None]


def test_what_the_workers_of_a_node_say_in_a_turn_reaches_the_hub_in_one_record(
    loop: EventLoop, opened: ExitStack
) -> None:
    server = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
    link = link_of(opened, loop, connected=socket.create_connection(server.getsockname()))
    hub = Other(opened.enter_context(server.accept()[0]), server_side(SECRET))
    assert words(until(loop, hub, 1)) == [["hello"]]
    told = [as_message(Ready(worker=f"x{rank}", shares=8, identity="one")) for rank in range(8)]
    for message in told:
        link.tell(message)
    loop.end_turn()
    assert [[message["worker"] for message in write] for write in hub.writes(8)] == [[f"x{rank}" for rank in range(8)]]


def test_what_the_hub_says_to_a_node_in_a_turn_leaves_in_one_record(loop: EventLoop, opened: ExitStack) -> None:
    """Which workers are in the view, and which nodes hold no part of it."""
    listener = socket.create_server(("127.0.0.1", 0))
    link = link_of(opened, loop, listener=listener)
    node = Other(opened.enter_context(socket.create_connection(listener.getsockname())), client_side(SECRET))
    node.says(as_message(Hello(node="y", address="127.0.0.1", port=1, run=RUN, slots=2)))
    assert words(until(loop, node, 1, link)) == [["roster"]]
    node.says(
        *[as_message(Started(worker=f"y{rank}", local_rank=rank)) for rank in range(2)],
        *[as_message(Ready(worker=f"y{rank}", shares=8, identity="one")) for rank in range(2)],
    )
    assert words(until(loop, node, 2, link)) == [["view", "roster"]]


def words(writes: list[list[dict[str, Any]]]) -> list[list[str]]:
    return [[message["say"] for message in write] for write in writes]


def link_of(opened: ExitStack, loop: EventLoop, **sockets: Any) -> HubLink:
    said: list[Any] = []
    link = HubLink(
        ThisNode(node="x", address="127.0.0.1", run=RUN, secret=SECRET),
        lambda takes_over: Hub(nodes_max=9, takes_over=takes_over),
        say=said.append,
        **sockets,
    )
    link.open(
        loop,
        lambda worker, message: None,
        gone=said.append,
        moved_on=said.append,
        waits=said.append,
        not_admitted=said.append,
        slots=lambda: (0, []),
        catch_up=lambda: None,
    )
    opened.callback(link.close)
    return link


def until(loop: EventLoop, other: Other, messages: int, link: HubLink | None = None) -> list[list[dict[str, Any]]]:
    """Turns the loop until the other end has so many messages."""
    found: list[Any] = []
    listening = threading.Thread(target=lambda: found.extend(other.writes(messages)))
    listening.start()
    while listening.is_alive():
        run_once(loop, 0.02)
        if link is not None:
            link.settle()
    return found
