"""Sweeping by a person, beside a run's own sweeping: says what goes and why, and never from under a live job.

A sweep needs the newest claim, so this takes the next one: meanwhile whoever held the URL before can commit nothing
more. That is right where the holder is gone, and only then: one that answers is left alone, and so is one that is
silent (a stopped process, a lost host, a firewall), unless the person insists.

Our own claim never stands in anybody's way. Its endpoint refuses connections, so a job that starts meanwhile takes the
next claim at once; the sweep looks before each removal, and stops. What that job resumes from is never among the
removed (runs/claims.py, runs/retention.py).

What counts as whole, and so lets older ones go, is verified first, to the byte: a run reads what it has just written
as seldom as it can, and a person who sweeps may be about to remove the last copy that is good.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from elastic_checkpoint.format.names import DATA, CommitId
from elastic_checkpoint.load.integrity import verify_commit
from elastic_checkpoint.runs.claim_record import Claim, claim_held, new_claim_nonce
from elastic_checkpoint.runs.claims import take
from elastic_checkpoint.runs.history import History, Log, read_history
from elastic_checkpoint.runs.liveness import Alive, Gone, LivenessServer, Refused, Unknown, ask_both, read_moved
from elastic_checkpoint.runs.orphans import ORPHANS_S, wait_for_orphans
from elastic_checkpoint.runs.retention import Sweeper, by_owner
from elastic_checkpoint.storage import Storage

JOB = "elastic checkpoint sweep"
KEEP_ALL = 10**15

_ANSWER_S = 5.0  # how long one question to the holder waits


@dataclass(frozen=True)
class Removal:
    """A save that may go. `bytes` of its data objects."""

    name: str
    step: int
    why: str
    bytes: int


def sweeper(storage: Storage, log: Log, *, keep: int, keep_every: int | None = None, orphan_grace_s: float) -> Sweeper:
    """Return a sweeper for a person, who has what counts as whole verified to the byte."""
    return Sweeper(
        storage,
        keep=keep,
        keep_every=keep_every,
        orphan_grace_s=orphan_grace_s,
        once=True,
        verified=Verification(storage, log),
        log=log,
    )


def plan(storage: Storage, log: Log, sweeper: Sweeper) -> list[Removal]:
    """Return what a sweep would remove now, in order; unfinished uploads, which no listing shows, are left out."""
    history = read_history(storage, log)
    objects = by_owner(storage.list(DATA))
    chosen = sweeper.to_remove(history, objects, claim=0, now_s=time.time())  # no claim: none of its saves is under way
    return [Removal(str(id), id.step, _why(id, history), sum(objects.get(id, {}).values())) for id in chosen]


def sweep_as_claimant(
    storage: Storage,
    log: Log,
    *,
    keep: int,
    keep_every: int | None = None,
    orphan_grace_s: float,
    insist: bool,
    deadline_s: float,
) -> tuple[list[Removal], list[str]]:
    """Take the next claim and sweep. Returns what was planned, and the names of what is gone.

    insist  claims the URL from a holder that is silent; never from one that answers
    raises  ClaimHeld, with nothing changed; StorageError
    """

    def free(holders: Sequence[Claim]) -> frozenset[int]:
        for holder in holders:
            _refuse_unless_gone(holder, storage, insist)
        wait_for_orphans(storage.url, within_s=ORPHANS_S, log=log)
        return frozenset()

    nonce = new_claim_nonce()
    claim = take(
        storage,
        endpoint=_refusing_endpoint(nonce),
        nonce=nonce,
        job=JOB,
        world=None,
        free=free,
        log=log,
        deadline_s=deadline_s,
    )
    one = sweeper(storage, log, keep=keep, keep_every=keep_every, orphan_grace_s=orphan_grace_s)
    return plan(storage, log, one), one.sweep(claim=claim.number, nonce=claim.nonce, now_s=time.time())


class Verification:
    """Whether a commit is as it was written, to the byte: each is read once, and one that is not is told of."""

    def __init__(self, storage: Storage, log: Log) -> None:
        self._storage, self._log = storage, log
        self._known: dict[CommitId, bool] = {}

    def __call__(self, id: CommitId) -> bool:
        if id not in self._known:
            found = verify_commit(self._storage, id, in_lineage=True)
            self._known[id] = found.ok
            if not found.ok:
                self._log(f"step {id.step} is damaged, and does not count as kept: {found.problems[0]}")
        return self._known[id]


def _why(id: CommitId, history: History) -> str:
    if id in history.lineage:
        return "older than those to keep"
    return "outside the lineage" if id in history.outside else "never committed"


def _refusing_endpoint(nonce: str) -> dict[str, Any] | None:
    """Return an endpoint where nobody answers, which tells whoever asks that the holder is gone."""
    try:
        server = LivenessServer(nonce=nonce, job=JOB)
    except OSError:
        return None  # then whoever asks waits for its grace
    endpoint = server.endpoint()
    server.close()
    return endpoint


def _refuse_unless_gone(holder: Claim, storage: Storage, insist: bool) -> None:
    moved = read_moved(storage, holder.number)
    match ask_both(holder.endpoint, holder.nonce, moved, timeout_s=_ANSWER_S):
        case Gone():
            return
        case Alive():
            found, advice = "it answers", "nothing: it sweeps by itself after each save. To sweep now, stop it first"
        case Refused(why) | Unknown(why):
            if insist:
                return
            found = f"it does not answer, which proves nothing: {why}"
            advice = "see whether that job still runs. If it does not: --take-over"
    raise claim_held(holder, f"{storage.url} is not swept: a job holds claim {holder.number}", found, advice)
