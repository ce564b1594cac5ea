"""A real HTTP server in front of a real S3 server, which now and then answers for itself, or not at all.

"SlowDown" and other codes of S3's    that error, with its status
"reset"                               the connection is reset before the request is passed on
"lost"                                the request is passed on; the connection is reset instead of an answer
"cut"                                 half of the answer's body, if it has one, then a reset
"hang"                                no answer, until the front closes
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import struct
import threading
from collections import deque
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from tests.kit.s3 import S3Server

STATUS = {
    "SlowDown": 503,
    "ServiceUnavailable": 503,
    "InternalError": 500,
    "RequestTimeout": 400,
    "AuthorizationHeaderMalformed": 400,
    "AccessDenied": 403,
    "ExpiredToken": 400,
    "RequestTimeTooSkewed": 403,
    "QuotaExceeded": 403,
}
_UPSTREAM_S = 60.0


class Front:
    """troubles  what happens to the next requests, one each, then all is well; `always` to all of them
    requests  how many came
    """

    def __init__(self, behind: S3Server, endpoint_url: str) -> None:
        self.upstream = urlsplit(behind.endpoint_url).netloc
        self.options: dict[str, Any] = {**behind.options, "endpoint_url": endpoint_url}
        self.troubles: deque[str] = deque()
        self.always: str | None = None
        self.requests = 0
        self.closing = threading.Event()
        self._lock = threading.Lock()

    def next_trouble(self) -> str | None:
        with self._lock:
            self.requests += 1
            return self.always or (self.troubles.popleft() if self.troubles else None)


@contextlib.contextmanager
def flaky(behind: S3Server) -> Iterator[Front]:
    """The front, for as long as the block lasts."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one_request(self) -> None:
            with contextlib.suppress(ConnectionError):
                super().handle_one_request()

        def do_GET(self) -> None:
            _serve(self, front)

        do_PUT = do_POST = do_HEAD = do_DELETE = do_GET

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing: the tests ask `Front`."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True  # one may wait for a client's next request
    front = Front(behind, f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield front
    finally:
        front.closing.set()
        server.shutdown()
        thread.join(timeout=30)
        server.server_close()


def _serve(request: BaseHTTPRequestHandler, front: Front) -> None:
    body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
    trouble = front.next_trouble()
    if trouble in STATUS:
        text = f"<Error><Code>{trouble}</Code><Message>on purpose</Message></Error>".encode()
        return _answer(request, STATUS[trouble], [("Content-Type", "application/xml")], text)
    if trouble == "hang":
        front.closing.wait()
    if trouble in ("hang", "reset"):
        return _reset(request)
    upstream = http.client.HTTPConnection(front.upstream, timeout=_UPSTREAM_S)
    try:
        upstream.request(request.command, request.path, body, dict(request.headers))
        response = upstream.getresponse()
        status, headers, text = response.status, response.getheaders(), response.read()
    finally:
        upstream.close()
    if trouble == "lost" or (trouble == "cut" and not text):
        return _reset(request)
    return _answer(request, status, headers, text, cut=trouble == "cut")


def _answer(
    request: BaseHTTPRequestHandler, status: int, headers: list[tuple[str, str]], body: bytes, cut: bool = False
) -> None:
    request.send_response_only(status)
    length = str(len(body))
    for name, value in headers:
        if name.lower() == "content-length" and request.command == "HEAD":
            length = value
        elif name.lower() not in ("content-length", "transfer-encoding", "connection"):
            request.send_header(name, value)
    request.send_header("Content-Length", length)
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(body[: len(body) // 2] if cut else body)
    if cut:
        _reset(request)


def _reset(request: BaseHTTPRequestHandler) -> None:
    """RST instead of FIN: what a crashed server or an impatient load balancer sends."""
    request.wfile.flush()
    request.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    request.connection.shutdown(socket.SHUT_RD)
    request.close_connection = True
    request.connection.close()
