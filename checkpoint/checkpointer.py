"""`Checkpointer`: saves and loads any state below one URL. The parts that it is made of are one file each.

names    which keys there are          claims    who may write           writer    data first, manifest last
tree     a state as JSON and tensors   beacon    is the holder alive?    reader    verified, or not at all
shards   tensors as files              lineage   what is newest          retention what may go
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from checkpoint.claims import Claim, new_claim_nonce, take
from checkpoint.errors import CorruptCheckpoint, NoCheckpoint
from checkpoint.history import read_history, read_manifest
from checkpoint.manifest import Commit
from checkpoint.names import CommitId
from checkpoint.reader import Checkpoint, read_commit
from checkpoint.shards import SHARD_BYTES
from checkpoint.storage import open_storage
from checkpoint.tree import Tree
from checkpoint.writer import write


class Checkpointer:
    """Durable checkpoints of any state below one URL. See `__init__` for the arguments.

    Reading needs no claim and never writes. The first save (or `claim()`) takes the run's next claim, and from then
    on this process holds it until it closes or dies, or another job takes a newer one.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        keep: int = 3,
        storage_options: dict[str, Any] | None = None,
        job: str | None = None,
        take_over: bool = False,
        grace_s: float = 15.0,
        retry_s: float = 120.0,
        log: Callable[[str], None] | None = None,
        shard_bytes: int = SHARD_BYTES,
        orphan_grace_s: float = 3600.0,
    ) -> None:
        """
        url              a folder or any fsspec URL; nothing is contacted yet
        keep             how many of the newest checkpoints stay; never fewer than two do
        storage_options  for fsspec's filesystem
        job              a name that restarts of one job share: the restart waits for its dying predecessor
        take_over        claim the URL although a live job answers for it
        grace_s          how long a silent or dying holder is waited for
        retry_s          how long a failing storage operation is tried again
        log              gets one line per remarkable thing; the default is the logger named "checkpoint"
        shard_bytes      the most tensor bytes in one object
        orphan_grace_s   how old the remains of unfinished saves become before they are swept
        """
        self._storage = open_storage(url, storage_options, retry_s=retry_s)
        self._keep = keep
        self._job = job
        self._take_over = take_over
        self._grace_s = grace_s
        self._retry_s = retry_s
        self._log = log or logging.getLogger("checkpoint").info
        self._shard_bytes = shard_bytes
        self._orphan_grace_s = orphan_grace_s
        self._claim: Claim | None = None

    def claim(self, *, world: dict[str, Any] | None = None) -> Claim:
        """The claim of this process, taken now if it has none yet. `world` is written into it, for people.

        Raises `ClaimHeld` where a live job holds the URL.
        """
        if self._claim is None:
            self._claim = take(
                self._storage,
                endpoint=None,
                nonce=new_claim_nonce(),
                job=self._job,
                world=world,
                ask=lambda holder: None,
                log=self._log,
                deadline_s=self._retry_s,
            )
        return self._claim

    def save(self, step: int, state: Tree, *, meta: dict[str, Any] | None = None, blocking: bool = True) -> Commit:
        """Commits `state` as the checkpoint of `step`, and returns when it is durable.

        state     any tree of stateful objects, tensors, arrays and plain values
        meta      plain values, readable without the tensors
        blocking  False allows the save to go on in the background; for now it is done on return in either case
        """
        claim = self.claim()
        return write(
            self._storage,
            claim=claim.number,
            claim_nonce=claim.nonce,
            resumed_from=claim.resumed_from,
            step=step,
            state=state,
            meta=meta or {},
            shard_bytes=self._shard_bytes,
            now_s=time.time(),
        )

    def read(self, *, step: int | None = None) -> Checkpoint:
        """The newest whole checkpoint of the lineage (or that of `step`), every byte verified.

        A damaged one is passed over, with its reason logged, for the next older one. Raises `NoCheckpoint`; with
        `step`, `CorruptCheckpoint` where that step's checkpoint is damaged.
        """
        rejected: dict[str, str] = {}
        error: CorruptCheckpoint | None = None
        while True:
            ids = [id for id in read_history(self._storage, self._log).lineage if step is None or id.step == step]
            new = [id for id in ids if str(id) not in rejected]
            if not new:
                break  # a sweep may have removed what we were reading, so the list is read until it brings nothing new
            for id in new:
                try:
                    return read_commit(self._storage, id)
                except CorruptCheckpoint as damage:
                    self._log(f"{id} passed over: {damage}")
                    rejected[str(id)] = str(damage)
                    error = damage
        if step is not None and error is not None:
            raise error
        raise self._none(step, rejected)

    def load(self, state: Tree, *, step: int | None = None, strict: bool = True) -> int:
        """Reads a checkpoint as `read` does and applies it to `state`; returns its step."""
        raise NotImplementedError

    def latest(self) -> Commit | None:
        """The newest commit of the lineage whose manifest is whole. Its data is not read; `read` verifies."""
        for id in read_history(self._storage, self._log).lineage:
            if (commit := self._commit(id, True)) is not None:
                return commit
        return None

    def list(self) -> list[Commit]:
        """Every commit with a whole manifest, newest first; those outside the lineage are marked and come last."""
        history = read_history(self._storage, self._log)
        found = [self._commit(id, True) for id in history.lineage] + [self._commit(id, False) for id in history.outside]
        return [commit for commit in found if commit is not None]

    def wait(self) -> None:
        """Returns when no save is under way."""

    def close(self) -> None:
        """Gives up the claim's endpoint and the storage's connections. Idempotent."""
        self._storage.close()

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _commit(self, id: CommitId, in_lineage: bool) -> Commit | None:
        try:
            return read_manifest(self._storage, id).commit(in_lineage=in_lineage)
        except CorruptCheckpoint as damage:
            self._log(f"{id} is not listed: {damage}")
            return None

    def _none(self, step: int | None, rejected: dict[str, str]) -> NoCheckpoint:
        what = "no checkpoint" if step is None else f"no checkpoint of step {step}"
        if not rejected:
            return NoCheckpoint(f"{what} in {self._storage.url}\n  next  check the URL, or start from the beginning")
        reasons = "\n".join(f"  {name}: {why.splitlines()[0]}" for name, why in rejected.items())
        return NoCheckpoint(f"{what} in {self._storage.url} is whole\n{reasons}", rejected)
