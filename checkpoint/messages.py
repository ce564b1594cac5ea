"""What a training process and its writer process tell each other: JSON objects over a socket that keeps their borders.

    to the writer    open {url, options, retry_s, ...}   arena {half_bytes} + descriptor   staged {number, half, ...}
                     take_back {number}
    from the writer  ready   unusable {why}   done {number}   failed {number, error}   taken_back {number, taken}

A message is there whole or not at all (SOCK_SEQPACKET), so `staged` is what makes a half readable. The end of either
process is the end of the stream.
"""

from __future__ import annotations

import json
import os
import socket
from typing import Any

from checkpoint.errors import CheckpointError, ClaimLost, StorageError

MESSAGE_BYTES_MAX = 128 * 1024  # the kernel refuses more than about 200 KB
_TEXT_MAX = 20_000

Message = dict[str, Any]


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(end: socket.socket, message: Message, fds: list[int] | None = None) -> None:
    """Raises OSError where the other end is gone, ValueError for a message that cannot be sent."""
    data = json.dumps(message).encode("ascii")
    if len(data) > MESSAGE_BYTES_MAX:
        raise ValueError(f"a message of {len(data):,} bytes; {MESSAGE_BYTES_MAX:,} can be sent")
    socket.send_fds(end, [data], fds or [])


def receive(end: socket.socket) -> tuple[Message, list[int]] | None:
    """The next message with its descriptors, or None at the end of the stream."""
    try:
        data, fds, _, _ = socket.recv_fds(end, MESSAGE_BYTES_MAX, 1)
    except ConnectionResetError:
        return None
    if not data:
        return None
    for fd in fds:
        os.set_inheritable(fd, False)
    message = json.loads(data)
    assert type(message) is dict, "both ends are ours"
    return message, fds


def error_document(error: BaseException, text: str) -> Message:
    """An error as JSON. text  its message, free of credentials"""
    fields: Message = {}
    if isinstance(error, StorageError):
        fields = {"operation": error.operation, "key": error.key, "attempts": error.attempts}
    elif isinstance(error, ClaimLost):
        fields = {"ours": error.ours, "newest": error.newest}
    elif not isinstance(error, CheckpointError):
        text = f"{type(error).__name__}: {text}"
    return {"type": type(error).__name__, "text": text[:_TEXT_MAX], "fields": fields}


def error_from(document: Message) -> CheckpointError:
    """The inverse; what is no error of ours comes back as a plain CheckpointError."""
    text, fields = document["text"], document["fields"]
    match document["type"]:
        case "StorageError":
            return StorageError(text, **fields)
        case "ClaimLost":
            return ClaimLost(text, **fields)
    return CheckpointError(text)
