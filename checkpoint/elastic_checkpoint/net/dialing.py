"""A connection to another process: made without waiting for it, or waited for by a deadline."""

from __future__ import annotations

import errno
import ipaddress
import os
import selectors
import socket
import time
from collections.abc import Callable

from elastic_checkpoint.net.codec import Message
from elastic_checkpoint.net.connection import Connection, keep_alive
from elastic_checkpoint.net.event_loop import EventLoop, wait_for
from elastic_checkpoint.net.transport import Transport

Address = tuple[str, int]


class Dial:
    """One call of another process: calls `done` once, in a later turn of the loop, with the connected socket or None.

    to       an address: a name is not looked up, for that takes its time, and leads nowhere
    error    why nobody is reached, as `errno` has it; 0: somebody is, or may be yet
    refused  nobody is there, says a kernel; or something in between, a firewall
    here     it is this machine's own kernel, which knows
    """

    def __init__(self, loop: selectors.BaseSelector, to: Address, done: Callable[[socket.socket | None], None]) -> None:
        family = socket.AF_INET6 if ":" in to[0] else socket.AF_INET
        self._loop, self._to = loop, to[0]
        self._done = done
        self.error = 0
        self.refused = self.here = False
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        self._open = True
        try:
            ipaddress.ip_address(to[0])
            self._socket.connect_ex(to)  # what became of it is asked when the socket can be written to
        except (OSError, ValueError):  # the former: an interface that this machine has not
            self.error = errno.EADDRNOTAVAIL
        loop.register(self._socket, selectors.EVENT_WRITE, self._connected)

    def close(self) -> None:
        """Give the call up: `done` is not called any more."""
        if self._open:
            self._open = False
            self._loop.unregister(self._socket)
            self._socket.close()

    def _connected(self) -> None:
        """Learn what became of the call, and pass it to `done`."""
        self.error = self.error or self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if self.error:
            self.refused = self.error == errno.ECONNREFUSED
            self.here = self.refused and _is_loop(self._socket.getsockname()[0], self._to)
            self.close()
            self._done(None)
            return
        self._open = False
        self._loop.unregister(self._socket)
        keep_alive(self._socket)
        self._done(self._socket)


class Dials:
    """The calls that are under way."""

    def __init__(self, loop: selectors.BaseSelector) -> None:
        self._loop = loop
        self._open: list[Dial] = []

    def begin(self, to: Address, done: Callable[[socket.socket | None, bool], None]) -> None:
        """Call this address; done: is called as Dial's, and told whether nobody is there."""

        def is_done(sock: socket.socket | None) -> None:
            self._open.remove(dial)
            done(sock, dial.refused)

        dial = Dial(self._loop, to, is_done)
        self._open.append(dial)

    def close(self) -> None:
        """Give all of them up."""
        for dial in self._open:
            dial.close()
        self._open = []


def connected(to: Address, within_s: float) -> socket.socket:
    """Return a connection to this address. Raises OSError, of the kind that says why there is none."""
    reached: list[socket.socket | None] = []
    with EventLoop() as loop:
        dial = Dial(loop, to, reached.append)
        try:
            wait_for(loop, lambda: reached, time.monotonic() + within_s)
        finally:
            dial.close()
    if reached[0] is None:
        raise OSError(dial.error, os.strerror(dial.error))
    return reached[0]


def ask(sock: socket.socket, transport: Transport, question: bytes, deadline_s: float, *, longest: int) -> Message:
    """Return the first message that comes in answer, and hang up.

    deadline_s  on the clock time.monotonic(), however little at a time arrives
    longest     bytes that the answer may have

    Raises OSError, TransportError where the other end is none of ours, NotAMessage.
    """
    answers: list[Message] = []
    ended: list[str | None] = []
    with EventLoop() as loop:
        connection = Connection(loop, sock, answers.append, ended.append, transport, longest=longest)
        try:
            connection.send(question)
            wait_for(loop, lambda: answers or ended, deadline_s)
        finally:
            connection.close()
    if answers:
        return answers[0]
    raise connection.error or ConnectionError("it hung up without an answer")


def other_end(connection: socket.socket) -> Address | None:
    """Return whom a connection leads to, and keep it alive; None: it is lost, and closed."""
    try:
        keep_alive(connection)
        host, port = connection.getpeername()[:2]
    except OSError:
        connection.close()
        return None
    return host, port


def _is_loop(own: str, to: str) -> bool:
    """Return whether packets from the one address to the other never leave this machine."""
    source, target = ipaddress.ip_address(own), ipaddress.ip_address(to)
    return source == target or (source.is_loopback and target.is_loopback)
