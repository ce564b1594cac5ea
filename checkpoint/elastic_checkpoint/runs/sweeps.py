"""Sweeping after saves, by the holder of the claim: in a thread where neither training nor the next save may wait."""

from __future__ import annotations

import threading
import time

from elastic_checkpoint.errors import CheckpointError
from elastic_checkpoint.format.draft import Draft
from elastic_checkpoint.format.names import CommitId
from elastic_checkpoint.runs.history import Log
from elastic_checkpoint.runs.own_claim import OwnClaim
from elastic_checkpoint.runs.retention import Contents, Sweeper


class Sweeps:
    """One sweep at a time."""

    def __init__(self, sweeper: Sweeper, own_claim: OwnClaim, log: Log) -> None:
        self._sweeper, self._own_claim, self._log = sweeper, own_claim, log
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def sweep(self) -> list[str]:
        """Remove what retention.py says, and return its names. Nothing where this process holds no claim."""
        claim = self._own_claim.held
        if claim is None:
            return []
        with self._lock:
            return self._sweeper.sweep(claim=claim.number, nonce=claim.nonce, now_s=time.time())

    def saved(self, id: CommitId) -> None:
        """Sweep now: a save was committed in the foreground."""
        self._own_claim.committed(id)
        self._sweep_quietly(id.step)

    def saved_beside(self, draft: Draft, *, unfit: bool) -> None:
        """Sweep in a thread: a save was committed beside training."""
        self._own_claim.committed(draft.id)
        self._sweeper.learn(draft.id, Contents(draft.planned(), unfit))
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = threading.Thread(
            target=self._sweep_quietly, args=(draft.id.step,), name="checkpoint-sweep", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # no more threads are to be had: the next save sweeps
            return
        self._threads.append(thread)

    def join(self, within_s: float) -> None:
        """Wait until no sweep is under way; so long at most for each."""
        for thread in self._threads:
            thread.join(within_s)

    def _sweep_quietly(self, step: int) -> None:
        try:
            self.sweep()
        except CheckpointError as error:
            self._log(f"step {step} is committed, but older ones could not be swept: {error}")
