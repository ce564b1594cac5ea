"""One process that many others are connected to: messages both ways, and each end learns when the other is gone.

    Server              listens; whoever knows its token may connect, under a number
    Client (client.py)  is connected to it

What an end said before it went is heard before it counts as gone. A process that died is noticed at once, by what its
kernel says of its connections; a machine that was lost within keepalive.LOST_S. A process that is slow, stopped or busy
still has its kernel, and counts as there. The connections do not outlive their process in a forked child.

The token is as secret as the channel that brings the endpoint to the others; where the run has a secret (secret.py),
all is said by TLS to whoever knows it, too. Needs no torch.
"""

from __future__ import annotations

import hmac
import secrets
import socket
from collections.abc import Callable

from elastic_checkpoint.net.codec import as_message, parse
from elastic_checkpoint.net.connection import Connection
from elastic_checkpoint.net.framing import Message, NotAMessage
from elastic_checkpoint.net.greeting import FROM_STRANGER, Endpoint, Greeting, Welcome
from elastic_checkpoint.net.listener import Listener, host_of
from elastic_checkpoint.net.machine import boot_id, network_namespace, own_addresses
from elastic_checkpoint.net.secret import secret_of_run
from elastic_checkpoint.net.secured import prepare, server_side
from elastic_checkpoint.net.transport import SAME_FOR_ALL, Transport

_GREETING_MAX = 4096  # bytes that may be said by one that has not said yet who it is
_BACKLOG = 2048


class Server:
    """Listens until `close`.

    refused  the newest caller whose secret was not ours, and why; "" where there was none
    """

    def __init__(
        self,
        heard: Callable[[int, Message], None],
        gone: Callable[[int, str], None],
        *,
        came: Callable[[int], None] = lambda number: None,
        expected: int = 0,
    ) -> None:
        """Begin to listen; all three functions are called in one thread, of this object's, and must not block.

        heard  gets a number and each of its messages. Raises NotAMessage for one that is none: the number is hung up on
        gone   gets a number that hung up or was lost, and how
        came   gets a number when it is connected, before anything is heard of it
        expected  how many may well connect at the same time

        Raises OSError where no socket can be opened, CheckpointError for a secret that is none.
        """
        self.refused = ""
        self._secret = secret_of_run()
        prepare(self._secret)
        self._heard, self._gone, self._came = heard, gone, came
        self._token = secrets.token_hex(16)
        self._numbers: dict[int, Connection] = {}
        self._listener = Listener("checkpoint-server", self._accept, backlog=_BACKLOG, expected=expected)

    @property
    def endpoint(self) -> Message:
        """Return what a `Client` needs to connect."""
        machine = [boot_id(), network_namespace()]
        return as_message(
            Endpoint(addresses=own_addresses(), port=self._listener.port, token=self._token, machine=machine)
        )

    def send(self, number: int, message: Message) -> bool:
        """Return whether the message was sent; if not, the number is gone, or will be in a moment."""
        connection = self._numbers.get(number)
        return connection is not None and connection.send(message)

    def close(self) -> None:
        """Hang up on all. Idempotent."""
        self._listener.close()

    def _accept(self, connected: socket.socket) -> None:
        try:
            transport = server_side(self._secret)
            connection = Connection(connected, transport, longest=_GREETING_MAX)
        except OSError:  # it went away already, or there is no descriptor left
            connected.close()
            return
        self._listener.watch(connected, lambda: self._read(connection, transport))

    def _read(self, connection: Connection, transport: Transport) -> bool:
        """Read what has come; return whether the connection lives on."""
        if self._listen_to(connection):
            return True
        if transport.refused:
            self.refused = f"{host_of(connection.socket) or 'a process'}: {transport.refused}; {SAME_FOR_ALL}"
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
        except NotAMessage as wrong:
            connection.ended = f"what it said was refused: {wrong}"
        except (OSError, ValueError) as error:  # the latter from strangers
            connection.ended = str(error)
        return not connection.ended

    def _greeted(self, connection: Connection, message: Message) -> bool:
        """Return whether this is a greeting with our token, and welcome it. Raises NotAMessage."""
        said: Greeting = parse(FROM_STRANGER, message)
        if not hmac.compare_digest(said.token.encode("utf-8", "surrogatepass"), self._token.encode("ascii")):
            return False
        number = said.number
        before = self._numbers.get(number)
        if before is not None:  # it came back before we noticed that it was gone
            before.number = None
            before.shut()
            self._gone(number, "it connected anew")
        self._listener.welcome(connection.socket)
        connection.greeted()
        connection.number = number
        self._numbers[number] = connection
        self._came(number)
        connection.send(as_message(Welcome()))
        return True
