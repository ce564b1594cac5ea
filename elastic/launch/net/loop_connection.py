"""One end of a line of messages in an event loop: reading and writing never wait, and an end is noticed once.

What is said in one turn of the loop leaves in one write at its end: a write is a record of TLS, a call of the kernel
and a turn of the other end, and a hub of thousands of workers has one for each that it hears. Nothing waits longer than
the turn, nor beyond a record's length, and what was said just before a connection is closed is sent.
"""

from __future__ import annotations

import selectors
import socket
from collections.abc import Callable

from elastic.launch.net.event_loop import EventLoop
from elastic.membership.messages.wire import LONG_LINE_MAX, Lines, Message, WireError, encode, read
from elastic_checkpoint.net.transport import Cleartext, Transport, TransportError

_UNREAD_MAX = 1 << 26  # a peer that takes nothing for so long is of no use
RECORD = 1 << 14  # bytes that a record of TLS has at most: who waits for more saves nothing


class LoopConnection:
    """Calls on_message for each message, then on_end once, unless it is closed before. Closes itself at its end.

    on_end(why)  why it was given up; None: the other end closed it
    """

    def __init__(
        self,
        loop: EventLoop,
        sock: socket.socket,
        on_message: Callable[[Message], None],
        on_end: Callable[[str | None], None],
        transport: Transport | None = None,
    ) -> None:
        """Register with the loop; transport: None between processes of one node."""
        sock.setblocking(False)
        self._loop = loop
        self._socket = sock
        self._on_message = on_message
        self._on_end = on_end
        self._transport = transport or Cleartext()
        self._lines = Lines()
        self._held = b""  # said in this turn
        self._unsent = b""  # which the kernel has not taken yet
        self._open = True
        loop.register(sock, selectors.EVENT_READ, self.ready)
        self._shake_hands()

    def takes_long_lines(self) -> None:
        """Accept long lines, as the other end is known to be of the run."""
        self._lines.longest = LONG_LINE_MAX

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
            messages = read(self._socket, self._lines, self._transport.decrypt)
        except BlockingIOError:
            return False
        except (TransportError, WireError) as wrong:
            self._shake_hands()  # it is told why it is refused
            self._end(str(wrong))
            return False
        if messages is None:
            self._end(None)
            return False
        self._shake_hands()
        for message in messages:
            if self._open:
                self._on_message(message)
        return True

    def _shake_hands(self) -> None:
        if self._transport.pending:
            self._write()

    def _write(self) -> None:
        if not self._open:
            return
        self._transmit()
        if len(self._unsent) > _UNREAD_MAX:
            self._end(f"{len(self._unsent)} bytes were not taken")
        else:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
            self._loop.modify(self._socket, events, self.ready)

    def _transmit(self) -> None:
        """Send all that was said, as far as the kernel takes it."""
        said, self._held = self._held, b""
        if said or self._transport.pending:
            self._unsent += self._transport.encrypt(said)
        if not self._unsent:
            return
        try:
            self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            self._unsent = b""  # reading will meet the end, after what still lies there

    def _end(self, why: str | None) -> None:
        if self._open:
            self.close()
            self._on_end(why)
