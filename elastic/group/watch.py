"""Notices within a millisecond that a peer is gone, and aborts the group under whatever blocks in it.

A killed process resets its connections, but only a collective that waits for that very peer fails: the others
wait on, for neighbours that wait as well. Every rank has a connection to every other, so a thread that listens
for nothing but hang-ups on all of them knows at once; the kernel wakes it for no data.

Aborting goes in two steps. First nothing more is sent: every peer reads an end of file behind what is on its way.
A moment later nothing more is read. form.Work does not trust that all of it has arrived by then.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

_HUNG_UP = select.POLLHUP | select.POLLERR | getattr(select, "POLLRDHUP", 0x2000)
_ON_ITS_WAY_S = 0.003


class Watch:
    """Watches one group's connections, from its forming to `close`.

    connections  sockets of its own (copies of descriptors), which it closes
    lost         called once, in the watch's thread, when a peer has hung up
    """

    def __init__(self, connections: Sequence[socket.socket], lost: Callable[[], None]) -> None:
        self._connections = connections
        self._lost = lost
        self._wake_read, self._wake_write = os.pipe()
        self._lock = threading.Lock()
        self._aborting = False
        self._closing = False
        self._thread = threading.Thread(target=self._watch, name="elastic-group-watch", daemon=True)
        self._thread.start()

    def abort(self) -> None:
        """End the connections: collectives that block in them fail here and at the peers. Idempotent."""
        with self._lock:
            if self._aborting or self._closing:
                return
            self._aborting = True
            self._shut(socket.SHUT_WR)
            os.write(self._wake_write, b"1")

    def close(self) -> None:
        """Stop watching: from here on a peer's hanging up is no loss. Idempotent."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
            os.write(self._wake_write, b"1")
        self._thread.join(timeout=5)
        for end in (self._wake_read, self._wake_write):
            os.close(end)
        for connection in self._connections:
            connection.close()
        self._lost = _nobody  # no cycle: a group ends when it is let go, not when garbage is collected

    def _watch(self) -> None:
        """Wait for a hang-up, `abort` or `close`; unless it was `close`, end the connections in two steps."""
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        for connection in self._connections:
            poll.register(connection, _HUNG_UP)
        poll.poll()
        with self._lock:
            if self._closing and not self._aborting:
                return
            if not self._aborting:
                self._aborting = True
                self._shut(socket.SHUT_WR)
        self._lost()
        # what is on its way gets the time to arrive: gloo forgets a message that was read in half when its connection
        # ended, and whoever waits for it waits until its deadline (torch 2.13, tcp/pair.cc: what is being received is
        # in no list that an error reaches)
        time.sleep(_ON_ITS_WAY_S)
        self._shut(socket.SHUT_RDWR)

    def _shut(self, how: int) -> None:
        for connection in self._connections:
            with suppress(OSError):
                connection.shutdown(how)


def _nobody() -> None:
    return
