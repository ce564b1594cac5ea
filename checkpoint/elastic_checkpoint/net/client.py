"""The other end of a `Server`: connected to it under a number. See there for what holds."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable

from elastic_checkpoint.forks import close_in_children, forget
from elastic_checkpoint.net.codec import as_message, made, parse
from elastic_checkpoint.net.connection import Connection
from elastic_checkpoint.net.framing import Message, NotAMessage
from elastic_checkpoint.net.greeting import FROM_SERVER, Endpoint, Greeting
from elastic_checkpoint.net.machine import boot_id, network_namespace
from elastic_checkpoint.net.secret import secret_of_run
from elastic_checkpoint.net.secured import client_side
from elastic_checkpoint.net.transport import SAME_FOR_ALL, TransportError, wait_until

_CONNECT_S = 5.0
_GREET_S = 30.0


class Client:
    """Connected from the start until `close`, or until the server is gone."""

    def __init__(
        self, endpoint: Message, number: int, heard: Callable[[Message], None], gone: Callable[[str], None]
    ) -> None:
        """Connect to the server of `endpoint`, under this number.

        endpoint     see Endpoint
        heard, gone  as of a `Server`

        Raises OSError where the server cannot be reached, or has another secret, or for what is no endpoint.
        """
        self._heard, self._gone = heard, gone
        try:
            where = made(Endpoint, endpoint)
        except NotAMessage as wrong:
            raise OSError(f"this is no endpoint of a process: {wrong}") from wrong
        self._connection, first = _connected(where, number)
        self._closed = False
        close_in_children(self)
        threading.Thread(target=self._listen, args=(first,), name="checkpoint-client", daemon=True).start()

    def send(self, message: Message) -> bool:
        """Return whether the message was sent; if not, the server is gone, or will be in a moment."""
        return self._connection.send(message)

    def close(self) -> None:
        """Hang up. Idempotent."""
        self._closed = True
        self._connection.shut()

    def close_in_child(self) -> None:
        self._connection.socket.close()

    def _listen(self, messages: list[Message]) -> None:
        connection = self._connection
        waiting = select.poll()
        waiting.register(connection.socket, select.POLLIN)
        try:
            while not connection.ended:
                for message in messages:
                    self._heard(message)
                waiting.poll()
                messages = connection.received()
        except NotAMessage as wrong:
            connection.ended = f"what it said was refused: {wrong}"
        except (OSError, ValueError) as error:
            connection.ended = str(error)
        forget(self)
        connection.socket.close()
        if not self._closed:
            self._gone(connection.ended)


def _connected(endpoint: Endpoint, number: int) -> tuple[Connection, list[Message]]:
    """Return a connection that the server has taken, and what it said beyond that already. Raises OSError."""
    same = endpoint.machine == [boot_id(), network_namespace()]
    secret, failed = secret_of_run(), []
    for address in [*(["127.0.0.1"] if same else []), *endpoint.addresses]:
        try:
            connected = socket.create_connection((address, endpoint.port), timeout=_CONNECT_S)
            connection = Connection(connected, client_side(secret))
        except (OSError, ValueError) as error:  # the latter for what is no address at all
            failed.append(f"{address}: {error}")
            continue
        try:
            deadline_s = time.monotonic() + _GREET_S
            wait_until(connection.socket, deadline_s)
            connection.send(as_message(Greeting(number=number, token=endpoint.token)))
            while not connection.ended:
                wait_until(connection.socket, deadline_s)
                if messages := connection.received():
                    parse(FROM_SERVER, messages[0])
                    connection.greeted()
                    return connection, messages[1:]
            failed.append(f"{address}: somebody else listens there")
        except TransportError as error:
            failed.append(f"{address}: {error}; {SAME_FOR_ALL}")
        except NotAMessage as wrong:
            failed.append(f"{address}: somebody else listens there: {wrong}")
        except (OSError, ValueError) as error:
            failed.append(f"{address}: {error}")
        connection.socket.close()
    raise OSError(f"nobody is reached at port {endpoint.port}: {'; '.join(failed) or 'it has no address'}")
