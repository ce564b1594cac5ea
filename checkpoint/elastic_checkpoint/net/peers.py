"""One process that many others are connected to: messages both ways, and each end learns when the other is gone.

    Server  listens; whoever knows its token may connect, under a number
    Client  is connected to it

    the server's Endpoint, by another channel  ->  the client: Greeting  ->  the server: Welcome, or it hangs up

What an end said before it went is heard before it counts as gone. A process that died is noticed at once, by what its
kernel says of its connections; a machine that was lost within connection.LOST_S. A process that is slow, stopped or
busy still has its kernel, and counts as there. The connections do not outlive their process in a forked child.

The token is as secret as the channel that brings the endpoint to the others; where the run has a secret (secret.py),
all is said by TLS to whoever knows it, too. Needs no torch.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Annotated

from msgspec import Meta

from elastic_checkpoint.net.codec import (
    Facts,
    Int,
    Message,
    NotAMessage,
    Tagged,
    as_message,
    by_word,
    encode,
    made,
    parse,
)
from elastic_checkpoint.net.connection import Connection, pass_on
from elastic_checkpoint.net.dialing import connected
from elastic_checkpoint.net.event_loop import EventLoop, LoopThread, run_once
from elastic_checkpoint.net.machine import boot_id, network_namespace, own_addresses
from elastic_checkpoint.net.port import PortThread
from elastic_checkpoint.net.secret import SAME_FOR_ALL, secret_of_run
from elastic_checkpoint.net.transport import Transport, client_side, prepare

_CONNECT_S = 5.0
_GREET_S = 30.0
_SEND_S = 60.0
_GREETING_MAX = 4096  # bytes that may be said by one that has not said yet who it is
_MEMBER_LINE_MAX = 2**30  # as a manifest: 4,000 ranks that each hold a part of 4,000 tensors need about as much
_BACKLOG = 2048


class Endpoint(Facts):
    """Where a server listens.

    addresses  of its machine, without the loopback
    token      whoever knows it may connect
    machine    its boot id and network namespace: there the loopback will do
    """

    addresses: list[str]
    port: Annotated[int, Meta(gt=0, lt=1 << 16)]
    token: str
    machine: list[str | None]


class Greeting(Tagged):
    """A client says who it is; number: under which it connects."""

    number: Int
    token: str


class Welcome(Tagged):
    """The client is connected."""


FROM_STRANGER = by_word(Greeting)
FROM_SERVER = by_word(Welcome)


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
        secret = secret_of_run()
        prepare(secret)
        self._heard, self._gone, self._came = heard, gone, came
        self._token = secrets.token_hex(16)
        self._numbers: dict[int, Connection] = {}
        self._served = PortThread("checkpoint-server", secret=secret, backlog=_BACKLOG, expected=expected)
        self._served.start(self._accepted)

    @property
    def endpoint(self) -> Message:
        """Return what a `Client` needs to connect."""
        machine = [boot_id(), network_namespace()]
        port = self._served.number
        return as_message(Endpoint(addresses=own_addresses(), port=port, token=self._token, machine=machine))

    def send(self, number: int, message: Message) -> bool:
        """Return whether the message was sent; if not, the number is gone, or will be in a moment."""
        is_there = number in self._numbers
        self.send_all({number: message})
        return is_there

    def send_all(self, messages: Mapping[int, Message]) -> None:
        """Send each of these numbers its message before this returns: an answer stands, whoever dies then."""
        encoded = {number: encode(message) for number, message in messages.items()}

        def send() -> None:
            known = {self._numbers[number]: data for number, data in encoded.items() if number in self._numbers}
            _send(self._served.thread.loop, known)

        self._served.thread.call_and_wait(send, _SEND_S)

    def close(self) -> None:
        """Send what was said, and hang up on all. Idempotent."""
        self._served.close(lambda until_s: _hang_up(self._served.thread.loop, [*self._numbers.values()], until_s))

    def _accepted(self, sock: socket.socket, host: str, transport: Transport) -> Connection:
        number: int | None = None

        def heard(message: Message) -> None:
            nonlocal number
            if number is not None:
                pass_on(partial(self._heard, number), message)
            elif (number := self._greeted(connection, message)) is None:
                raise NotAMessage("it does not know the token")

        def ended(why: str | None) -> None:
            self._served.port.identified(connection)
            if connection.refused:
                self.refused = f"{host}: {connection.refused}; {SAME_FOR_ALL}"
            if number is not None and self._numbers.get(number) is connection:
                del self._numbers[number]
                self._gone(number, _how(connection, why))

        connection = Connection(self._served.thread.loop, sock, heard, ended, transport, longest=_GREETING_MAX)
        return connection

    def _greeted(self, connection: Connection, message: Message) -> int | None:
        """Return the number that a greeting with our token names, and welcome it. Raises NotAMessage."""
        said: Greeting = parse(FROM_STRANGER, message)
        if not hmac.compare_digest(said.token.encode("utf-8", "surrogatepass"), self._token.encode("ascii")):
            return None
        number = said.number
        before = self._numbers.pop(number, None)
        if before is not None:  # it came back before we noticed that it was gone
            before.close()
            self._gone(number, "it connected anew")
        self._served.port.identified(connection)
        connection.takes_long_lines(_MEMBER_LINE_MAX)
        self._numbers[number] = connection
        self._came(number)
        connection.say(as_message(Welcome()))
        return number


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
        self._is_welcome = self._closed = False
        self._settled = threading.Event()  # whether it is welcome, at one address
        self._thread = LoopThread("checkpoint-client")
        self._thread.start()
        try:
            self._connect(where, number)
        except BaseException:
            self._thread.close()
            raise

    def send(self, message: Message) -> bool:
        """Send the message before this returns; if it does not return True, the server is gone, or will be soon."""
        data = encode(message)
        self._thread.call_and_wait(lambda: _send(self._thread.loop, {self._connection: data}), _SEND_S)
        return not self._closed

    def close(self) -> None:
        """Send what was said, and hang up. Idempotent."""
        self._closed = True
        self._thread.close(lambda deadline_s: _hang_up(self._thread.loop, [self._connection], deadline_s))

    def _connect(self, endpoint: Endpoint, number: int) -> None:
        """Connect at the first address where the server takes this one. Raises OSError."""
        same = endpoint.machine == [boot_id(), network_namespace()]
        secret, failed = secret_of_run(), []
        greeting = encode(as_message(Greeting(number=number, token=endpoint.token)))
        for address in [*(["127.0.0.1"] if same else []), *endpoint.addresses]:
            self._settled.clear()
            try:
                sock = connected((address, endpoint.port), _CONNECT_S)
                try:
                    transport = client_side(secret)
                    self._thread.call_and_wait(partial(self._greet, sock, transport, greeting), _GREET_S)
                except BaseException:
                    sock.close()
                    raise
            except OSError as error:
                failed.append(f"{address}: {error}")
                continue
            in_time = self._settled.wait(_GREET_S)
            if self._is_welcome:
                return
            self._thread.call_and_wait(self._connection.close, _SEND_S)
            if transport.refused:
                failed.append(f"{address}: {transport.refused}; {SAME_FOR_ALL}")
            else:
                how = _how(self._connection, None) if in_time else "it has not answered in time"
                failed.append(f"{address}: somebody else listens there: {how}")
        raise OSError(f"nobody is reached at port {endpoint.port}: {'; '.join(failed) or 'it has no address'}")

    def _greet(self, sock: socket.socket, transport: Transport, greeting: bytes) -> None:
        self._connection = Connection(self._thread.loop, sock, self._hear, self._ended, transport)
        self._connection.send(greeting)

    def _hear(self, message: Message) -> None:
        if self._is_welcome:
            pass_on(self._heard, message)
            return
        parse(FROM_SERVER, message)
        self._connection.takes_long_lines(_MEMBER_LINE_MAX)
        self._is_welcome = True
        self._settled.set()

    def _ended(self, why: str | None) -> None:
        self._settled.set()
        if self._is_welcome and not self._closed:
            self._closed = True
            self._gone(_how(self._connection, why))
            self._thread.close()


def _send(loop: EventLoop, said: Mapping[Connection, bytes]) -> None:
    """Send these, and turn the loop until the kernel has taken all of it, or for _SEND_S."""
    for connection, data in said.items():
        connection.send(data)
    _wait_until_sent(loop, said, time.monotonic() + _SEND_S)


def _wait_until_sent(loop: EventLoop, on: Collection[Connection], deadline_s: float) -> None:
    loop.end_turn()
    while any(connection.unsent for connection in on) and time.monotonic() < deadline_s:
        run_once(loop, deadline_s - time.monotonic())


def _hang_up(loop: EventLoop, on: Collection[Connection], deadline_s: float) -> None:
    """Close these connections once what was said is sent, and what they said is heard."""
    _wait_until_sent(loop, on, deadline_s)
    for connection in on:
        connection.drain()


def _how(connection: Connection, why: str | None) -> str:
    """Return how a connection ended."""
    if isinstance(connection.error, NotAMessage):
        return f"what it said was refused: {connection.error}"
    return why or str(connection.error or "its connection ended")
