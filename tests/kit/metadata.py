"""A metadata service that speaks EC2's, Compute Engine's and Azure's protocol at one address, with every fault.

    with MetadataServer() as server:            python -m tests.kit.metadata ADDRESS PORT FILE
        server.interrupt(in_s=120)              (what FILE holds, as JSON, is what it says: {"interrupt": 120})

As the real ones: IMDSv2 wants a token and refuses one that it has not given, Google's wants its header and answers a
`wait_for_change` when the value is another, Azure lists events of all machines of a set.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator
from email.utils import formatdate
from pathlib import Path
from types import TracebackType
from typing import Any, Literal
from urllib.parse import parse_qsl, urlsplit

Fault = Literal["503", "hang", "hang put", "refuse", "types", "huge", "redirect", "drip", "hang up", "not http"]
FAULTS: tuple[Fault, ...] = ("503", "hang", "refuse", "types", "huge", "redirect", "drip", "hang up", "not http")
"""Of any protocol; "hang put" is a token's answer that does not come back, for it may take one hop only."""
_DRIP_S = 0.01
_POLL_S = 0.05


class MetadataServer:
    """
    fault     from now on
    broken    how the paths end for which it holds
    off_s     how far its clock is ahead of this machine's
    asked     (method, path with its query) of every request
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self.fault: Fault | None = None
        self.broken = ""
        self.off_s = 0.0
        self.shows_date = True
        self.asked: list[tuple[str, str]] = []
        self.acknowledged: list[str] = []
        self.vm = "trainer_0"
        self._tokens: set[str] = set()
        self._action: dict[str, Any] | None = None
        self._rebalance: dict[str, Any] | None = None
        self._gcp = {"preempted": "FALSE", "maintenance-event": "NONE"}
        self._etag = 0
        self._events: list[Any] = []
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._server = _Server((host, port), _Handler)
        self._server.owner = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=[0.02], name="metadata")

    @property
    def endpoint(self) -> str:
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}"

    # what it says

    def interrupt(self, *, action: str = "terminate", in_s: float = 120) -> None:
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + self.off_s + in_s))
        self._action = {"action": action, "time": at}

    def withdraw(self) -> None:
        """All of it."""
        with self._changed:
            self._action, self._rebalance, self._events = None, None, []
            self._gcp = {"preempted": "FALSE", "maintenance-event": "NONE"}
            self._etag += 1
            self._changed.notify_all()

    def rebalance(self) -> None:
        self._rebalance = {"noticeTime": "2026-11-24T08:22:00Z"}

    def gcp(self, key: Literal["preempted", "maintenance-event"], value: str) -> None:
        with self._changed:
            self._gcp[key] = value
            self._etag += 1
            self._changed.notify_all()

    def event(self, kind: str, *resources: str, in_s: float | None = 30) -> str:
        """Azure's, about these machines. in_s: None: it has started. Returns its id."""
        id = secrets.token_hex(8)
        not_before = "" if in_s is None else formatdate(time.time() + self.off_s + in_s, usegmt=True)
        made = {"EventId": id, "EventType": kind, "ResourceType": "VirtualMachine", "Resources": list(resources)}
        self._events.append({**made, "EventStatus": "Scheduled", "NotBefore": not_before})
        return id

    def list_event(self, document: object) -> None:
        """Azure's list holds this, too, whatever it is."""
        self._events.append(document)

    def forget_tokens(self) -> None:
        self._tokens.clear()

    # how it is served

    def answer(self, handler: _Handler, body: bytes) -> None:
        path = urlsplit(handler.path)
        self.asked.append((handler.command, handler.path))
        if self.fault is not None and path.path.endswith(self.broken) and self._broken(handler, self.fault):
            return
        if path.path == "/latest/api/token":
            self._token(handler)
        elif path.path.startswith("/latest/"):
            self._ec2(handler, path.path)
        elif path.path.startswith("/computeMetadata/v1/instance/"):
            self._google(handler, path.path.rpartition("/")[2], dict(parse_qsl(path.query)))
        elif path.path.startswith("/metadata/"):
            self._azure(handler, path.path, body)
        else:
            handler.reply(404, b"")

    def _broken(self, handler: _Handler, fault: Fault) -> bool:
        """Whether that was the answer."""
        match fault:
            case "503":
                handler.reply(503, b"try later")
            case "hang":
                self._closing.wait()
            case "hang put" if handler.command == "PUT":
                self._closing.wait()
            case "hang put":
                return False
            case "refuse":
                handler.reply(401, b"")
            case "types":
                flavor = {"Metadata-Flavor": "Google"}
                handler.reply(200, json.dumps([{"action": 7}, None, "Preempt"]).encode(), **flavor)
            case "huge":
                handler.reply(200, b'{"action": "' + b"x" * (1 << 22) + b'"}')
            case "redirect":
                handler.reply(302, b"", Location=f"{self.endpoint}/elsewhere")
            case "drip":
                self._drip(handler)
            case "hang up":
                handler.close_connection = True
            case "not http":
                handler.wfile.write(b"SSH-2.0-OpenSSH_9.2\r\n")
                handler.close_connection = True
        return True

    def _drip(self, handler: _Handler) -> None:
        """Never done, and never silent."""
        with contextlib.suppress(OSError):
            handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
            while not self._closing.wait(_DRIP_S):
                handler.wfile.write(b"x")
                handler.wfile.flush()

    def _token(self, handler: _Handler) -> None:
        ttl = handler.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
        if handler.command != "PUT" or not ttl.isdigit() or not 1 <= int(ttl) <= 21600:
            handler.reply(400, b"")
            return
        token = secrets.token_urlsafe(40)
        self._tokens.add(token)
        handler.reply(200, token.encode())

    def _ec2(self, handler: _Handler, path: str) -> None:
        if handler.headers.get("X-aws-ec2-metadata-token") not in self._tokens:
            handler.reply(401, b"")
            return
        said = {
            "/latest/meta-data/spot/instance-action": self._action,
            "/latest/meta-data/events/recommendations/rebalance": self._rebalance,
        }.get(path)
        handler.reply(404 if said is None else 200, b"" if said is None else json.dumps(said).encode())

    def _google(self, handler: _Handler, key: str, query: dict[str, str]) -> None:
        if handler.headers.get("Metadata-Flavor") != "Google":
            handler.reply(403, b"")
            return
        with self._changed:
            if query.get("wait_for_change") == "true":
                same = query.get("last_etag") == f"{self._etag:x}e"
                until_s = time.monotonic() + float(query.get("timeout_sec", "60"))
                while same and time.monotonic() < until_s and not self._closing.is_set():
                    self._changed.wait(_POLL_S)
                    same = query.get("last_etag") == f"{self._etag:x}e"
            value, etag = self._gcp.get(key), f"{self._etag:x}e"
        if value is None:
            handler.reply(404, b"")
        else:
            handler.reply(200, value.encode(), **{"Metadata-Flavor": "Google", "ETag": etag})

    def _azure(self, handler: _Handler, path: str, body: bytes) -> None:
        if handler.headers.get("Metadata") != "true":
            handler.reply(400, b"")
        elif path == "/metadata/instance/compute":
            handler.reply(200, json.dumps({"name": self.vm}).encode())
        elif handler.command == "POST":
            self.acknowledged += [one["EventId"] for one in json.loads(body)["StartRequests"]]
            handler.reply(200, b"")
        else:
            handler.reply(200, json.dumps({"DocumentIncarnation": 1, "Events": self._events}).encode())

    def __enter__(self) -> MetadataServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


SAYS: dict[str, Callable[[MetadataServer], object]] = {
    "ec2": lambda server: server.interrupt(in_s=110),
    "gcp": lambda server: server.gcp("preempted", "TRUE"),
    "azure": lambda server: server.event("Preempt", server.vm, in_s=60),
}
"""How it says of each cloud, by the name of its source, that this machine is taken."""


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = False  # server_close waits for them
    owner: MetadataServer


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        self._serve()

    do_PUT = do_POST = do_GET

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        with contextlib.suppress(OSError):  # whoever asked may have hung up
            self.server.owner.answer(self, body)

    def reply(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def send_header(self, keyword: str, value: str) -> None:
        if keyword != "Date" or self.server.owner.shows_date:
            super().send_header(keyword, value)

    def date_time_string(self, timestamp: float | None = None) -> str:
        return formatdate((timestamp or time.time()) + self.server.owner.off_s, usegmt=True)

    def log_message(self, *_: Any) -> None:
        """Nobody reads it."""


def main() -> None:
    address, port, file = sys.argv[1:]
    with MetadataServer(address, int(port)) as server:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        for said in _documents(Path(file)):
            server.interrupt(in_s=said["interrupt"])


def _documents(file: Path) -> Iterator[dict[str, Any]]:
    """Each that the file comes to hold; without end."""
    before = ""
    while True:
        text = file.read_text() if file.exists() else ""
        if text not in ("", before):
            before = text
            yield json.loads(text)
        time.sleep(_POLL_S)


if __name__ == "__main__":
    main()
