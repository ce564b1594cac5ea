"""One connection of two processes of one job: messages both ways, and how it ended."""

from __future__ import annotations

import contextlib
import socket
import threading

from elastic_checkpoint.net.framing import LINE_MAX, Lines, Message, encode
from elastic_checkpoint.net.keepalive import keep_alive
from elastic_checkpoint.net.transport import Transport

_MEMBER_LINE_MAX = 2**30  # as a manifest: 4,000 ranks that each hold a part of 4,000 tensors need about as much
_SEND_S = 60.0  # the other end reads in a thread of its own
_READ_BYTES = 2**16


class Connection:
    """Any thread may send; one reads.

    ended   how it ended, once it has
    number  of the other end, where that is a client that has greeted
    """

    def __init__(self, connected: socket.socket, transport: Transport, *, longest: int = LINE_MAX) -> None:
        """Keep the connection alive; longest: bytes that a line may have before it has `greeted`. Raises OSError."""
        connected.settimeout(_SEND_S)  # reading comes after poll, so this is for sending
        keep_alive(connected)
        self.socket = connected
        self.ended = ""
        self.number: int | None = None
        self._transport = transport
        self._lines = Lines(longest)
        self._sending = threading.Lock()

    def greeted(self) -> None:
        """Take long lines from here on, as the other end is one of ours."""
        self._lines.longest = _MEMBER_LINE_MAX
        self.socket.settimeout(_SEND_S)

    def send(self, message: Message) -> bool:
        """Return whether it was sent; if not, the other end is gone, or will be in a moment."""
        return self._send(encode(message))

    def received(self) -> list[Message]:
        """Return what has arrived, in whole messages. Raises OSError, TransportError, NotAMessage."""
        data = self.socket.recv(_READ_BYTES)
        if not data:
            self.ended = "its connection ended"
            return []
        shakes_hands = not self._transport.through
        try:
            said = self._transport.decrypt(data)
        finally:  # later nothing is said in answer, and what others are just saying is not waited for
            if (shakes_hands or self._transport.refused) and self._transport.pending:
                self._send(b"")
        return self._lines.feed(said)

    def _send(self, data: bytes) -> bool:
        try:
            with self._sending:
                self.socket.sendall(self._transport.encrypt(data))
        except OSError:
            self.shut()  # the one who reads it learns of it
            return False
        return True

    def shut(self) -> None:
        """Have the one who reads it meet its end."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
