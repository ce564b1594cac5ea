"""A cloud's metadata service, asked by plain HTTP, and not trusted: it may be absent, slow, broken, or somebody else.

Promises  an answer, or `Unanswered`, by the deadline, however slowly bytes come in.
          No proxy is used, no redirect followed, no more than 64 KiB read, nothing sent but what the caller gives.
          `abort`, from any thread, ends a question that is under way.
"""

from __future__ import annotations

import http.client
import io
import json
import re
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

from elastic.errors import ConfigError
from elastic.preemption.sources.source import Source, SourceFailed

LINK_LOCAL = "http://169.254.169.254"  # of EC2, GCP and Azure alike
BYTES_MAX = 1 << 16
_READ = 4096


class Unanswered(SourceFailed):
    """A question to the service has no answer: why, in words."""


@dataclass(frozen=True)
class Answer:
    """An answer of the service.

    headers  by their names in lower case
    at_s     when it was here, by time.monotonic()
    clock_t  unix seconds, by the clock of whoever answered, to the second; None: it shows none
    """

    status: int
    headers: Mapping[str, str]
    body: str
    at_s: float

    @property
    def clock_t(self) -> float | None:
        try:
            return parsedate_to_datetime(self.headers["date"]).timestamp()
        except (KeyError, ValueError, TypeError, OverflowError):
            return None

    def json_object(self, path: str) -> dict[str, Any]:
        """Return what the body holds. path: of the question. Raises SourceFailed for anything but an object."""
        try:
            said = json.loads(self.body)
        except (ValueError, RecursionError):
            said = None
        if not isinstance(said, dict):
            raise SourceFailed(f"{path} answers {self.status}: {self.body[:80]!r}; expected a JSON object")
        return said


class MetadataService:
    """The service at one address. endpoint: http://HOST[:PORT]. Raises ConfigError for anything else."""

    def __init__(self, endpoint: str = LINK_LOCAL) -> None:
        self.endpoint = endpoint
        try:
            url = urlsplit(endpoint)
            port = url.port or 80
        except ValueError as wrong:
            raise ConfigError(f"{endpoint} is no address of a metadata service: {wrong}") from wrong
        if url.scheme != "http" or not url.hostname or url.path.strip("/") or url.query:
            raise ConfigError(
                f"{endpoint} is no address of a metadata service; expected http://HOST or http://HOST:PORT"
            )
        self._address = url.hostname, port
        self._host = url.netloc
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._aborted = False

    def ask(
        self, method: str, path: str, headers: Mapping[str, str], *, within_s: float, body: bytes | None = None
    ) -> Answer:
        """Ask, and return the answer. Raises Unanswered."""
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self._host}", "Connection: close", "Accept: */*"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        lines += [f"Content-Length: {len(body)}"] if body is not None else []
        request = "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")
        try:
            received = self._exchange(request, time.monotonic() + within_s)
            return _parsed(received)
        except TimeoutError:
            raise Unanswered(f"{self.endpoint}{path} did not answer within {within_s:g} s") from None
        except (OSError, http.client.HTTPException, ValueError) as failure:
            raise Unanswered(f"{self.endpoint}{path}: {type(failure).__name__}: {failure}") from failure

    def abort(self) -> None:
        """End a question that is under way, and all later ones: the end of whoever asks is near."""
        with self._lock:
            self._aborted = True
            if self._socket is not None:
                try:
                    # Not close(): that would leave the thread that waits in recv where it is.
                    self._socket.shutdown(socket.SHUT_RDWR)
                except OSError:
                    return

    def _exchange(self, request: bytes, deadline_s: float) -> bytes:
        """Send a request, and return what comes back by the deadline; `abort` can end that."""
        with socket.create_connection(self._address, timeout=deadline_s - time.monotonic()) as connected:
            with self._lock:
                if self._aborted:
                    raise ConnectionAbortedError("nobody asks any more")
                self._socket = connected
            try:
                connected.sendall(request)
                return _received(connected, deadline_s)
            finally:
                with self._lock:
                    self._socket = None


def _received(connected: socket.socket, deadline_s: float) -> bytes:
    """Read until an answer is whole. Raises TimeoutError, or ValueError for one that is too long."""
    data = bytearray()
    while not _is_whole(data):
        # Of all of it, and not of each part: a byte now and then would hold us for good.
        if (left_s := deadline_s - time.monotonic()) <= 0:
            raise TimeoutError
        connected.settimeout(left_s)
        part = connected.recv(_READ)
        if not part:
            break
        data += part
        # Whoever answers need not be the cloud's service.
        if len(data) > BYTES_MAX:
            raise ValueError(f"more than {BYTES_MAX:,} bytes")
    return bytes(data)


def _is_whole(data: bytearray) -> bool:
    """Tell whether an answer is here, of a service that does not hang up, as it was asked to."""
    head, found, body = data.partition(b"\r\n\r\n")
    length = re.search(rb"\r\ncontent-length:[ \t]*(\d{1,6})[ \t]*(?:\r|$)", head, re.IGNORECASE) if found else None
    return length is not None and len(body) >= int(length[1])


class _Bytes:
    """Bytes in the shape that http.client takes a response from."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, _mode: str) -> io.BytesIO:
        return io.BytesIO(self._data)


def _parsed(data: bytes) -> Answer:
    response = http.client.HTTPResponse(_Bytes(data))  # type: ignore[arg-type]  # it only makes a file of it
    response.begin()
    body = response.read().decode("utf-8", "replace")
    headers = {name.lower(): value for name, value in response.getheaders()}
    return Answer(response.status, headers, body, time.monotonic())


class Cloud(Source):
    """A cloud as a source of notices: its firmware names it, and its metadata service is asked."""

    found = "by the firmware"

    def __init__(self, service: MetadataService) -> None:
        self.service = service

    def abort(self) -> None:
        self.service.abort()
