"""A TCP relay to a port of this machine, for what is to be seen or slowed on the way."""

from __future__ import annotations

import contextlib
import socket
import threading

_READ_BYTES = 2**16


class Relay:
    """to: the server's port. It listens until `close`; connections last as long as their ends."""

    def __init__(self, to: int) -> None:
        self._to = to
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def close(self) -> None:
        self._listener.close()

    def passes(self, data: bytes, *, up: bool) -> None:
        """Called with what was read, before it is sent on. up: to the server"""

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._to))
                for source, to, up in ((client, server, True), (server, client, False)):
                    threading.Thread(target=self._pass, args=(source, to, up), daemon=True).start()

    def _pass(self, source: socket.socket, to: socket.socket, up: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_READ_BYTES):
                self.passes(data, up=up)
                to.sendall(data)
        with contextlib.suppress(OSError):
            to.shutdown(socket.SHUT_WR)
