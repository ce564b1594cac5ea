"""What goes over a connection, in the clear or by TLS: bytes to bytes, while reading and writing are the connection's.

    Cleartext     where the run has no secret, and between processes of one machine that share a socket pair
    Tls (tls.py)  where it has one

So an end, a reset and a refusal are what the kernel says that they are, as without TLS; and what has arrived is all
given at once: nothing waits here when the socket has nothing more to read.

Two ends of which one has a secret and the other has none find out by the first bytes, and both know it.
"""

from __future__ import annotations

import contextlib
import socket
import time
from typing import Protocol

from elastic_checkpoint.net.secret import VARIABLE

ANOTHER = f"it has another {VARIABLE}, or is no part of this run"
NONE_THERE = f"it has no {VARIABLE}, and this process has one"
NONE_HERE = f"it has an {VARIABLE}, and this process has none"
SAME_FOR_ALL = (
    f"give all nodes of the run the same {VARIABLE}; which of the two is the right one cannot be told from here"
)

HANDSHAKE = b"\x16\x03"  # what a TLS connection begins with
WANTS_TLS, WANTS_NONE = b'{"say":"secret_needed"}\n', b'{"say":"no_secret_here"}\n'  # said to who cannot be understood

_READ_BYTES = 2**16


class TransportError(ValueError):
    """The other end is none of ours; the connection is of no use any more."""


class Transport(Protocol):
    """One end of one connection.

    through  whether the other end is known to be one of ours; always, in the clear
    refused  why the other end was, once it has been
    """

    through: bool
    refused: str

    @property
    def pending(self) -> bool:
        """Return whether something is to be sent, said or not: a part of the handshake, or why the other is refused."""

    def encrypt(self, data: bytes = b"") -> bytes:
        """Return what is to be sent now, to say `data`, which waits until the handshake is through."""

    def decrypt(self, data: bytes) -> bytes:
        """Return what the other end says by these bytes. Raises TransportError."""


class Cleartext:
    through = True

    def __init__(self) -> None:
        self.refused = ""
        self._begun = False
        self._farewell = b""

    @property
    def pending(self) -> bool:
        return bool(self._farewell)

    def encrypt(self, data: bytes = b"") -> bytes:
        said, self._farewell = self._farewell + data, b""
        return said

    def decrypt(self, data: bytes) -> bytes:
        if not self._begun:
            self._begun = True
            if data.startswith(HANDSHAKE):
                self._farewell = WANTS_NONE
            if data.startswith((HANDSHAKE, WANTS_TLS)):
                self.refused = NONE_HERE
                raise TransportError(NONE_HERE)
        return data


def receive(connection: socket.socket, transport: Transport, deadline_s: float) -> bytes:
    """Return what is said next, b"" at the end, on a socket that waits. Raises OSError, TransportError.

    deadline_s  on the clock time.monotonic(), however little at a time arrives
    """
    while True:
        wait_until(connection, deadline_s)
        if not (arrived := connection.recv(_READ_BYTES)):
            return b""
        try:
            said = transport.decrypt(arrived)
        finally:
            if transport.pending:
                with contextlib.suppress(OSError):  # who has hung up meets its own end, and what it said counts
                    connection.sendall(transport.encrypt())
        if said:
            return said


def wait_until(connection: socket.socket, deadline_s: float) -> None:
    """Have the socket wait no longer than that from here on. Raises TimeoutError."""
    if (rest_s := deadline_s - time.monotonic()) <= 0:
        raise TimeoutError("it has not answered in time")
    connection.settimeout(rest_s)
