"""Whoever connects to a run's hub: bytes that were recorded, or somebody who has a secret, the run's or another one."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

from elastic.membership.messages.known_lists import KnownLists
from elastic.membership.messages.messages import Hello, as_message
from elastic.membership.messages.wire import Lines, Message, encode
from elastic_checkpoint.net.secret import TransportError
from elastic_checkpoint.net.transport import client_side

_ANSWER_S = 20.0
_EVERY_PROTOCOL = 3
_OUTGOING = 4  # a packet on its way out; on a loop each is seen once more as it comes in


class Peer:
    """A connection to `at`. `with` ends it."""

    def __init__(self, at: tuple[str, int], secret: str | None) -> None:
        self._socket = socket.create_connection(at, timeout=_ANSWER_S)
        self._transport = client_side(secret)
        self._lines, self._known = Lines(), KnownLists()

    def says(self, message: Message) -> None:
        self.sends(encode(message))

    def sends(self, data: bytes) -> None:
        self._socket.sendall(self._transport.encrypt(data))

    def hears(self) -> list[Message]:
        """At least one message; none where the other end hangs up. Raises OSError, TransportError."""
        deadline_s, heard = time.monotonic() + _ANSWER_S, list[Message]()
        while not heard:
            self._socket.settimeout(max(0.001, deadline_s - time.monotonic()))
            if not (arrived := self._socket.recv(1 << 16)):
                break
            try:
                said = self._transport.decrypt(arrived)
            finally:
                if self._transport.pending:
                    with contextlib.suppress(OSError):
                        self._socket.sendall(self._transport.encrypt())
            heard = [self._known.unpack(message) for message in self._lines.feed(said)]
        return heard

    def joins(self, node: str, run: str, *, slots: int = 0, port: int = 9) -> list[Message]:
        """Says hello as that node; what the hub says first."""
        self.says(as_message(Hello(node=node, address="127.0.0.1", port=port, slots=slots, run=run)))
        with contextlib.suppress(OSError, TransportError):
            return self.hears()
        return []

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: Any) -> None:
        self._socket.close()


def roster_at(at: tuple[str, int], secret: str | None, run: str) -> list[list[Any]]:
    """Of each node of that run its name, address and port, as its hub tells one that joins without a worker."""
    with Peer(at, secret) as peer:
        said = peer.joins("asks-for-names", run)
        while (roster := next((one for one in said if one["say"] == "roster"), None)) is None:
            said = peer.hears()
            assert said, "the hub told nobody's name"
    return [node for node in roster["nodes"] if node[0] != "asks-for-names"]


@contextlib.contextmanager
def recording(port: int) -> Iterator[dict[int, bytes]]:
    """What goes to this port of the machine's own loop, by the port that it comes from. Raises PermissionError."""
    seen: dict[int, bytes] = {}
    ended = threading.Event()
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_EVERY_PROTOCOL)) as wire:
        wire.bind(("lo", _EVERY_PROTOCOL))
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
        wire.settimeout(0.1)

        def record() -> None:
            expected: dict[int, int] = {}
            while not ended.is_set():
                try:
                    packet, whence = wire.recvfrom(1 << 17)
                except TimeoutError:
                    continue
                if whence[2] == _OUTGOING or packet[0] >> 4 != 4 or packet[9] != socket.IPPROTO_TCP:
                    continue
                head = 4 * (packet[0] & 15)
                source, to, number = struct.unpack_from("!HHI", packet, head)
                said = packet[head + 4 * (packet[head + 12] >> 4) : struct.unpack_from("!H", packet, 2)[0]]
                if to == port and said and number == expected.get(source, number):
                    expected[source] = number + len(said) & 0xFFFFFFFF
                    seen[source] = seen.get(source, b"") + said

        thread = threading.Thread(target=record, name="recording")
        thread.start()
        try:
            yield seen
        finally:
            ended.set()
            thread.join()
