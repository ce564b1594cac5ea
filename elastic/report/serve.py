"""`elastic report RUN --serve`: a run's page over HTTP, made of its events as somebody looks. It only reads.

    /             the page, which a browser asks for again by itself
    /report.json  the same as `--json`

Nobody looks: nothing is read. However many look, it is read once in so many seconds.
"""

from __future__ import annotations

import http.server
import ipaddress
import json
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from elastic_checkpoint.net.port import listen
from elastic_checkpoint.storage import redact

_PAGE = "/"
_KINDS = {_PAGE: "text/html", "/report.json": "application/json"}
_SLOW_S = 10.0  # for a request, and for reading its answer


@dataclass(frozen=True)
class Answer:
    """What is served of a run: its page, made once it is asked for, and its facts, or why there are none."""

    html: Callable[[], str] = str
    facts: Mapping[str, Any] | None = None
    why_not: str = ""


class ReportServer(http.server.ThreadingHTTPServer):
    """Serves a run's page from its making until `close`, in threads that end with their process.

    address  as a browser takes it
    """

    daemon_threads = True

    def __init__(self, look: Callable[[], Answer], *, host: str, port: int, every_s: float) -> None:
        """Listen. Raises OSError where the port is not to be had.

        look     reads the run
        port     0: any that is free
        every_s  between two looks
        """
        listener = listen(host, range(port, port + 1) if port else None)
        super().__init__((host, 0), _Request, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        number = listener.getsockname()[1]
        self.address = f"http://{f'[{host}]' if ':' in host else host}:{number}/"
        self.every_s = every_s
        # A page elsewhere could have its own name lead here, and read what a browser may (DNS rebinding).
        self.is_private = _is_loopback(host)
        self._look = look
        self._found = Answer()
        self._found_s: float | None = None
        self._reading = threading.Lock()
        self._told: set[str] = set()
        self._connected: set[socket.socket] = set()

    def answer(self, path: str) -> tuple[HTTPStatus, str]:
        """Return what is served there, of a look no older than `every_s`."""
        try:
            with self._reading:
                if self._found_s is None or time.monotonic() - self._found_s >= self.every_s:
                    self._found, self._found_s = self._look(), time.monotonic()
                found = self._found
                if found.facts is None:
                    return HTTPStatus.SERVICE_UNAVAILABLE, found.why_not
                return HTTPStatus.OK, found.html() if path == _PAGE else json.dumps(found.facts, allow_nan=False)
        except Exception as failure:  # a mistake of ours, which must not take along what else is served
            self._tell(failure)
            return HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(failure).__name__}: standard error has more\n"

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        self._connected.add(request)
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._connected.discard(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        failure = sys.exc_info()[1]
        # Whoever asked has gone, or reads nothing, which is nobody's concern.
        if failure is not None and not isinstance(failure, ConnectionError | TimeoutError):
            self._tell(failure)

    def _tell(self, failure: BaseException) -> None:
        """Print a failure, unless it was printed before."""
        text = redact("".join(traceback.format_exception(failure)))
        if text not in self._told:
            self._told.add(text)
            print(f"elastic report: {text}", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Listen no more, and hang up on all."""
        self.server_close()
        for one in tuple(self._connected):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


class _Request(http.server.BaseHTTPRequestHandler):
    server: ReportServer
    timeout = _SLOW_S

    def do_GET(self) -> None:
        if self.server.is_private and not _is_loopback(_asked(self.headers.get("Host", ""))):
            self._send(HTTPStatus.FORBIDDEN, f"this page is {self.server.address}\n")
            return
        path = self.path.partition("?")[0]
        if path not in _KINDS:
            self._send(HTTPStatus.NOT_FOUND, f"{', '.join(_KINDS)}\n")
            return
        status, text = self.server.answer(path)
        self._send(status, text, kind=_KINDS[path] if status is HTTPStatus.OK else "text/plain")

    do_HEAD = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: standard error says what is wrong with the run."""

    def _send(self, status: HTTPStatus, text: str, *, kind: str = "text/plain") -> None:
        body = text.encode(errors="replace")
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Refresh", f"{self.server.every_s:g}")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _asked(host_and_port: str) -> str:
    with suppress(ValueError):
        return urlsplit(f"//{host_and_port}").hostname or ""
    return ""


def _is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"
