"""A port of this machine, and who connects to it: a connection is pending until it has said who it is.

One that has not after a while, or when too many others have come, is closed. So whoever says nothing, or half of
something, uses up nothing. An agent has its port in its own loop; `PortThread` has one in a thread, and both end with
their process: a forked child closes its copy at once.
"""

from __future__ import annotations

import errno
import math
import resource
import selectors
import socket
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

from elastic_checkpoint.net.connection import Connection, keep_alive
from elastic_checkpoint.net.event_loop import EventLoop, LoopThread
from elastic_checkpoint.net.transport import Transport, server_side

K = TypeVar("K", bound=Hashable)
Accepted = Callable[[socket.socket, str, Transport], Connection]

PENDING_MIN = 64  # as many may come at any time; beyond them, twice as many as are expected
ACCEPTED_MAX = 64  # in one turn: of thousands that come at a takeover, who is here already is heard between them

_BACKLOG = 128
_PAUSE_S = 0.1  # where no descriptor is left
_IDENTIFY_WITHIN_S = 30.0  # a busy machine says who it is slowly


def listen(address: str, ports: range | None = None, *, backlog: int = _BACKLOG) -> socket.socket:
    """Return a socket that listens at the first of these ports that is free, None: at any. Raises OSError.

    address  "": all of this machine
    """
    both = not address and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both or ":" in address else socket.AF_INET
    for port in (0,) if ports is None else ports:
        try:
            return socket.create_server((address, port), family=family, backlog=backlog, dualstack_ipv6=both)
        except OSError as taken:
            if taken.errno != errno.EADDRINUSE:
                raise
    raise OSError(errno.EADDRINUSE, "no port of the range is free" if ports is not None else "no port is free")


class Port:
    """Accepts those who connect to `listener`, None: nobody comes, and closes those that stay pending.

    number  of the port
    loop    in which it accepts
    """

    def __init__(self, listener: socket.socket | None, *, secret: str | None, patience_s: float, expected: int) -> None:
        """Keep what is needed, without accepting anybody yet.

        secret      which those who come must know; None: they speak in the clear
        patience_s  how long a connection may be pending
        expected    how many may well connect at the same time
        """
        self.number: int | None = listener.getsockname()[1] if listener is not None else None
        self._listener = listener
        self._secret = secret
        self._pending: PendingConnections[Connection] = PendingConnections(patience_s, pending_max(expected))
        self._paused_until_s: float | None = None  # the listener is left alone for a moment, as no descriptor was left

    def accept_in(self, loop: EventLoop, accepted: Accepted) -> None:
        """Begin to accept; accepted: gets each who comes, with its host; returns its connection, which is pending."""
        self.loop, self._accepted = loop, accepted
        if self._listener is not None:
            self._listener.setblocking(False)
            self._watch(self._listener)

    def tick(self, now_s: float) -> None:
        """Close pending connections whose time is up, and listen again where no descriptor was left."""
        if self._listener is not None and self._paused_until_s is not None and now_s >= self._paused_until_s:
            self._watch(self._listener)
        for connection in self._pending.expire(now_s):
            connection.close()

    def next_s(self) -> float | None:
        """Return when `tick` has something to do, None: it has not."""
        due_s = self._pending.next_s()
        return due_s if self._paused_until_s is None else min(self._paused_until_s, due_s or math.inf)

    def close(self) -> None:
        """Accept nobody any more, and close what is pending. Idempotent."""
        for connection in self._pending:
            connection.close()
        if self._listener is not None:
            if self._paused_until_s is None:
                self.loop.unregister(self._listener)
            self._listener.close()
            self._listener = None

    def add_pending(self, connection: Connection, host: str) -> None:
        """Count this connection as pending until it is identified; another one may be closed for it."""
        if (crowded_out := self._pending.add(connection, host, time.monotonic())) is not None:
            crowded_out.close()

    def identified(self, connection: Connection) -> None:
        """Count it as pending no more: it has said who it is, or is gone."""
        self._pending.remove(connection)

    def _watch(self, listener: socket.socket) -> None:
        self._paused_until_s = None
        self.loop.register(listener, selectors.EVENT_READ, self._accept)

    def _accept(self) -> None:
        """Accept those who wait, ACCEPTED_MAX at most; the others come with the next turn."""
        assert self._listener is not None
        for _ in range(ACCEPTED_MAX):
            try:
                sock, (host, *_) = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError:  # no descriptor is left: whoever waits makes each turn come at once
                self.loop.unregister(self._listener)
                self._paused_until_s = time.monotonic() + _PAUSE_S
                return
            try:
                transport = server_side(self._secret)
                keep_alive(sock)
            except OSError:  # no descriptor is left, or it has gone already
                sock.close()
                continue
            self.add_pending(self._accepted(sock, str(host), transport), str(host))


class PortThread:
    """A port with a thread of its own, in which all of its connections are served."""

    def __init__(
        self, name: str, *, secret: str | None, backlog: int, ports: range | None = None, expected: int = 0
    ) -> None:
        """Listen on all addresses. Raises OSError where no socket can be opened.

        name   of the thread
        ports  the first of them that is free; None: any
        """
        listener = listen("", ports, backlog=backlog)
        self.number: int = listener.getsockname()[1]
        self.port = Port(listener, secret=secret, patience_s=_IDENTIFY_WITHIN_S, expected=expected)
        self.thread = LoopThread(name)

    def start(self, accepted: Accepted) -> None:
        """Accept those who come, in the thread, until `close`."""
        self.port.accept_in(self.thread.loop, accepted)
        self.thread.start(self.port.tick, self.port.next_s)

    def close(self, last: Callable[[float], None] = lambda deadline_s: None) -> None:
        """Hang up on all, after `last` was called with a deadline; from here on newcomers are refused. Idempotent."""

        def end(deadline_s: float) -> None:
            self.port.close()
            last(deadline_s)

        self.thread.close(end)


class PendingConnections(Generic[K]):
    """The connections that have not said who they are, by the host that they come from.

    patience_s  how long each of them has, on the clock of whoever asks
    most        at one time
    """

    def __init__(self, patience_s: float, most: int) -> None:
        self._patience_s = patience_s
        self._most = most
        self._waiting: dict[K, tuple[str, float]] = {}  # host, and until when; in the order in which they came

    def add(self, one: K, host: str, now_s: float) -> K | None:
        """Add one; return which is to be closed for it, if any: the oldest of the host with most."""
        self._waiting[one] = host, now_s + self._patience_s
        if len(self._waiting) <= self._most:
            return None
        ((crowd, _),) = Counter(host for host, _ in self._waiting.values()).most_common(1)
        oldest = next(one for one, (host, _) in self._waiting.items() if host == crowd)
        del self._waiting[oldest]
        return oldest

    def remove(self, one: K) -> None:
        """Remove one that is identified, or gone."""
        self._waiting.pop(one, None)

    def expire(self, now_s: float) -> list[K]:
        """Remove and return those whose time is over."""
        late = []
        for one, (_, until_s) in self._waiting.items():
            if until_s > now_s:
                break
            late.append(one)
        for one in late:
            del self._waiting[one]
        return late

    def next_s(self) -> float | None:
        """Return when somebody's time is over; None: nobody is here."""
        return next((until_s for _, until_s in self._waiting.values()), None)

    def __iter__(self) -> Iterator[K]:
        return iter([*self._waiting])

    def __len__(self) -> int:
        return len(self._waiting)


def pending_max(expected: int) -> int:
    """Return how many may be pending where so many are expected: twice as many, and PENDING_MIN."""
    # Twice: all of them at once, and once again; but no more than half of the descriptors that this process may have.
    return min(PENDING_MIN + 2 * expected, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
