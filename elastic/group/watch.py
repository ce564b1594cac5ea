"""Notices within a millisecond that a peer is gone, and severs the group under whatever blocks in it.

A killed process resets its connections, but only a collective that waits for that very peer fails: the others
wait on, for neighbours that wait as well. Every rank has a connection to every other, so a thread that listens
for nothing but hang-ups on all of them knows at once; the kernel wakes it for no data.
"""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

_HUNG_UP = select.POLLHUP | select.POLLERR | getattr(select, "POLLRDHUP", 0x2000)


class Watch:
    """Over one group's connections, from its forming to `close`.

    connections  sockets of its own (copies of descriptors), which it closes
    lost         called once, in the watch's thread, after the connections were shut down
    """

    def __init__(self, connections: Sequence[socket.socket], lost: Callable[[], None]) -> None:
        self._connections = connections
        self._lost = lost
        self._wake_read, self._wake_write = os.pipe()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._watch, name="elastic-group-watch", daemon=True)
        self._thread.start()

    def hang_up(self) -> None:
        """Shuts the connections down: collectives that block in them fail here and at the peers. Idempotent."""
        with self._lock:
            for connection in self._connections:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """From here on a peer's hanging up is no loss. Idempotent."""
        with self._lock:
            write, self._wake_write = self._wake_write, -1
        if write < 0:
            return
        os.close(write)  # the thread sees end-of-file
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=5)
        os.close(self._wake_read)
        with self._lock:
            for connection in self._connections:
                connection.close()
            self._connections = ()

    def _watch(self) -> None:
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        for connection in self._connections:
            poll.register(connection, _HUNG_UP)
        ready = poll.poll()
        if any(number == self._wake_read for number, _ in ready):
            return
        self.hang_up()
        self._lost()
