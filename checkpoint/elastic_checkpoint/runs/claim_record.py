"""A claim as it lies in storage, and the errors that name its holder."""

from __future__ import annotations

import os
import secrets
import socket
import time
from dataclasses import dataclass, replace
from typing import Any

from elastic_checkpoint.errors import ClaimHeld, CorruptCheckpoint
from elastic_checkpoint.format.names import CommitId, id_document, id_from
from elastic_checkpoint.runs.history import Log
from elastic_checkpoint.runs.newer_claim import read_claim_body
from elastic_checkpoint.storage import Storage

_TIME_MAX_S = 2**37  # the year 6325


@dataclass(frozen=True)
class Claim:
    """A claim as it lies in storage.

    Attributes:
        nonce: Chosen at random by the holder, and answered by its endpoint.
        endpoint: Where the holder can be asked (liveness.py), or None where it could not listen.
        job: The holder's name for itself; a restart of the same job carries the same one.
        world: What the holder says of its workers, as JSON. Nothing here reads it: it is for people, and for those who
            wrote it. `elastic` keeps the names of its nodes there, and decides by them who may go on.
        resumed_from: The commit that was the newest of the lineage, or None at a run's beginning.
        taken_at: Seconds of the holder's Unix clock.
        url: Where the holder writes, without credentials; a copy of the run says so, too.
    """

    number: int
    nonce: str
    endpoint: dict[str, Any] | None
    job: str | None
    world: dict[str, Any] | None
    resumed_from: CommitId | None
    taken_at: float
    url: str | None = None

    def document(self) -> dict[str, Any]:
        """Return it as JSON, for `from_document` in another process."""
        return claim_body(self)

    @classmethod
    def from_document(cls, body: dict[str, Any]) -> Claim:
        """Raise CorruptCheckpoint, KeyError, TypeError or ValueError for what is no claim."""
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
            url if type(url := body.get("url")) is str else None,
        )


@dataclass(frozen=True)
class Origin:
    """What a job's state goes on from.

    newest  the run's newest commit when that was decided; None: there was none
    source  the commit that was loaded; None: the job begins anew
    """

    newest: CommitId | None
    source: CommitId | None


def read_claim(storage: Storage, number: int, log: Log) -> Claim | None:
    """Return the claim with this number, or None, with a logged reason, where its record cannot be read."""
    try:
        claim = Claim.from_document(read_claim_body(storage, number))
        return replace(claim, number=number)
    except (CorruptCheckpoint, KeyError, TypeError, ValueError) as error:
        log(f"claim {number} cannot be read, so its holder cannot be asked: {error}")
        return None


def new_claim_nonce() -> str:
    return secrets.token_hex(16)


def held(holder: Claim, url: str, how: str) -> ClaimHeld:
    """Return the error of who was refused."""
    endpoint = holder.endpoint or {}
    ourselves = endpoint.get("pid") == os.getpid() and endpoint.get("host") == socket.gethostname()
    advice = (
        "close() the other Checkpointer of this very process first"
        if ourselves
        else "use another URL, or stop that job, or insist with take_over=True: it then can commit nothing more"
    )
    return claim_held(holder, f"{url} belongs to a live job: claim {holder.number}", how, advice)


def utc(time_s: float) -> str:
    """Return `2026-11-21 17:16:17`, or `?` for what is no time."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(time_s))
    except (OverflowError, ValueError, OSError):
        return "?"


def claim_held(holder: Claim, what: str, how: str, advice: str) -> ClaimHeld:
    """Return the error of a claim that somebody holds.

    what: was refused   how: it is known that somebody holds it
    """
    endpoint = holder.endpoint or {}
    host, pid = str(endpoint.get("host")), endpoint.get("pid")
    pid = pid if type(pid) is int else 0
    return ClaimHeld(
        f"{what}\n"
        f"  holder  process {pid} on {host}, job {holder.job!r}, since {utc(holder.taken_at)} UTC; {how}\n"
        f"  state   nothing was changed\n"
        f"  next    {advice}",
        claim=holder.number,
        host=host,
        pid=pid,
        since=holder.taken_at,
        job=holder.job,
    )


def claim_body(claim: Claim) -> dict[str, Any]:
    return {
        "format": 1,
        "claim": claim.number,
        "nonce": claim.nonce,
        "endpoint": claim.endpoint,
        "job": claim.job,
        "world": claim.world,
        "resumed_from": id_document(claim.resumed_from),
        "taken_at": claim.taken_at,
        "url": claim.url,
    }
