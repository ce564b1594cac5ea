"""A run's progress as `kubectl get trainjob` shows it: told to the operator of a Kubeflow TrainJob, by HTTPS.

    the coordinator's status, twice a second at most  ->  its agent keeps the newest  ->  a thread tells it every 5 s,
    and the last one at the end

Promises  nobody waits for it but this thread, and the node's end, for 3 s. What fails is said once; the next status is
          told all the same. No proxy is used and no redirect followed, for a token goes with it.
Leaves    who tells it: of all agents, the one whose worker coordinates, since no other is given a status.

The form is UpdateTrainJobStatusRequest of kubeflow-trainer-api 2.3; the operator sets the variables, and renews the
token's file.
"""

from __future__ import annotations

import http.client
import json
import ssl
import threading
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

EVERY_S = 5.0
_WITHIN_S = 5.0
_CLOSE_S = 3.0


class TrainJobStatus:
    """Tells an operator of the run's progress; operator: its URL, and the files of its certificate and of a token."""

    def __init__(self, operator: tuple[str, str, str], *, say: Callable[[str], None], every_s: float = EVERY_S) -> None:
        self._url, self._certificate, self._token = operator
        self._say = say
        self._every_s = every_s
        self._newest: dict[str, Any] | None = None
        self._has_failed = False
        self._came = threading.Event()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="elastic-kubeflow", daemon=True)
        self._thread.start()

    def show(self, status: dict[str, Any]) -> None:
        self._newest = status
        self._came.set()

    def close(self) -> None:
        """Tell what came last, and end."""
        self._ends.set()
        self._came.set()
        self._thread.join(timeout=_CLOSE_S)

    def _run(self) -> None:
        told = None
        while True:
            self._came.wait()
            self._came.clear()
            is_last = self._ends.is_set()
            if (status := self._newest) is not told and status is not None:
                self._tell(status)
                told = status
            if is_last:
                return
            self._ends.wait(self._every_s)

    def _tell(self, status: dict[str, Any]) -> None:
        try:
            _post(self._url, self._certificate, self._token, update_request(status))
        except (OSError, ValueError, http.client.HTTPException) as failure:
            if not self._has_failed:
                self._has_failed = True
                self._say(
                    f"Kubeflow is not told of the run's progress: {self._url}: {type(failure).__name__}: {failure}\n"
                    "  state  training goes on, and each later status is tried; this is said once\n"
                    "  next   look at the operator (its feature TrainJobStatus), or at a network policy between"
                )


def update_request(status: dict[str, Any]) -> dict[str, Any]:
    """Return the request's body for a StatusTracker's status; a percentage of 100 is of a run that has finished."""
    step, total, metrics = status["step"], status["total_steps"], {"step": status["step"]}
    if (value := status.get("value")) is not None and value[1] is not None:
        metrics[value[0]] = value[1]
    metrics |= {name: status[name] for name in ("world_size", "lost", "goodput") if name in status}
    told: dict[str, Any] = {
        "lastUpdatedTime": datetime.fromtimestamp(status["t"], timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "progressPercentage": 100 * step // total if total else 100,
        "metrics": [{"name": name, "value": str(value)} for name, value in metrics.items()],
    }
    if "step_s" in status:
        told["estimatedRemainingSeconds"] = round((total - step) * status["step_s"])
    return {"trainerStatus": told}


def _post(url: str, certificate: str, token: str, body: dict[str, Any]) -> None:
    """Post the request. Raises OSError, ValueError, HTTPException."""
    parts = urlsplit(url)
    if parts.scheme != "https" or parts.hostname is None:
        raise ValueError("expected https://HOST…")
    context = ssl.create_default_context(cafile=certificate or None)
    headers = {"Content-Type": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {Path(token).read_text().strip()}"
    connection = http.client.HTTPSConnection(parts.hostname, parts.port, timeout=_WITHIN_S, context=context)
    try:
        path = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
        connection.request("POST", path, json.dumps(body), headers)
        answer = connection.getresponse()
        if not 200 <= answer.status < 300:
            raise http.client.HTTPException(f"it answers {answer.status}: {answer.read(200).decode(errors='replace')}")
    finally:
        connection.close()
