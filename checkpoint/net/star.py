"""One process and many others, connected over TCP: messages both ways, and each end learns when the other is gone.

    Server   listens; whoever knows its token may connect, under a number
    Client    is connected to it

A message is one line of JSON. What an end said before it went is heard before it counts as gone. A process that died
is noticed at once, by what its kernel says of its connections; a machine that was lost within LOST_S, since kernels
answer each other's probes. A process that is slow, stopped or busy still has its kernel, and counts as there. The
connections do not outlive their process in a forked child, which closes its copies at once.

The token is as secret as the channel that brings the endpoint to the others. Needs no torch.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from checkpoint.net.machine import boot_id, network_namespace, own_addresses

LOST_S = 30.0  # after so long without any answer of its kernel, a machine counts as lost

_PROBE_S, _PROBES = 5, 4
_CONNECT_S = 5.0
_GREET_S = 30.0
_SEND_S = 60.0  # the other end reads in a thread of its own
_GREETING_BYTES = 4096
_STRANGERS_MAX = 128  # who says its token at once is through long before so many others have come
_PAUSE_S = 0.1
_READ_BYTES = 2**16

Message = dict[str, Any]

_live: weakref.WeakSet[Server | Client] = weakref.WeakSet()


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
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        self._listener = socket.create_server(("", 0), family=family, backlog=2048, dualstack_ipv6=both)
        self._listener.setblocking(False)
        self._wake_read, self._wake_write = socket.socketpair()
        self._port: int = self._listener.getsockname()[1]
        self._lines: dict[int, _Line] = {}  # by their descriptors, in the order in which they came
        self._numbers: dict[int, _Line] = {}
        _live.add(self)
        self._thread = threading.Thread(target=self._serve, name="checkpoint-star", daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> Message:
        """What a `Client` needs to connect."""
        return {
            "addresses": own_addresses(),
            "port": self._port,
            "token": self._token,
            "machine": [boot_id(), network_namespace()],
        }

    def send(self, number: int, message: Message) -> bool:
        """Whether the message was sent; if not, the number is gone, or will be in a moment."""
        line = self._numbers.get(number)
        return line is not None and line.send(message)

    def close(self) -> None:
        """Hangs up on all. Idempotent."""
        if self in _live:
            _live.discard(self)
            self._wake_write.close()
            if threading.current_thread() is not self._thread:
                self._thread.join(_SEND_S)

    def close_in_child(self) -> None:
        """After a fork: what is connected must not outlive the parent."""
        for one in (self._listener, self._wake_read, self._wake_write, *(line.socket for line in self._lines.values())):
            one.close()

    def _serve(self) -> None:
        waiting = select.poll()  # select() fails for descriptors above 1023
        waiting.register(self._listener, select.POLLIN)
        waiting.register(self._wake_read, select.POLLIN)
        try:
            while True:
                for ready, _ in waiting.poll():
                    if ready == self._wake_read.fileno():
                        return
                    if ready == self._listener.fileno():
                        self._accept(waiting)
                    elif (line := self._lines.get(ready)) is not None and not self._listen_to(line):
                        waiting.unregister(ready)
                        self._hang_up(line)
        finally:
            for one in (self._listener, self._wake_read, *(line.socket for line in self._lines.values())):
                one.close()

    def _accept(self, waiting: select.poll) -> None:
        try:
            line = _Line(self._listener.accept()[0])
        except OSError:  # the caller went away, or there is no descriptor left: no busy loop while it lasts
            time.sleep(_PAUSE_S)
            return
        self._lines[line.socket.fileno()] = line
        waiting.register(line.socket, select.POLLIN)
        strangers = [one for one in self._lines.values() if one.number is None and not one.ended]
        if len(strangers) > _STRANGERS_MAX:
            strangers[0].ended = "it did not say who it is"
            strangers[0].shut()  # its end comes up in the next poll

    def _listen_to(self, line: _Line) -> bool:
        """Whether the line lives on."""
        if line.ended:
            return False
        try:
            for message in line.received():
                if line.number is not None:
                    self._heard(line.number, message)
                elif not self._greeted(line, message):
                    return False
        except (OSError, ValueError, RecursionError) as error:  # the last two from strangers
            line.ended = str(error)
        return not line.ended and (line.number is not None or line.waiting_bytes < _GREETING_BYTES)

    def _greeted(self, line: _Line, message: Message) -> bool:
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
        line.number = number
        self._numbers[number] = line
        self._heard(number, {})
        line.send({})
        return True

    def _hang_up(self, line: _Line) -> None:
        del self._lines[line.socket.fileno()]
        line.socket.close()
        if line.number is not None:
            del self._numbers[line.number]
            self._gone(line.number, line.ended)


class Client:
    """Connected from the start until `close`, or until the server is gone."""

    def __init__(
        self, endpoint: Message, number: int, heard: Callable[[Message], None], gone: Callable[[str], None]
    ) -> None:
        """heard, gone  as of a `Server`. Raises OSError where the server cannot be reached."""
        self._heard, self._gone = heard, gone
        self._line, first = _connected(endpoint, number)
        self._closed = False
        _live.add(self)
        threading.Thread(target=self._listen, args=(first,), name="checkpoint-star", daemon=True).start()

    def send(self, message: Message) -> bool:
        """Whether the message was sent; if not, the server is gone, or will be in a moment."""
        return self._line.send(message)

    def close(self) -> None:
        """Hangs up. Idempotent."""
        self._closed = True
        self._line.shut()

    def close_in_child(self) -> None:
        """After a fork."""
        self._line.socket.close()

    def _listen(self, messages: list[Message]) -> None:
        waiting = select.poll()
        waiting.register(self._line.socket, select.POLLIN)
        try:
            while not self._line.ended:
                for message in messages:
                    self._heard(message)
                waiting.poll()
                messages = list(self._line.received())
            for message in messages:
                self._heard(message)
        except (OSError, ValueError) as error:
            self._line.ended = str(error)
        _live.discard(self)
        self._line.socket.close()
        if not self._closed:
            self._gone(self._line.ended)


class _Line:
    """One connection.

    ended   how it ended, once it has
    number  of the other end, where that is a client that has greeted
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(_SEND_S)  # reading comes after poll, so this is for sending
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (
            ("TCP_KEEPIDLE", int(LOST_S) - _PROBE_S * _PROBES),
            ("TCP_KEEPINTVL", _PROBE_S),
            ("TCP_KEEPCNT", _PROBES),
            ("TCP_USER_TIMEOUT", int(LOST_S * 1000)),
        ):
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self.socket = connection
        self.ended = ""
        self.number: int | None = None
        self._unread = bytearray()
        self._sending = threading.Lock()

    @property
    def waiting_bytes(self) -> int:
        return len(self._unread)

    def send(self, message: Message) -> bool:
        data = json.dumps(message).encode("ascii") + b"\n"
        try:
            with self._sending:
                self.socket.sendall(data)
        except OSError:
            self.shut()  # the one who reads it learns of it
            return False
        return True

    def received(self) -> Iterator[Message]:
        """What has arrived, in whole messages. Raises OSError, ValueError for what is no message."""
        data = self.socket.recv(_READ_BYTES)
        if not data:
            self.ended = "its connection ended"
            return
        searched = len(self._unread)
        self._unread += data
        while (end := self._unread.find(b"\n", searched)) >= 0:
            message = json.loads(bytes(self._unread[:end]))
            if type(message) is not dict:
                raise ValueError("it said what is no message")
            del self._unread[: end + 1]
            searched = 0
            yield message

    def shut(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)


def _connected(endpoint: Message, number: int) -> tuple[_Line, list[Message]]:
    """A line that the server has taken, and what it said beyond that already."""
    same = endpoint["machine"] == [boot_id(), network_namespace()]
    failed = []
    for address in [*(["127.0.0.1"] if same else []), *endpoint["addresses"]]:
        try:
            line = _Line(socket.create_connection((address, endpoint["port"]), timeout=_CONNECT_S))
        except OSError as error:
            failed.append(f"{address}: {error}")
            continue
        try:
            line.socket.settimeout(_GREET_S)
            line.send({"number": number, "token": endpoint["token"]})
            while not line.ended:
                if messages := list(line.received()):
                    line.socket.settimeout(_SEND_S)
                    return line, messages[1:]
            failed.append(f"{address}: somebody else listens there")
        except (OSError, ValueError) as error:
            failed.append(f"{address}: {error}")
        line.socket.close()
    raise OSError(f"nobody is reached at port {endpoint['port']}: {'; '.join(failed) or 'it has no address'}")


def _close_all_in_child() -> None:
    for one in list(_live):
        one.close_in_child()
    _live.clear()


os.register_at_fork(after_in_child=_close_all_in_child)
