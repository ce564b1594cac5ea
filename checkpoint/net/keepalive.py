"""How the loss of a machine is noticed: kernels answer each other's probes, however busy or stopped a process is."""

from __future__ import annotations

import socket

LOST_S = 30  # after so long without any answer of its kernel, a machine counts as lost

_PROBE_S, _PROBES = 5, 4


def keep_alive(connection: socket.socket) -> None:
    """A machine that is silent for LOST_S ends its connection, as one that closes it does. Nothing waits to be sent."""
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
