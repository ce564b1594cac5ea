"""What really went to an S3 server and what came back, by a look at each request that the client library sends."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import aiobotocore.httpsession


class Traffic:
    """requests  what was asked, such as "GET data" or "LIST commits": the method, and the folder below the run's
    got       bytes of the bodies that came for the GETs of objects
    """

    def __init__(self, run: str) -> None:
        self._run = run  # the run's path: bucket/folder
        self.requests: Counter[str] = Counter()
        self.got = 0

    @property
    def total(self) -> int:
        return self.requests.total()

    def note(self, method: str, url: str, body_bytes: int) -> None:
        parts = urlsplit(url)
        query = parse_qs(parts.query, keep_blank_values=True)
        path = unquote(parts.path).lstrip("/")
        if "list-type" in query:
            method, path = "LIST", f"{path.rstrip('/')}/{query['prefix'][0]}"
        elif "uploads" in query and method == "GET":
            method = "LIST uploads"
        elif "delete" in query:
            method = "DELETE many"
        elif method == "GET":
            self.got += body_bytes
        folder = path.removeprefix(f"{self._run}/").split("/")[0] if path.startswith(f"{self._run}/") else ""
        self.requests[f"{method} {folder}".strip()] += 1


@contextlib.contextmanager
def watched(url: str) -> Iterator[Traffic]:
    """All requests of this process, while the block lasts; `url` is the run's, s3://bucket/folder."""
    traffic = Traffic(url.removeprefix("s3://"))
    session: Any = aiobotocore.httpsession.AIOHTTPSession
    send = session.send

    async def noting(self: Any, request: Any) -> Any:
        response = await send(self, request)
        traffic.note(request.method, request.url, int(response.headers.get("Content-Length") or 0))
        return response

    session.send = noting
    try:
        yield traffic
    finally:
        session.send = send
