"""A port of this machine, and one thread that serves it and the connections that come of it.

Whoever connects is a stranger until it is welcome: after a while, or when more strangers have come, it is hung up on.
So whoever says nothing, or half of something, uses up nothing. The port dies with its process: a forked child closes
its copy at once.
"""

from __future__ import annotations

import errno
import resource
import select
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import suppress
from typing import Generic, TypeVar

from elastic_checkpoint.forks import close_in_children, forget

K = TypeVar("K", bound=Hashable)

LEAST = 64  # as many may come at any time; beyond them, twice as many as are expected

_BACKLOG = 128
_PAUSE_S = 0.1
_STRANGER_S = 30.0  # a busy machine says who it is slowly
_CLOSE_S = 60.0  # what is being sent may take so long


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


class Listener:
    """Listens until `close`, or until this process ends.

    port  on all addresses of this machine
    """

    def __init__(
        self,
        name: str,
        accepted: Callable[[socket.socket], None],
        *,
        backlog: int,
        ports: range | None = None,
        expected: int = 0,
    ) -> None:
        """Begin to listen. Raises OSError where no socket can be opened.

        name      of the thread
        accepted  is called in it with each connection, which is the callee's to close, or to have watched
        ports     the first of them that is free; None: any
        expected  how many may well connect at the same time
        """
        self._accepted = accepted
        self._socket = listen("", ports, backlog=backlog)
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]
        self._wake_read, self._wake_write = socket.socketpair()
        self._waiting = select.poll()  # select() fails for descriptors above 1023, which training processes reach
        self._waiting.register(self._socket, select.POLLIN)
        self._waiting.register(self._wake_read, select.POLLIN)
        self._watched: dict[int, tuple[socket.socket, Callable[[], bool]]] = {}
        self._strangers: Strangers[int] = Strangers(_STRANGER_S, most_strangers(expected))  # by descriptor
        self._closed = False
        close_in_children(self)
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def watch(self, connection: socket.socket, ready: Callable[[], bool]) -> None:
        """Call `ready` when there is something to read; it returns False to have the connection closed.

        To be called from `accepted`. `ready` is also called at the end of a stranger's time, when it finds the end.
        """
        self._watched[connection.fileno()] = connection, ready
        self._waiting.register(connection, select.POLLIN)
        if (
            crowded_out := self._strangers.came(connection.fileno(), host_of(connection), time.monotonic())
        ) is not None:
            self._send_away(crowded_out)

    def welcome(self, connection: socket.socket) -> None:
        """Count a connection, from its `ready`, as a stranger's no more."""
        self._strangers.known(connection.fileno())

    def close(self) -> None:
        """Hang up on all; from here on newcomers are refused. Idempotent."""
        if self._closed:
            return
        self._closed = True
        forget(self)
        self._wake_write.close()  # the thread sees end-of-file on the other end
        if threading.current_thread() is not self._thread:
            self._thread.join(_CLOSE_S)

    def close_in_child(self) -> None:
        self._closed = True
        self._wake_write.close()
        self._close_sockets()

    def _serve(self) -> None:
        try:
            while True:
                for descriptor, _ in self._waiting.poll(self._patience_ms()):
                    if descriptor == self._wake_read.fileno():
                        return
                    if descriptor == self._socket.fileno():
                        self._accept()
                    elif descriptor in self._watched:
                        self._read(descriptor)
                self._send_away_overdue()
        finally:
            self._close_sockets()

    def _accept(self) -> None:
        try:
            connection, _ = self._socket.accept()
        except OSError:  # the caller went away, or there is no descriptor left: no busy loop while it lasts
            time.sleep(_PAUSE_S)
            return
        self._accepted(connection)

    def _read(self, descriptor: int) -> None:
        connection, ready = self._watched[descriptor]
        if not ready():
            self._waiting.unregister(descriptor)
            del self._watched[descriptor]
            self._strangers.known(descriptor)
            connection.close()

    def _patience_ms(self) -> float | None:
        next_s = self._strangers.next_s()
        return None if next_s is None else max(0.0, next_s - time.monotonic()) * 1000 + 1

    def _send_away_overdue(self) -> None:
        for descriptor in self._strangers.overdue(time.monotonic()):
            self._send_away(descriptor)

    def _send_away(self, descriptor: int) -> None:
        """Shut a stranger's connection down: its end comes up in the next poll."""
        with suppress(OSError):
            self._watched[descriptor][0].shutdown(socket.SHUT_RDWR)

    def _close_sockets(self) -> None:
        for one in (self._socket, self._wake_read, *(connection for connection, _ in self._watched.values())):
            one.close()


def host_of(connection: socket.socket) -> str:
    """Return where the other end is; "" if it has gone."""
    try:
        return str(connection.getpeername()[0])
    except OSError:
        return ""


class Strangers(Generic[K]):
    """Those that are not known yet, by the host that they come from.

    patience_s  how long each of them has, on the clock of whoever asks
    most        at one time
    """

    def __init__(self, patience_s: float, most: int) -> None:
        self._patience_s = patience_s
        self._most = most
        self._waiting: dict[K, tuple[str, float]] = {}  # host, and until when; in the order in which they came

    def came(self, one: K, host: str, now_s: float) -> K | None:
        """Add a stranger; return who is to be sent away for it, if anybody is: the oldest of the host with most."""
        self._waiting[one] = host, now_s + self._patience_s
        if len(self._waiting) <= self._most:
            return None
        ((crowd, _),) = Counter(host for host, _ in self._waiting.values()).most_common(1)
        oldest = next(one for one, (host, _) in self._waiting.items() if host == crowd)
        del self._waiting[oldest]
        return oldest

    def known(self, one: K) -> None:
        """Remove one that is no stranger any more, or has gone."""
        self._waiting.pop(one, None)

    def overdue(self, now_s: float) -> list[K]:
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


def most_strangers(expected: int) -> int:
    """Return how many strangers may wait where so many are expected: twice as many, and LEAST."""
    # Twice: all of them at once, and once again; but no more than half of the descriptors that this process may have.
    return min(LEAST + 2 * expected, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
