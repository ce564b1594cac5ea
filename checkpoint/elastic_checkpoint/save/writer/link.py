"""How a training process and its writer process reach each other; what they say is messages.py's.

JSON objects travel over a socket that keeps their borders. A message is there whole or not at all, so `staged` is what
makes a half readable. It travels in packets (SOCK_SEQPACKET), of which all but the last say that more follow. The end
of either process is the end of the stream.
"""

from __future__ import annotations

import json
import os
import socket
import threading

from elastic_checkpoint.net.codec import Message

PACKET_BYTES = 128 * 1024  # the kernel refuses more than about 200 KB
_MORE, _LAST = b"+", b"."
_SEND_S = 60.0  # the other process reads in a thread of its own


class Link:
    """One end. Any thread may send; one receives."""

    def __init__(self, end: socket.socket) -> None:
        end.settimeout(_SEND_S)
        self.socket = end
        self._sending = threading.Lock()
        self._unfinished = bytearray()

    def send(self, message: Message, fds: list[int] | None = None) -> None:
        """Raise OSError where the other end is gone or takes nothing, TypeError for what is no JSON."""
        data = json.dumps(message).encode("ascii")
        size = PACKET_BYTES - 1
        with self._sending:
            for start in range(0, len(data), size):
                last = start + size >= len(data)
                packet = (_LAST if last else _MORE) + data[start : start + size]
                socket.send_fds(self.socket, [packet], fds or [] if last else [])

    def receive(self) -> tuple[Message, list[int]] | None:
        """Return the next message with its descriptors, or None at the end of the stream.

        Raises TimeoutError, BlockingIOError by the socket's own settings.
        """
        while True:
            try:
                packet, fds, _, _ = socket.recv_fds(self.socket, PACKET_BYTES, 1)
            except ConnectionResetError:
                return None
            if not packet:
                return None
            for fd in fds:
                os.set_inheritable(fd, False)
            self._unfinished += packet[1:]
            if packet[:1] == _LAST:
                message = json.loads(bytes(self._unfinished))
                self._unfinished.clear()
                assert type(message) is dict, "both ends are ours"
                return message, fds

    def close(self) -> None:
        """Close this end. Idempotent."""
        self.socket.close()


def pair() -> tuple[Link, socket.socket]:
    """Return two connected ends; the second is for another process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return Link(ours), theirs
