"""One JSON object per line: how workers, agents and the hub talk. Framing only; who says what is in hub.py.

Nothing that arrives is more than data: a line that is no object, or longer than LINE_MAX, ends the connection.
"""

from __future__ import annotations

import json
import socket
from typing import Any

from elastic.errors import ElasticError

Message = dict[str, Any]

LINE_MAX = 1 << 20
_READ = 1 << 16


class WireError(ElasticError, ValueError):
    """The other end said something that is no message; the connection is of no use any more."""


class Lines:
    """Cuts what arrives into messages."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Message]:
        """The messages that `data` completes. Raises WireError."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LINE_MAX:
            raise WireError(f"a line of more than {LINE_MAX} bytes")
        return [_message(line) for line in lines]


def encode(message: Message) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def read(connection: socket.socket, lines: Lines) -> list[Message] | None:
    """The messages that what has arrived completes; None at the end.

    Raises WireError, and BlockingIOError where nothing has arrived.
    """
    try:
        data = connection.recv(_READ)
    except BlockingIOError:
        raise
    except OSError:
        return None
    return lines.feed(data) if data else None


def _message(line: bytes) -> Message:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as broken:
        raise WireError(f"not a message: {line[:80]!r}") from broken
    if not isinstance(message, dict) or not isinstance(message.get("say"), str):
        raise WireError(f"not a message: {line[:80]!r}")
    return message
