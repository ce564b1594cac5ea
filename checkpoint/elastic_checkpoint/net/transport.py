"""What goes over a connection, in the clear or by TLS: bytes to bytes, while reading and writing are the connection's.

    Cleartext     where the run has no secret, and between processes of one machine that share a socket pair
    Tls (tls.py)  where it has one

So an end, a reset and a refusal are what the kernel says that they are, as without TLS; and what has arrived is all
given at once: nothing waits here when the socket has nothing more to read.

Two ends of which one has a secret and the other has none find out by the first bytes, and both know it.
"""

from __future__ import annotations

from typing import Protocol

from elastic_checkpoint.net.secret import HANDSHAKE, NONE_HERE, WANTS_NONE, WANTS_TLS, TransportError


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


def prepare(secret: str | None) -> None:
    """Do now what the first connection needs, while nobody waits for it.

    Raises OSError where no descriptor is left, CheckpointError where this machine cannot speak TLS by it.
    """
    if secret is not None:
        from elastic_checkpoint.net.tls import check

        check(secret)


def client_side(secret: str | None) -> Transport:
    """Return the transport of who has connected. Raises OSError where no descriptor is left."""
    return _transport(secret, server_side=False)


def server_side(secret: str | None) -> Transport:
    """Return the transport of who was connected to. Raises OSError where no descriptor is left."""
    return _transport(secret, server_side=True)


def _transport(secret: str | None, *, server_side: bool) -> Transport:
    if secret is None:
        return Cleartext()
    from elastic_checkpoint.net.tls import Tls  # which takes a while

    return Tls(secret, server_side=server_side)
