"""Who answers for a claim now? Its holder's beacon, or one that took that one's place, which is written beside it.

The claim of a run on several machines names the beacon of the first one's agent. When that machine leaves, the run goes
on under the same claim, and another agent answers for it: without a word of that here, whoever asks the first one finds
it gone, for certain where it is on its machine, and takes the run.

    claims/00000007.beacon   {"nonce", "endpoint"}, as in the claim; written anew each time that it moves

It only adds somebody who may say "alive": a claim is free where all who are named are gone. So nothing rests on its
being the newest word, and a claim that names its own newest beacon needs none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from elastic_checkpoint.errors import CorruptCheckpoint
from elastic_checkpoint.format.envelope import seal, unseal
from elastic_checkpoint.format.names import beacon_key
from elastic_checkpoint.runs.beacon import Alive, Answer, Gone, Refused, Unknown, ask, gone_for_certain
from elastic_checkpoint.storage import Missing, Storage, TooLarge, get_bounded

_BYTES_MAX = 1 << 16
_CERTAINTY = (Alive, Unknown, Refused, Gone)  # who may live comes first


@dataclass(frozen=True)
class NamedBeacon:
    """As Beacon's nonce and `endpoint()` say."""

    nonce: str
    endpoint: Mapping[str, Any]


def write_beacon(storage: Storage, claim: int, beacon: NamedBeacon) -> None:
    """From here on this one answers for the claim, too. Raises StorageError."""
    storage.put(beacon_key(claim), seal({"format": 1, "nonce": beacon.nonce, "endpoint": dict(beacon.endpoint)}))


def read_beacon(storage: Storage, claim: int) -> NamedBeacon | None:
    """None: it has not moved, or what lies there is no such word. Raises StorageError."""
    key = beacon_key(claim)
    try:
        body = unseal(get_bounded(storage, key, _BYTES_MAX), f"beacon {key}")
    except (Missing, TooLarge, CorruptCheckpoint):
        return None
    nonce, endpoint = body.get("nonce"), body.get("endpoint")
    return NamedBeacon(nonce, endpoint) if type(nonce) is str and type(endpoint) is dict else None


def ask_both(endpoint: Mapping[str, Any] | None, nonce: str, moved: NamedBeacon | None, *, timeout_s: float) -> Answer:
    """What the claim's own beacon answers, or the one that took its place: of the two, who may live.

    endpoint, nonce  as they lie in the claim
    """
    own: Answer = Unknown("it could not listen")
    if endpoint is not None:
        own = ask(dict(endpoint), nonce, timeout_s=timeout_s)
    if isinstance(own, Alive) or moved is None:
        return own
    return min(own, ask(dict(moved.endpoint), moved.nonce, timeout_s=timeout_s), key=_certainty)


def both_gone_for_certain(endpoint: Mapping[str, Any], nonce: str, moved: NamedBeacon | None) -> str | None:
    """See beacon.gone_for_certain."""
    why = gone_for_certain(dict(endpoint), nonce)
    if why is None or moved is None:
        return why
    return gone_for_certain(dict(moved.endpoint), moved.nonce)


def _certainty(answer: Answer) -> int:
    return _CERTAINTY.index(type(answer))
