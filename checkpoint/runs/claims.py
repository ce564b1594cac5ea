"""The right to write a run's storage: numbered, taken rarely, one winner per number.

    read the lineage  ->  ask the present holder  ->  create claims/<n+1>.json  ->  read the lineage again

A claim is taken at a start, after a total restart, or after losing a host to silence. Losing the race for a number only
means trying the next one.

The last arrow closes a race with a holder that is slow to notice: until our claim existed it could commit and sweep. If
the newest commit is no longer the one that we named, we take one more number and name the newer one. If it is the same,
then every sweep of the old holder that may still be running was decided while our commit was its newest, or not there
yet, and a sweep never touches the newest ones: what we resume from stays.

A listing that is stale (network filesystems keep theirs for up to a minute) would make us resume from an older commit,
and the newer ones would count no more. So a listing of commits is believed once no other commit is found by the data
that lies there; one of claims, since the number that it makes us try exists, and is then not ours.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from checkpoint.errors import CorruptCheckpoint, StorageError
from checkpoint.format.envelope import seal
from checkpoint.format.names import COMMITS, CommitId, claim_key, id_document, id_from
from checkpoint.runs.fence import read_claim_body
from checkpoint.runs.history import History, Log, read_history, unlisted
from checkpoint.storage import AlreadyThere, Storage

_TIME_MAX_S = 2**37  # the year 6325
_PAUSE_MAX_S = 2.0


@dataclass(frozen=True)
class Claim:
    """A claim as it lies in storage.

    nonce         chosen at random by the holder, and answered by its endpoint
    endpoint      where the holder can be asked (beacon.py), or None where it could not listen
    job           the holder's name for itself; a restart of the same job carries the same one
    world         what the holder says of its workers; for people
    resumed_from  the commit that was the newest of the lineage, or None at a run's beginning
    taken_at      seconds of the holder's Unix clock
    """

    number: int
    nonce: str
    endpoint: dict[str, Any] | None
    job: str | None
    world: dict[str, Any] | None
    resumed_from: CommitId | None
    taken_at: float

    def document(self) -> dict[str, Any]:
        """As JSON, for `from_document` in another process."""
        return _body(self)

    @classmethod
    def from_document(cls, body: dict[str, Any]) -> Claim:
        """Raises CorruptCheckpoint, KeyError, TypeError or ValueError for what is no claim."""
        endpoint, world, job = body["endpoint"], body["world"], body["job"]
        taken_at = float(body["taken_at"])
        if not 0 <= taken_at < _TIME_MAX_S:
            raise ValueError(f"taken_at {taken_at} is no time")
        return cls(
            int(body["claim"]),
            str(body["nonce"]),
            endpoint if type(endpoint) is dict else None,
            job if type(job) is str else None,
            world if type(world) is dict else None,
            id_from(body["resumed_from"]),
            taken_at,
        )


def take(
    storage: Storage,
    *,
    endpoint: dict[str, Any] | None,
    nonce: str,
    job: str | None,
    world: dict[str, Any] | None,
    free: Callable[[Claim], None],
    log: Log,
    deadline_s: float,
) -> Claim:
    """The next claim, ours.

    free        returns when the holder of this claim is gone (or need not be asked), else raises ClaimHeld
    deadline_s  how long lost races are tried again; time spent in `free` does not count
    """
    spent_from = time.monotonic()
    tries = 0
    ours: frozenset[int] = frozenset()
    history = _fresh_history(storage, log, ours, deadline_s)
    while True:
        tries += 1
        asked_from = time.monotonic()
        holder = read_claim(storage, history.newest_claim, log) if history.newest_claim else None
        if holder is not None:
            free(holder)
        spent_from += time.monotonic() - asked_from

        resumed_from = _first(history.lineage)
        claim = Claim(history.highest + 1, nonce, endpoint, job, world, resumed_from, time.time())
        try:
            storage.put_new(claim_key(claim.number), seal(_body(claim)))
        except AlreadyThere:
            log(f"claim {claim.number} was taken by another writer first")
            created = False
        else:
            created = True
            ours |= {claim.number}
        history = _fresh_history(storage, log, ours, deadline_s)
        if created and history.highest == claim.number and _first(history.lineage) == resumed_from:
            return claim
        if time.monotonic() - spent_from > deadline_s:
            raise StorageError(
                f"no claim of {storage.url} could be won in {tries} tries over {deadline_s:g} s\n"
                f"  state  the newest claim is {history.highest}; nothing of ours was committed\n"
                "  next   see how many jobs start on this URL, and stop all but one",
                operation="claim",
                key=claim_key(claim.number),
                attempts=tries,
            )
        time.sleep(random.uniform(0, min(_PAUSE_MAX_S, 0.02 * tries)))  # so that of two racers one gets ahead


def _fresh_history(storage: Storage, log: Log, without: frozenset[int], deadline_s: float) -> History:
    """The history as of now. Raises StorageError where no listing shows what is there for as long as the deadline."""
    ends_s, wait_s = time.monotonic() + deadline_s, 0.0
    while True:
        history = read_history(storage, log, without=without)
        hidden = unlisted(storage, history)
        if not hidden:
            return history
        if time.monotonic() > ends_s:
            raise StorageError(
                f"{storage.url}: for {deadline_s:g} s its listing of commits has not shown {hidden[-1]}, "
                "which is there\n"
                "  state  nothing was claimed: resuming from what is listed would lose what is not\n"
                "  next   see how this filesystem caches folders (for NFS: mount with lookupcache=none or a small "
                "acdirmax), then start again",
                operation="list",
                key=COMMITS,
                attempts=1,
            )
        if wait_s:
            log(f"{storage.url}: the listing of commits is stale: it lacks {hidden[-1]}, which is there; looking again")
        time.sleep(wait_s)
        wait_s = min(_PAUSE_MAX_S, 2 * wait_s + 0.05)


def read_claim(storage: Storage, number: int, log: Log) -> Claim | None:
    """The claim with this number, or None, with a logged reason, where its record cannot be read."""
    try:
        claim = Claim.from_document(read_claim_body(storage, number))
        return replace(claim, number=number)
    except (CorruptCheckpoint, KeyError, TypeError, ValueError) as error:
        log(f"claim {number} cannot be read, so its holder cannot be asked: {error}")
        return None


def new_claim_nonce() -> str:
    return secrets.token_hex(16)


def _first(lineage: tuple[CommitId, ...]) -> CommitId | None:
    return lineage[0] if lineage else None


def _body(claim: Claim) -> dict[str, Any]:
    return {
        "format": 1,
        "claim": claim.number,
        "nonce": claim.nonce,
        "endpoint": claim.endpoint,
        "job": claim.job,
        "world": claim.world,
        "resumed_from": id_document(claim.resumed_from),
        "taken_at": claim.taken_at,
    }
