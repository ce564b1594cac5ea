"""How workers, agents and the hub talk: one JSON object per line, with a word in it.

Who says what: docs/internals/protocol.md. Framing is elastic_checkpoint/net/framing.py's, as for all connections of
this repository.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

from elastic.errors import ElasticError
from elastic_checkpoint.net import framing
from elastic_checkpoint.net.framing import LINE_MAX as LINE_MAX  # bytes, of whoever connects
from elastic_checkpoint.net.framing import Message
from elastic_checkpoint.net.framing import encode as encode

LONG_LINE_MAX = 1 << 26  # of a process of the run: a view of 16,384 workers takes some 1.4 MB
_READ = 1 << 16


class WireError(ElasticError, ValueError):
    """The other end said something that is no message; the connection is of no use any more."""


class Lines(framing.Lines):
    """Cuts what arrives into messages that say a word."""

    def feed(self, data: bytes) -> list[Message]:
        """Return the messages that `data` completes. Raises WireError."""
        try:
            messages = super().feed(data)
        except framing.NotAMessage as broken:
            raise WireError(str(broken)) from broken
        for message in messages:
            if not isinstance(message.get("say"), str):
                raise WireError(f"not a message: {str(message)[:80]}")
        return messages


def read(connection: socket.socket, lines: Lines, decrypt: Callable[[bytes], bytes] = bytes) -> list[Message] | None:
    """Return the messages that what has arrived completes; None at the end.

    Raises WireError, what `decrypt` raises, and BlockingIOError where nothing has arrived.
    """
    try:
        data = connection.recv(_READ)
    except BlockingIOError:
        raise
    except OSError:
        return None
    return lines.feed(decrypt(data)) if data else None
