"""Is our claim still the newest? Asked just before anything is committed or swept, and right after a commit.

    before  a newer claim stands: stop. So a holder that was replaced commits nothing more, but for what is on its way
    after   a newer claim was taken meanwhile: does it know of this commit? If not, the commit is not reported

A newer claim does not stand where it is withdrawn: its taker gave up, and left that mark. Nor where its taker is dead
for certain and nothing was committed under it: then whoever finds that out leaves the mark, once for all, so that a
newcomer that died as it took over changes nothing. Needs no torch.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from elastic_checkpoint.errors import CheckpointError, ClaimLost, CorruptCheckpoint
from elastic_checkpoint.format.hashing import seal, unseal
from elastic_checkpoint.format.names import (
    CLAIMS,
    COMMITS,
    CommitId,
    claim_key,
    claim_number,
    commit_id,
    id_from,
    withdrawn_key,
    withdrawn_number,
)
from elastic_checkpoint.runs.liveness import both_proven_dead, read_moved
from elastic_checkpoint.storage import AlreadyThere, Missing, Storage, TooLarge, get_bounded
from elastic_checkpoint.storage.reads import read_again

_CLAIM_BYTES_MAX = 2**24  # what a holder says of its workers is in it
_DECIDES_WITHIN_S = 3.0  # who has just taken a claim lists the commits once more, and then goes on or withdraws
_POLL_S = 0.1


@dataclass(frozen=True)
class Claims:
    """One listing: the numbers of all claims, and of those that are withdrawn."""

    numbers: frozenset[int]
    withdrawn: frozenset[int]


def newer_claim(storage: Storage, claim: int, nonce: str) -> int | None:
    """Return the number of the claim that replaced this one, or None while it is the newest and still ours.

    The nonce matters where the storage cannot create exclusively: the last of two racing writers then has the claim.
    """
    if (newer := _newer(storage, claim)) is not None:
        return newer
    try:
        return None if read_claim_body(storage, claim).get("nonce") == nonce else claim
    except CorruptCheckpoint as error:
        raise CheckpointError(
            f"our own claim {claim} cannot be read any more: {error}\n"
            "  state  nothing was committed\n  next   see who writes to or removes from this folder"
        ) from error


def left_out_by(storage: Storage, id: CommitId) -> int | None:
    """Return the number of the newer claim that goes on without this commit, whose manifest is there; or None.

    A claim that was taken at this very instant may come to know of it yet, or be withdrawn: it is given a moment.
    """
    until_s = time.monotonic() + _DECIDES_WITHIN_S
    while (newer := _newer(storage, id.claim)) is not None:
        if _knows(storage, newer, id):
            return None
        if time.monotonic() > until_s or _has_commits(storage, newer):
            return newer
        time.sleep(_POLL_S)
    return None


def lost(*, ours: int, newest: int, doing: str) -> ClaimLost:
    """Return the error of a writer that was replaced."""
    how = f"claim {newest} is newer" if newest > ours else "another writer holds its number, or it was withdrawn"
    return ClaimLost(
        f"claim {ours} is no longer ours: {how}\n"
        f"  state  {doing}; what this job committed before the newer claim stays\n"
        "  next   stop this job: another one continues the run (elastic checkpoint ls shows it)",
        ours=ours,
        newest=newest,
    )


def withdraw(storage: Storage, claim: int, why: str) -> None:
    """Mark a claim as one that never counts, for good. Nothing that was reported may be committed under it."""
    try:
        storage.put_new(withdrawn_key(claim), seal({"format": 1, "claim": claim, "why": why}))
    except AlreadyThere:
        return  # somebody else did


def claims_listed(storage: Storage) -> Claims:
    """Return what lies under claims/. One listing."""
    keys = storage.list(CLAIMS)
    return Claims(
        frozenset(number for key in keys if (number := claim_number(key)) is not None),
        frozenset(number for key in keys if (number := withdrawn_number(key)) is not None),
    )


@read_again
def read_claim_body(storage: Storage, claim: int) -> dict[str, object]:
    """Return the claim's record, its hash verified. Raises `CorruptCheckpoint`."""
    try:
        return unseal(get_bounded(storage, claim_key(claim), _CLAIM_BYTES_MAX), f"claim {claim_key(claim)}")
    except Missing as missing:
        raise CorruptCheckpoint(f"claim {missing}") from None
    except TooLarge as error:
        raise CorruptCheckpoint(f"claim {claim_key(claim)}: {error}") from None


def _newer(storage: Storage, claim: int) -> int | None:
    """Return the newest claim above this one that stands; the claim itself, where it was withdrawn; or None."""
    listed = claims_listed(storage)
    if claim in listed.withdrawn:
        return claim
    newer = {number for number in listed.numbers if number > claim} - listed.withdrawn
    if not newer:  # numbers have no gaps, and listings of network filesystems may be stale
        following = claim + 1
        while following in listed.withdrawn:
            following += 1
        if is_there(storage, claim_key(following)) and not is_there(storage, withdrawn_key(following)):
            newer = {following}
    return next((number for number in sorted(newer, reverse=True) if _stands(storage, number)), None)


def _stands(storage: Storage, claim: int) -> bool:
    """Return whether its taker may live, or has committed. If not, it is withdrawn from now on."""
    try:
        body = read_claim_body(storage, claim)
    except CorruptCheckpoint:
        return True  # who took it is not known
    endpoint, nonce = body.get("endpoint"), body.get("nonce")
    if type(endpoint) is not dict or type(nonce) is not str:
        return True
    why = both_proven_dead(endpoint, nonce, read_moved(storage, claim))
    if why is None or _has_commits(storage, claim):
        return True
    withdraw(storage, claim, f"its taker had committed nothing, and is gone: {why}")
    return False


def _has_commits(storage: Storage, claim: int) -> bool:
    return any(id.claim == claim for key in storage.list(COMMITS) if (id := commit_id(key)) is not None)


def _knows(storage: Storage, newer: int, id: CommitId) -> bool:
    """Return whether the newer claim resumed from this commit, or from one that came after it under the same claim."""
    while newer > id.claim:
        try:
            named = id_from(read_claim_body(storage, newer).get("resumed_from"))
        except (CorruptCheckpoint, ValueError):
            return False
        if named is None or named.claim >= newer:
            return False
        if named.claim == id.claim:
            return named >= id
        newer = named.claim
    return False


def is_there(storage: Storage, key: str) -> bool:
    """Return whether the object is there, whatever listings show. Raises StorageError."""
    try:
        storage.size(key)
    except Missing:
        return False
    return True
