"""One JSON object per line: how processes talk over a stream. Framing only; what is said is for others to judge.

Nothing that arrives is more than data: what is no line of one object, or is longer than it may be, is refused, and the
connection is of no use any more.
"""

from __future__ import annotations

import json
from typing import Any

Message = dict[str, Any]

LINE_MAX = 2**20


class NotAMessage(ValueError):
    """The other end said something else."""


class Lines:
    """Cuts what arrives into messages.

    longest  how many bytes a line may have; may be raised once the other end is known
    """

    def __init__(self, longest: int = LINE_MAX) -> None:
        self.longest = longest
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """Return the messages that `data` completes. Raises NotAMessage."""
        self._rest += data
        whole: list[bytes] = []
        if b"\n" in data:
            *whole, rest = bytes(self._rest).split(b"\n")
            self._rest = bytearray(rest)
        if max(len(self._rest), *map(len, whole), 0) > self.longest:
            raise NotAMessage(f"a line of more than {self.longest} bytes")
        return [decode(line) for line in whole]


def encode(message: Message) -> bytes:
    """Return a message as a line. Raises TypeError and ValueError for what is no JSON."""
    return json.dumps(message, separators=(",", ":")).encode("ascii") + b"\n"


def decode(line: bytes) -> Message:
    """Return the message of a line. Raises NotAMessage."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as broken:
        raise NotAMessage(f"not a message: {line[:80]!r}") from broken
    if type(message) is not dict:
        raise NotAMessage(f"not a message: {line[:80]!r}")
    return message
