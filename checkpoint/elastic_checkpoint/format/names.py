"""The keys of a run's folder; a claim's number and a nonce are in every path, so no key is written twice.

Heartbeats and liveness endpoints are, which only ever keep a newcomer out.

    claims/00000007.json                                   who writes now
    claims/00000007.withdrawn                              that claim never counts: its taker gave up, or died at once
    claims/00000007.beacon                                 who answers for it, where that is not its taker any more
    leases/00000007                                        its holder's heartbeat, which changes every few seconds
    data/c00000007/s000001200-<nonce>/00003.safetensors    one shard of a save
    data/c00000007/s000001200-<nonce>/00003-2.safetensors  the same in manifests of format 3, stored by helper 2
    data/c00000007/s000001200-<nonce>/note.json            what was learnt after it, by who saved it
    commits/c00000007.s000001200-<nonce>.json              its manifest, which is the commit

Heartbeats lie under `leases/`, which they were called once: runs are in storage with that key.
A save's nonce is 12 hexadecimal digits of milliseconds, then 8 random ones. The clock decides nothing but which of two
saves of one step, by one claim and so by one process, is the later; and how old an orphan is.
"""

from __future__ import annotations

import re
import secrets
from typing import Any, NamedTuple

CLAIMS = "claims"
DATA = "data"
COMMITS = "commits"

STEP_MAX = 10**15
CLAIM_MAX = 10**12  # claims are counted from 1: what has a higher number in its name is none of ours

# ASCII: digits of other scripts are digits to Python, and name objects that are not ours.
_CLAIM = re.compile(r"claims/(\d{8,12})\.json", re.ASCII)
_WITHDRAWN = re.compile(r"claims/(\d{8,12})\.withdrawn", re.ASCII)
_SAVE = r"c(\d{8,12})%ss(\d{9,15})-([0-9a-f]{20})"
_NAME = re.compile(_SAVE % r"\.", re.ASCII)
_COMMIT = re.compile(rf"commits/{_NAME.pattern}\.json", re.ASCII)
_DATA = re.compile(rf"data/{_SAVE % '/'}/(?:\d{{5,9}}(?:-\d{{1,9}})?\.safetensors|note\.json)", re.ASCII)


class CommitId(NamedTuple):
    """Which save: ordered by claim, then step, then time. `str` gives its name, `c00000007.s000001200-<nonce>`."""

    claim: int
    step: int
    nonce: str

    def __str__(self) -> str:
        return f"c{self.claim:08d}.s{self.step:09d}-{self.nonce}"

    @property
    def manifest_key(self) -> str:
        return f"{COMMITS}/{self}.json"

    @property
    def data_folder(self) -> str:
        return f"{DATA}/c{self.claim:08d}/s{self.step:09d}-{self.nonce}"

    @property
    def note_key(self) -> str:
        return f"{self.data_folder}/note.json"

    def shard_key(self, index: int, helper: int = 0) -> str:
        """Return the key of object `index`.

        helper: who has stored it, see StoredObject
        """
        by = f"-{helper}" if helper else ""
        return f"{self.data_folder}/{index:05d}{by}.safetensors"

    @property
    def born_s(self) -> float:
        """Return when the save began, in seconds of its writer's Unix clock."""
        return int(self.nonce[:12], 16) / 1000


def new_nonce(now_s: float) -> str:
    """Return a nonce for a save that begins now, in seconds of the Unix clock."""
    return f"{int(now_s * 1000) & (2**48 - 1):012x}{secrets.token_hex(4)}"


def claim_key(number: int) -> str:
    return f"{CLAIMS}/{number:08d}.json"


def claim_number(key: str) -> int | None:
    """Return the number of the claim at this key, or None if the key is not a claim's."""
    found = _CLAIM.fullmatch(key)
    return int(found[1]) if found else None


def heartbeat_key(number: int) -> str:
    return f"leases/{number:08d}"


def liveness_key(number: int) -> str:
    return f"{CLAIMS}/{number:08d}.beacon"


def withdrawn_key(number: int) -> str:
    return f"{CLAIMS}/{number:08d}.withdrawn"


def withdrawn_number(key: str) -> int | None:
    """Return the number of the claim that this key says is withdrawn, or None."""
    found = _WITHDRAWN.fullmatch(key)
    return int(found[1]) if found else None


def commit_id(key: str) -> CommitId | None:
    """Return the save whose manifest is at this key, or None."""
    return _id(_COMMIT.fullmatch(key))


def parse_name(name: str) -> CommitId | None:
    """Return the inverse of `str(commit_id)`, or None."""
    return _id(_NAME.fullmatch(name))


def data_owner(key: str) -> CommitId | None:
    """Return the save that the shard or note at this key belongs to, or None."""
    return _id(_DATA.fullmatch(key))


def note_owner(key: str) -> CommitId | None:
    """Return the save that the note at this key belongs to, or None."""
    owner = data_owner(key)
    return owner if owner is not None and key == owner.note_key else None


def id_document(id: CommitId | None) -> dict[str, Any] | None:
    """Return how a commit is named inside JSON: {"claim", "step", "nonce"}, or null."""
    return id._asdict() if id else None


def id_from(document: object) -> CommitId | None:
    """Return the inverse of `id_document`. Raises ValueError on anything else."""
    if document is None:
        return None
    if type(document) is dict and set(document) == {"claim", "step", "nonce"}:
        claim, step, nonce = document["claim"], document["step"], document["nonce"]
        if type(claim) is type(step) is int and type(nonce) is str and parse_name(str(CommitId(claim, step, nonce))):
            return CommitId(claim, step, nonce)
    raise ValueError(f"{str(document)[:80]} names no commit")


def _id(found: re.Match[str] | None) -> CommitId | None:
    return CommitId(int(found[1]), int(found[2]), found[3]) if found else None
