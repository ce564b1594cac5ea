"""One end of a line of messages in an event loop: reading and writing never wait, and an end is noticed once.

What is said in one turn of the loop leaves in one write at its end: a write is a record of TLS, a call of the kernel
and a turn of the other end, and a hub of thousands of workers has one for each that it hears. Nothing waits longer than
the turn, nor beyond a record's length, and what was said just before a connection is closed is sent.
"""

from __future__ import annotations

import logging
import selectors
import socket
import sys
from collections.abc import Callable
from contextlib import suppress

from elastic_checkpoint.net.codec import LINE_MAX, Lines, Message, NotAMessage, encode
from elastic_checkpoint.net.event_loop import EventLoop
from elastic_checkpoint.net.secret import TransportError
from elastic_checkpoint.net.transport import Cleartext, Transport

RECORD = 1 << 14  # bytes that a record of TLS has at most: who waits for more saves nothing
LOST_S = 30  # after so long without any answer of its kernel, a machine counts as lost

_log = logging.getLogger("elastic_checkpoint")

_READ_BYTES = 1 << 16
_UNREAD_MAX = 1 << 26  # bytes: a peer that takes nothing for so long is of no use
_PROBE_S, _PROBES = 5, 4
_THIN_LINEAR_TIMEOUTS = 16  # linux/tcp.h; Python has no name for it


class Connection:
    """Calls on_message for each message, then on_end once, unless it is closed before. Closes itself at its end.

    on_message   raises NotAMessage for one that it refuses, which ends the connection
    on_end(why)  why it was given up; None: the other end closed it
    error        which ended it: TransportError, NotAMessage, or the kernel's
    """

    def __init__(
        self,
        loop: EventLoop,
        sock: socket.socket,
        on_message: Callable[[Message], None],
        on_end: Callable[[str | None], None],
        transport: Transport | None = None,
        *,
        longest: int = LINE_MAX,
    ) -> None:
        """Register with the loop; transport: None between processes of one node; longest: bytes of a line."""
        sock.setblocking(False)
        self.error: Exception | None = None
        self._loop = loop
        self._socket = sock
        self._on_message = on_message
        self._on_end = on_end
        self._transport = transport or Cleartext()
        self._lines = Lines(longest)
        self._held = b""  # said in this turn
        self._unsent = bytearray()  # which the kernel has not taken yet
        self._open = True
        loop.register(sock, selectors.EVENT_READ, self.ready)
        self._shake_hands()

    @property
    def refused(self) -> str:
        """Return why the other end is none of ours, "" if it is or may be."""
        return self._transport.refused

    @property
    def unsent(self) -> bool:
        """Return whether something was said that the kernel has not taken yet."""
        return self._open and bool(self._held or self._unsent or not self._transport.through)

    def takes_long_lines(self, longest: int) -> None:
        """Accept lines of so many bytes, as the other end is known to be one of ours."""
        self._lines.longest = longest

    def say(self, message: Message) -> None:
        self.send(encode(message))

    def send(self, data: bytes) -> None:
        """Send these bytes at the end of the turn, sooner where they fill a record."""
        if not self._open:
            return
        if not self._held:
            self._loop.at_end_of_turn(self._write)
        self._held += data
        if len(self._held) >= RECORD:
            self._write()

    def ready(self) -> None:
        """Write and read what can be; called by the loop."""
        if self._unsent:
            self._write()
        self._read()

    def catch_up(self) -> None:
        """Take in everything that has arrived."""
        while self._open and self._read():
            pass

    def drain(self) -> None:
        """Take in everything that has arrived, and close, for a peer that is known to be gone."""
        self.catch_up()
        self.close()

    def close(self) -> None:
        """Send what was said as far as the kernel takes it, and close."""
        if self._open:
            self._open = False
            self._transmit()
            self._loop.unregister(self._socket)
            self._socket.close()

    def _read(self) -> bool:
        """Return whether anything came, be it a part of a message."""
        if not self._open:
            return False
        try:
            data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return False
        except OSError as failure:
            self.error = failure
            data = b""
        if not data:
            self._end(None)
            return False
        try:
            messages = self._lines.feed(self._transport.decrypt(data))
            self._shake_hands()
            for message in messages:
                if self._open:
                    self._on_message(message)
        except (TransportError, NotAMessage) as wrong:
            self.error = wrong
            self._shake_hands()  # it is told why it is refused
            self._end(str(wrong))
            return False
        return True

    def _shake_hands(self) -> None:
        if self._transport.pending:
            self._write()

    def _write(self) -> None:
        if not self._open:
            return
        self._transmit()
        if len(self._unsent) > max(_UNREAD_MAX, self._lines.longest):
            self._end(f"{len(self._unsent)} bytes were not taken")
        else:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
            self._loop.modify(self._socket, events, self.ready)

    def _transmit(self) -> None:
        """Send all that was said, as far as the kernel takes it."""
        said, self._held = self._held, b""
        data: bytes | bytearray = self._transport.encrypt(said) if said or self._transport.pending else b""
        if self._unsent:
            self._unsent += data
            data = self._unsent
        if not data:
            return
        try:
            count = self._socket.send(data)
        except BlockingIOError:
            count = 0
        except OSError:
            self._unsent.clear()  # reading will meet the end, after what still lies there
            return
        if data is self._unsent:
            del self._unsent[:count]
        elif count < len(data):
            self._unsent += memoryview(data)[count:]

    def _end(self, why: str | None) -> None:
        if self._open:
            self.close()
            self._on_end(why)


def pass_on(heard: Callable[[Message], None], message: Message) -> None:
    """Have this message heard. Raises NotAMessage, for a bug of ours too: the loop serves others than who meets it."""
    try:
        heard(message)
    except NotAMessage:
        raise
    except Exception as bug:
        _log.exception("what another process said could not be dealt with; it is hung up on")
        raise NotAMessage(f"{type(bug).__name__}: {bug}") from bug


def keep_alive(connection: socket.socket) -> None:
    """Have a machine that is silent for LOST_S end its connection, as one that closes it does. Data is sent at once.

    Kernels answer each other's probes, however busy or stopped a process is. It carries little, so nothing is lost with
    reno, under which `send_again_soon` has its effect.
    """
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", LOST_S - _PROBE_S * _PROBES),
        ("TCP_KEEPINTVL", _PROBE_S),
        ("TCP_KEEPCNT", _PROBES),
        ("TCP_USER_TIMEOUT", LOST_S * 1000),
    ):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    send_again_soon(connection)
    if hasattr(socket, "TCP_CONGESTION"):
        with suppress(OSError):  # the kernel may not have it
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")


def send_again_soon(connection: socket.socket) -> None:
    """Have what was lost on the way sent again each 0.2 s at first, not after 0.2, 0.4, 0.8 s and so on.

    A cable that is loose for a moment now and then would be loose each time that it is tried. Linux does so while
    little is under way; not under BBR, which never learns that a connection was slow at first.
    """
    if sys.platform == "linux":
        with suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, _THIN_LINEAR_TIMEOUTS, 1)
