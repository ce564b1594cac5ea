"""`--metrics-port`: figures of this node for Prometheus, and whether it is alive and trains, over HTTP.

    /metrics   what its workers have told (status/figures.py), and what its agent has seen
    /healthz   200 while the agent's loop turns
    /readyz    200 while one of its workers trains; 503 and why, else

Promises  nobody who trains waits for it: workers tell once a second at most, and a thread of the agent's answers.
          Whoever comes to the port reads, and can do nothing else; one that is slow is sent away.
          Counts are this node's own, so that those of all nodes add up to the run's. What is known of the run as a
          whole (steps, world size, recoveries) each node says that has a worker in it: there the largest counts. Of
          saves the coordinator's alone knows.
"""

from __future__ import annotations

import errno
import http.server
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from elastic.errors import ConfigError
from elastic.events.account import BADPUT, PARTS
from elastic.version import __version__
from elastic_checkpoint.net.port import listen

_RECOVERY_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_SLOW_S = 10.0  # for a request, and for reading its answer
_AT_ONCE = 32
_STILL_S = 60.0  # a loop that has not turned for so long does not
_RUN = {
    "step": ("steps_applied", "Steps of the run whose update is applied."),
    "total_steps": ("steps_planned", "Steps after which the run ends."),
    "world_size": ("world_size", "Workers in the view."),
    "generation": ("generation", "Number of the view."),
}
_SUMS = {
    "saves": ("saves", "Saves that were committed, on the coordinator's node."),
    "save_failures": ("save_failures", "Saves that failed, on the coordinator's node."),
    "save_stall_s": ("save_stall_seconds", "Time that training stood still for saves, on the coordinator's node."),
    "save_bytes": ("save_bytes", "What saves have written, on the coordinator's node."),
}


class NodeMetrics:
    """A node's figures, served from its making until `close`; the agent's thread tells them."""

    def __init__(self, port: int) -> None:
        """Begin to serve. Raises ConfigError where the port is not to be had."""
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, disable_created_metrics

        try:
            sock = listen("", range(port, port + 1))
        except OSError as refused:
            why = "something listens there already" if refused.errno == errno.EADDRINUSE else refused.strerror
            raise ConfigError(
                f"--metrics-port={port}: {why}\n"
                "  state  nothing was started\n"
                "  next   name another port, or end what listens there (ss -ltnp)"
            ) from refused
        disable_created_metrics()
        registry = CollectorRegistry()
        own: dict[str, Any] = {"namespace": "elastic", "registry": registry}
        Info("build", "Which elastic-exact this is.", **own).info({"version": __version__})
        self._run = {key: Gauge(name, help_, **own) for key, (name, help_) in _RUN.items()}
        self._sums = {key: Counter(name, help_, **own) for key, (name, help_) in _SUMS.items()}
        self._workers = Gauge("node_workers", "Workers of this node, from their start on.", **own)
        self._coordinator = Gauge("coordinator", "1 where the run's coordinator is a worker of this node.", **own)
        self._seconds = Counter("worker_seconds", "Time of this node's workers, by what it went into.", ["part"], **own)
        for part in PARTS:
            self._seconds.labels(part)
        self._badput = Counter(
            "badput_seconds", "Of it, what is lost, by ml-goodput-measurement's names.", ["type"], **own
        )
        for name in BADPUT:
            self._badput.labels(name)
        self._recovery = Histogram(
            "recovery_seconds",
            "From a fault to the next step, of the recoveries that this node's workers went through.",
            buckets=_RECOVERY_S,
            **own,
        )
        self._lost = Counter("workers_lost", "Workers of this node that ended and were not told to.", **own)
        self._notices = Counter("notices", "Signals and clouds' words to this node.", ["kind", "source"], **own)
        self._saved = Gauge(
            "save_timestamp_seconds", "When the coordinator, on this node, last heard of a commit; 0: never.", **own
        )
        self._told: defaultdict[str, dict[str, float]] = defaultdict(dict)  # by worker: its sums
        self._training: set[str] = set()
        self._coordinators: set[str] = set()
        self._recovered: set[int] = set()  # generations
        self._saved_t = 0.0
        self._leaves = False
        self._turned_s: float | None = None
        self._server = _Server(sock, self, registry)
        threading.Thread(target=self._server.serve_forever, name="elastic-metrics", daemon=True).start()

    # what the agent tells

    def heard(self, worker: str, figures: Mapping[str, Any]) -> None:
        """Take the figures that a worker has told of itself: sums of its own."""
        run = figures["run"]
        for key, gauge in self._run.items():
            if key in run:
                gauge.set(run[key])
        for key, counter in self._sums.items():
            counter.inc(self._more(worker, key, figures["sums"][key]))
        for part, seconds in figures["seconds"].items():
            self._seconds.labels(part).inc(self._more(worker, part, seconds))
        for name, seconds in figures["badput"].items():
            self._badput.labels(name).inc(self._more(worker, name, seconds))
        for generation, seconds in figures["recoveries"]:
            if generation not in self._recovered:  # another worker went through it, too
                self._recovered.add(generation)
                self._recovery.observe(seconds)
        self._saved_t = max(self._saved_t, figures["saved_t"] or 0.0)
        self._saved.set(self._saved_t)
        _put(self._training, worker, holds=figures["trains"])
        _put(self._coordinators, worker, holds=run["rank"] == 0)
        self._coordinator.set(bool(self._coordinators))

    def ended(self, worker: str, *, lost: bool) -> None:
        """Forget a worker that has ended, and count it if it was lost."""
        self._told.pop(worker, None)
        for those in (self._training, self._coordinators):
            those.discard(worker)
        self._coordinator.set(bool(self._coordinators))
        if not self._told:  # nobody here is in a view
            self._run["world_size"].set(0)
        if lost:
            self._lost.inc()

    def noticed(self, kind: str, source: str) -> None:
        self._notices.labels(kind, source).inc()

    def tick(self, now_s: float, *, workers: int, leaves: bool) -> None:
        """Take what the agent's loop knows at each of its turns; /healthz goes by when that was."""
        self._turned_s, self._leaves = now_s, leaves
        self._workers.set(workers)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    # what is asked

    @property
    def unhealthy(self) -> str | None:
        """Return why the agent is not healthy, None if it is; before it has met the others, its loop has not begun."""
        turned_s = self._turned_s
        if turned_s is None or time.monotonic() - turned_s < _STILL_S:
            return None
        return f"the agent's loop has not turned for {time.monotonic() - turned_s:.0f} s"

    @property
    def unready(self) -> str | None:
        """Return why the node is not ready, None if it is."""
        if self._leaves:
            return "this node leaves"
        return None if self._training else "no worker of this node has applied a step in its view"

    def _more(self, worker: str, what: str, total: float) -> float:
        """Return by how much a sum has grown; a worker whose script begins another run counts from 0."""
        before, self._told[worker][what] = self._told[worker].get(what, 0.0), total
        return total - before if total >= before else total


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, sock: socket.socket, metrics: NodeMetrics, registry: Any) -> None:
        super().__init__(sock.getsockname()[:2], _Request, bind_and_activate=False)
        self.socket.close()
        self.socket = sock
        self.metrics, self.registry = metrics, registry
        self._places = threading.Semaphore(_AT_ONCE)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Return whether the request is served: no more than _AT_ONCE are at a time."""
        return self._places.acquire(blocking=False)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do nothing: whoever asked has gone, which is nobody's concern."""


class _Request(http.server.BaseHTTPRequestHandler):
    server: _Server
    timeout = _SLOW_S

    def do_GET(self) -> None:
        metrics = self.server.metrics
        match self.path.partition("?")[0]:
            case "/metrics":
                from prometheus_client.exposition import choose_encoder

                encode, kind = choose_encoder(self.headers.get("Accept", ""))
                self._answer(HTTPStatus.OK, encode(self.server.registry), kind)
            case "/healthz":
                self._state(metrics.unhealthy)
            case "/readyz":
                self._state(metrics.unready)
            case _:
                self._answer(HTTPStatus.NOT_FOUND, b"/metrics, /healthz, /readyz\n")

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: standard error is the run's."""

    def _state(self, why_not: str | None) -> None:
        status = HTTPStatus.OK if why_not is None else HTTPStatus.SERVICE_UNAVAILABLE
        self._answer(status, f"{why_not or 'ok'}\n".encode())

    def _answer(self, status: HTTPStatus, body: bytes, kind: str = "text/plain; charset=utf-8") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _put(those: set[str], one: str, *, holds: bool) -> None:
    (those.add if holds else those.discard)(one)
