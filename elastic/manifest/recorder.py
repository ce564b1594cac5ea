"""The coordinator's hand on the run's manifest: has it collected and written, in a thread, once for each launch.

Training does not wait for it, and nothing that goes wrong here ends a run: it is said once, through `logging`. A launch
that is over within the first moments waits for its manifest, half a second at most for each of git and the storage;
for a storage in which it has saved, which is slow at worst, ten seconds.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from elastic.config import Config
from elastic.manifest import files
from elastic.manifest.collect import Collecting, Launched
from elastic.membership.environment import Launch
from elastic_checkpoint.storage import open_storage

log = logging.getLogger("elastic.manifest")
_RETRY_S = 30.0
_CLOSE_S = 0.45  # twice: for a git that answers, and for the storage once git was given up
_SAVED_S = 10.0  # the latter, where the storage has taken a save: without a manifest nobody can reproduce the run


class ManifestRecorder:
    """Writes a worker's manifests, while it is the coordinator."""

    def __init__(self, config: Config, launch: Launch, worker_id: str) -> None:
        self._config = config
        self._launch = launch
        self._worker_id = worker_id
        self._claim: object = None
        self._hurry = threading.Event()
        self._thread: threading.Thread | None = None

    def record(self, claim: Mapping[str, Any], identity: Mapping[str, Any], workers: Sequence[str]) -> None:
        """Have the launch under a claim recorded, unless it is; return at once."""
        if claim["claim"] == self._claim:
            return
        self._claim = claim["claim"]
        told = dict(claim), dict(identity), list(workers)
        self._thread = threading.Thread(target=self._write, args=told, name="elastic-manifest", daemon=True)
        self._thread.start()

    def close(self, *, saved: bool, abruptly: bool = False) -> None:
        """Wait for what is being written, for less than a second; abruptly: not at all.

        saved  the storage has taken a save of this launch: wait for longer, where that is needed
        """
        for within_s in (_CLOSE_S, _SAVED_S if saved else _CLOSE_S):
            if self._thread is not None and not abruptly:
                self._thread.join(within_s)
            self._hurry.set()

    def _write(self, claim: dict[str, Any], identity: dict[str, Any], workers: list[str]) -> None:
        config = self._config
        try:
            opened = open_storage(config.url, config.storage_options or None, retry_s=_RETRY_S, answer_s=_RETRY_S)
            with contextlib.closing(opened) as storage:
                first = files.read_manifest(storage)
                launches = files.read_launches(storage, first)
                if any(one["run"]["claim"] == claim["claim"] for one in launches):
                    return  # by the coordinator before this one
                launched = Launched(
                    config=config,
                    launch=self._launch,
                    identity=identity,
                    worker_id=self._worker_id,
                    claim=claim,
                    workers=workers,
                    argv=list(sys.argv),
                    orig_argv=list(sys.orig_argv),
                )
                collecting = Collecting(launched, self._hurry)
                manifest = collecting.manifest()
                files.add(storage, config.url, manifest, collecting.files, first)
        except Exception as error:  # whatever it is, training is worth more than what is written of it
            log.warning("this launch is in no manifest: %s; training goes on", error)
