"""Which connections are a group's own, and how are they ended under a collective that blocks in them?

gloo's abort() does not wake a blocked collective (torch 2.13: measured); shutting down the sockets under
it does, in milliseconds, and the peers' collectives fail at once, too. Sockets are known by their inode:
a descriptor's number may have been closed and given to another file since.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Iterator
from contextlib import suppress


def internet_sockets() -> set[int]:
    """The inodes of this process's TCP sockets that are connected or listening. Empty where there is no /proc."""
    return {inode for inode, _ in _open()}


def hang_up(inodes: Collection[int]) -> None:
    """Shuts those down that are still open here. Whoever reads or writes them, on either side, gets an error."""
    for inode, number in _open():
        if inode in inodes:
            connection = socket.socket(fileno=os.dup(number))
            with connection, suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def _open() -> Iterator[tuple[int, int]]:
    with suppress(FileNotFoundError):
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):  # the listing's own descriptor, or one that another thread has closed
                target = os.readlink(f"/proc/self/fd/{name}")
                if target.startswith("socket:["):
                    number = int(name)
                    copy = socket.socket(fileno=os.dup(number))
                    with copy:
                        family = copy.family
                    if family in (socket.AF_INET, socket.AF_INET6):
                        yield int(target[8:-1]), number
