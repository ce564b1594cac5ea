"""How connections are secured: by TLS between those who know a secret; without one, not at all."""

from __future__ import annotations

from elastic_checkpoint.net.transport import Cleartext, Transport


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
