"""Which connections are a group's own."""

from __future__ import annotations

import socket
from contextlib import ExitStack

from elastic.group.sockets import connections, listening_ports


def test_of_each_connection_there_is_one_copy() -> None:
    """A second copy would stand for a peer that the watch then never sees."""
    with ExitStack() as opened:
        server = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = server.getsockname()[1]
        clients = [opened.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(3)]
        accepted = [opened.enter_context(server.accept()[0]) for _ in clients]

        to_peers = connections(own_ports=(), peer_ports=(port,))
        from_peers = connections(own_ports=(port,), peer_ports=())
        for copy in (*to_peers, *from_peers):
            opened.enter_context(copy)

        assert sorted(copy.getsockname() for copy in to_peers) == sorted(client.getsockname() for client in clients)
        assert sorted(copy.getpeername() for copy in from_peers) == sorted(end.getpeername() for end in accepted)


def test_listening_ports_are_those_of_this_process() -> None:
    before = listening_ports()
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert listening_ports() - before == {server.getsockname()[1]}


def test_no_other_connection_is_taken() -> None:
    """A store's, object storage's: other threads open them while a group is formed."""
    with (
        socket.create_server(("127.0.0.1", 0)) as own,
        socket.create_server(("127.0.0.1", 0)) as store,
        socket.create_connection(store.getsockname()),
        store.accept()[0],
    ):
        assert connections(own_ports=(own.getsockname()[1],), peer_ports=()) == []
