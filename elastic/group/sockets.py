"""Which connections are a group's own? Those between the ports that its ranks listen on and the ranks.

gloo's abort() does not wake a blocked collective (torch 2.13: measured); shutting down the sockets under
it does, in milliseconds, and the peers' collectives fail at once, too. A process has other connections
(to stores, to object storage), some of which other threads open while a group is formed: not one of them
may be touched.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Iterator
from contextlib import suppress

from elastic_checkpoint.linux import descriptors
from elastic_checkpoint.net.connection import send_again_soon


def listening_ports() -> set[int]:
    """Return the TCP ports that this process listens on; none where there is no /proc."""
    ports = set()
    for copy in _copies():
        with copy:
            if copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                ports.add(copy.getsockname()[1])
    return ports


def connections(own_ports: Collection[int], peer_ports: Collection[int]) -> list[socket.socket]:
    """Return copies of this process's connections that came in at one of its ports or go to one of its peers'.

    What is lost on the way through them is sent again soon. The caller closes the copies. A connection that the peer
    has reset already is not among them.
    """
    found = []
    for copy in _copies():
        try:
            ours = copy.getsockname()[1] in own_ports or copy.getpeername()[1] in peer_ports
            copy.getpeername()  # fails where the peer has reset it
        except OSError:
            ours = False
        if ours:
            send_again_soon(copy)
            found.append(copy)
        else:
            copy.close()
    return found


def _copies() -> Iterator[socket.socket]:
    """Yield a copy of each internet socket, one of each: whatever else holds a copy, it is one connection."""
    for descriptor in _sockets().values():
        with suppress(OSError):  # another thread has closed it
            copy = socket.socket(fileno=os.dup(descriptor))
            if copy.family in (socket.AF_INET, socket.AF_INET6):
                yield copy
            else:
                copy.close()


def _sockets() -> dict[str, int]:
    """Return socket -> one of its descriptors, complete before a copy is made: that may get the listing's number."""
    found: dict[str, int] = {}
    for number, link in descriptors().items():
        if link.startswith("socket:["):
            found.setdefault(link, number)
    return found
