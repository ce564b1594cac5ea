"""A way to a server that can be shut: what is under way then hangs until it is opened again, or for ever."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator


class Gate:
    """Listens on a port of its own and passes on every connection.

    arrived  set when something that was sent waits at the shut gate
    """

    def __init__(self, port: int) -> None:
        self._to = port
        self._open = threading.Event()
        self._open.set()
        self.arrived = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = [self._listener]
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def shut(self) -> None:
        self.arrived.clear()
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def close(self) -> None:
        self.open()
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join(30)

    def _start(self, act: object, *arguments: object) -> None:
        assert callable(act)
        thread = threading.Thread(target=act, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                caller, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._to))
                self._sockets += [caller, server]
                self._start(self._pass, caller, server, True)
                self._start(self._pass, server, caller, False)

    def _pass(self, source: socket.socket, to: socket.socket, gated: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(2**16):
                if gated and not self._open.is_set():
                    self.arrived.set()
                    self._open.wait()
                to.sendall(data)
        with contextlib.suppress(OSError):
            to.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def gate(port: int) -> Iterator[Gate]:
    """A gate before 127.0.0.1:port."""
    one = Gate(port)
    try:
        yield one
    finally:
        one.close()
