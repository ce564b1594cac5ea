"""How the loss of a machine is noticed: kernels answer each other's probes, however busy or stopped a process is."""

from __future__ import annotations

import socket
import sys
from contextlib import suppress

LOST_S = 30  # after so long without any answer of its kernel, a machine counts as lost

_PROBE_S, _PROBES = 5, 4
_THIN_LINEAR_TIMEOUTS = 16  # linux/tcp.h; Python has no name for it


def keep_alive(connection: socket.socket) -> None:
    """Have a machine that is silent for LOST_S end its connection, as one that closes it does. Data is sent at once.

    It carries little, so nothing is lost with reno, under which `send_again_soon` has its effect.
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
