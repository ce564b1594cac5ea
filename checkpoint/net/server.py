"""One process that many others are connected to: messages both ways, and each end learns when the other is gone.

    Server              listens; whoever knows its token may connect, under a number
    Client (client.py)  is connected to it

What an end said before it went is heard before it counts as gone. A process that died is noticed at once, by what its
kernel says of its connections; a machine that was lost within keepalive.LOST_S. A process that is slow, stopped or busy
still has its kernel, and counts as there. The connections do not outlive their process in a forked child.

The token is as secret as the channel that brings the endpoint to the others. Needs no torch.
"""

from __future__ import annotations

import hmac
import secrets
import socket
from collections.abc import Callable

from checkpoint.net.connection import Connection
from checkpoint.net.framing import Message
from checkpoint.net.listener import Listener
from checkpoint.net.machine import boot_id, network_namespace, own_addresses

_STRANGERS_MAX = 128  # who says its token at once is through long before so many others have come
_GREETING_MAX = 4096  # bytes that may be said by who has not said yet who it is
_BACKLOG = 2048


class Server:
    """Listens until `close`."""

    def __init__(self, heard: Callable[[int, Message], None], gone: Callable[[int, str], None]) -> None:
        """Both are called in one thread, of this object's, and must not block.

        heard  gets a number and each of its messages; the first one, {}, when it is connected
        gone   gets a number that hung up or was lost, and how
        Raises OSError where no socket can be opened.
        """
        self._heard, self._gone = heard, gone
        self._token = secrets.token_hex(16)
        self._strangers: dict[Connection, None] = {}  # in the order in which they came
        self._numbers: dict[int, Connection] = {}
        self._listener = Listener("checkpoint-server", self._accept, backlog=_BACKLOG)

    @property
    def endpoint(self) -> Message:
        """What a `Client` needs to connect."""
        return {
            "addresses": own_addresses(),
            "port": self._listener.port,
            "token": self._token,
            "machine": [boot_id(), network_namespace()],
        }

    def send(self, number: int, message: Message) -> bool:
        """Whether the message was sent; if not, the number is gone, or will be in a moment."""
        connection = self._numbers.get(number)
        return connection is not None and connection.send(message)

    def close(self) -> None:
        """Hangs up on all. Idempotent."""
        self._listener.close()

    def _accept(self, connected: socket.socket) -> None:
        try:
            connection = Connection(connected, longest=_GREETING_MAX)
        except OSError:  # it went away already
            connected.close()
            return
        self._strangers[connection] = None
        self._listener.watch(connected, lambda: self._read(connection))
        if len(self._strangers) > _STRANGERS_MAX:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.ended = "it did not say who it is"
            oldest.shut()  # its end comes up in the next poll

    def _read(self, connection: Connection) -> bool:
        """Whether the connection lives on."""
        if not connection.ended and self._listen_to(connection):
            return True
        self._strangers.pop(connection, None)
        if connection.number is not None:
            del self._numbers[connection.number]
            self._gone(connection.number, connection.ended)
        return False

    def _listen_to(self, connection: Connection) -> bool:
        try:
            for message in connection.received():
                if connection.number is not None:
                    self._heard(connection.number, message)
                elif not self._greeted(connection, message):
                    return False
        except (OSError, ValueError) as error:  # the latter from strangers
            connection.ended = str(error)
        return not connection.ended

    def _greeted(self, connection: Connection, message: Message) -> bool:
        number, token = message.get("number"), message.get("token")
        if type(number) is not int or type(token) is not str:
            return False
        if not hmac.compare_digest(token.encode("utf-8", "surrogatepass"), self._token.encode("ascii")):
            return False
        before = self._numbers.get(number)
        if before is not None:  # it came back before we noticed that it was gone
            before.number = None
            before.shut()
            self._gone(number, "it connected anew")
        self._strangers.pop(connection, None)
        connection.greeted()
        connection.number = number
        self._numbers[number] = connection
        self._heard(number, {})
        connection.send({})
        return True
