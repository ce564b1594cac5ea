"""Is our claim still the newest? Asked just before anything is committed or swept. Needs no torch."""

from __future__ import annotations

from checkpoint.errors import CheckpointError, CorruptCheckpoint
from checkpoint.format.envelope import unseal
from checkpoint.format.names import CLAIMS, claim_key, claim_number
from checkpoint.storage import Missing, Storage


def look_again(storage: Storage, claim: int, nonce: str) -> int | None:
    """The number of the claim that replaced this one, or None while it is the newest and still ours.

    The nonce matters where the storage cannot create exclusively: the last of two racing writers then has the claim.
    """
    newest = max(claim_numbers(storage), default=0)
    if newest > claim:
        return newest
    if _is_there(storage, claim + 1):  # numbers have no gaps, and listings of network filesystems may be stale
        return claim + 1
    try:
        return None if read_claim_body(storage, claim).get("nonce") == nonce else claim
    except CorruptCheckpoint as error:
        raise CheckpointError(
            f"our own claim {claim} cannot be read any more: {error}\n"
            "  state  nothing was committed\n  next   see who writes to or removes from this folder"
        ) from error


def _is_there(storage: Storage, claim: int) -> bool:
    try:
        storage.size(claim_key(claim))
    except Missing:
        return False
    return True


def claim_numbers(storage: Storage) -> set[int]:
    """The numbers under claims/. One listing."""
    return {number for key in storage.list(CLAIMS) if (number := claim_number(key)) is not None}


def read_claim_body(storage: Storage, claim: int) -> dict[str, object]:
    """The claim's record, its hash verified. Raises `CorruptCheckpoint`."""
    try:
        return unseal(storage.get(claim_key(claim)), f"claim {claim_key(claim)}")
    except Missing:
        raise CorruptCheckpoint(f"claim {claim_key(claim)} is absent") from None
