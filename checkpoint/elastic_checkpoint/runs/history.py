"""What storage says about claims and commits, read at one moment: which claim is newest, and the run's lineage.

A note lies beside a commit, with the save's data (note.json): what its saver came to know only later. A commit is whole
without it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from elastic_checkpoint.errors import CheckpointError, CorruptCheckpoint
from elastic_checkpoint.format.draft import MANIFEST_BYTES_MAX
from elastic_checkpoint.format.hashing import seal, unseal
from elastic_checkpoint.format.manifest import Commit, Manifest, corrupt_manifest, parse
from elastic_checkpoint.format.names import (
    COMMITS,
    DATA,
    CommitId,
    claim_key,
    commit_id,
    data_owner,
    id_from,
    note_owner,
)
from elastic_checkpoint.runs.lineage import lineage
from elastic_checkpoint.runs.newer_claim import claims_listed, is_there, read_claim_body
from elastic_checkpoint.storage import Missing, Storage, TooLarge, get_bounded
from elastic_checkpoint.storage.reads import read_again

Log = Callable[[str], None]
Resumed = dict[int, CommitId | None]  # claim -> the commit that it resumed from

_AHEAD_MIN = 16  # claims that are still read one after another, and only if they are on the way down
_AT_ONCE = 16


@dataclass(frozen=True)
class History:
    """What claims and commits there are.

    newest_claim  the highest number of a claim that is not withdrawn, 0 where there is none
    highest       the highest number at all; the next claim takes the one above
    lineage       the run's commits, newest first
    outside       the commits that the run has moved on from
    contending    whose holders may go on with the run, newest first: the claim that the newest of the lineage was made
                  under, and those above it, which have committed nothing yet
    """

    newest_claim: int
    highest: int
    lineage: tuple[CommitId, ...]
    outside: tuple[CommitId, ...]
    contending: tuple[int, ...] = ()

    @property
    def commits(self) -> list[tuple[CommitId, bool]]:
        """Return all, each with whether it is of the lineage; those outside come last."""
        return [(id, True) for id in self.lineage] + [(id, False) for id in self.outside]


class CommitsGone(CorruptCheckpoint):
    """No commit that counts is listed of a run that has had some.

    listed  all that are, of withdrawn claims
    """

    listed: tuple[CommitId, ...] = ()


def read_history(
    storage: Storage,
    log: Log,
    *,
    without: frozenset[int] = frozenset(),
    under: int | None = None,
    known: Resumed | None = None,
) -> History:
    """List claims and commits, and reads the claims on the way down the lineage.

    without  claims that do not count, because nothing was committed under them nor will be
    under    the claim of who asks: as long as no other replaced it, the lineage is what this claim goes on from, even
             if nothing is committed under it yet
    known    what was read of claims before, which grows here: for a holder of a claim, who knows that the run is still
             the same. A claim's record never changes, but a run that is removed and made anew has the same numbers
    raises   CommitsGone where a claim names a commit, or a note lies with a save's data, and no commit is there
    A claim that cannot be read is passed over with a logged reason: its own commits repeat what it resumed from, and
    without any the run goes on from the claim below it. So is what looks like a commit, and has no commit's name.
    """
    everything = []
    for key in storage.list(COMMITS):
        if (id := commit_id(key)) is not None:
            everything.append(id)
        elif key.startswith(f"{COMMITS}/c"):
            log(f"{key} is passed over: no commit has such a name")
    listed = claims_listed(storage)
    void = without | listed.withdrawn
    commits = [id for id in everything if id.claim not in void]
    claims = (listed.numbers - void) | {id.claim for id in commits}
    newest = max(claims, default=0)
    counts = max((id.claim for id in commits), default=0)
    top = newest if newest == under else counts

    read = {} if known is None else known
    oldest = min((id.claim for id in commits), default=0)
    _read_ahead(storage, sorted(number for number in claims - read.keys() if oldest <= number <= top), read)

    def resumed_from(claim: int) -> CommitId | None:
        try:
            if claim not in read:
                read[claim] = read_resumed_from(storage, claim)
            return read[claim]
        except CorruptCheckpoint as error:
            log(f"claim {claim} cannot be read, its commits are asked instead: {error}")
        for id in sorted((id for id in commits if id.claim == claim), reverse=True):
            try:
                return read_manifest(storage, id).resumed_from
            except CorruptCheckpoint as error:
                log(f"{id} passed over: {error}")
        return max((id for id in commits if id.claim < claim), default=None)

    ordered = tuple(lineage(top or None, commits, resumed_from))
    above = {claim for claim in listed.numbers if claim > counts} if ordered else listed.numbers
    try:
        _look_for_lost(storage, log, above, ordered[0] if ordered else None, read)
        if not ordered and listed.numbers - void - {under}:
            _look_for_noted(storage)
    except CommitsGone as gone:
        gone.listed = tuple(everything)
        raise
    outside = tuple(sorted(set(everything) - set(ordered), reverse=True))
    highest = max(listed.numbers | listed.withdrawn | {id.claim for id in everything}, default=0)
    return History(newest, highest, ordered, outside, tuple(sorted((c for c in claims if c >= counts), reverse=True)))


def _look_for_lost(storage: Storage, log: Log, claims: Set[int], newest: CommitId | None, read: Resumed) -> None:
    """Say what these claims went on from that is newer than all that is there.

    Where nothing is, the run must not begin anew: raises CommitsGone. A commit that is there, and not listed, is not
    lost. newest: commit of the lineage
    """
    _read_ahead(storage, sorted(claims - read.keys()), read)
    for claim in sorted(claims, reverse=True):
        with contextlib.suppress(CorruptCheckpoint):
            if claim not in read:
                read[claim] = read_resumed_from(storage, claim)
        named = read.get(claim)
        if named is None or (newest is not None and named <= newest) or is_there(storage, named.manifest_key):
            continue
        if newest is None:
            raise _commits_gone(storage, named, f"claim {claim} went on from {named}")
        log(f"{storage.url}: {named} is gone, from which claim {claim} went on; the newest that is there is {newest}")
        return


def _look_for_noted(storage: Storage) -> None:
    """Raise CommitsGone where a note lies with a save's data, and no commit is there."""
    # A run of one claim names no commit that it went on from. Notes are written after their commits, so a run that died
    # before its first commit has none.
    noted = max((id for key in storage.list(DATA) if (id := note_owner(key)) is not None), default=None)
    if noted is not None and not is_there(storage, noted.manifest_key):
        raise _commits_gone(storage, noted, f"{noted.note_key} was written after its commit")


def _commits_gone(storage: Storage, newest: CommitId, known_by: str) -> CommitsGone:
    return CommitsGone(
        f"{storage.url}: its commits are gone\n"
        f"  found     none that it goes on from, though {known_by}\n"
        f"  expected  {newest.manifest_key}, or a newer one\n"
        "  state     nothing was changed; data of saves that lies there is as it was\n"
        f"  next      bring {COMMITS}/ back, from a copy or as older versions of its objects; to begin anew, use "
        "another URL, or remove claims/, too",
        commit=str(newest),
        key=newest.manifest_key,
    )


def _read_ahead(storage: Storage, numbers: list[int], read: Resumed) -> None:
    """Read these claims at the same time, where they are many; what fails here, the lineage asks for again."""

    def one(number: int) -> None:
        with contextlib.suppress(CheckpointError):
            read[number] = read_resumed_from(storage, number)

    # One after the other, those of a run that was restarted 500 times take 15 s of a storage that answers in 30 ms.
    if len(numbers) > _AHEAD_MIN:
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="checkpoint-claims") as pool:
            list(pool.map(one, numbers))


def uncommitted(storage: Storage, listed: Iterable[CommitId]) -> list[CommitId]:
    """Return the saves of which there is data, and whose commit is not among these. One listing."""
    owners = {owner for key in storage.list(DATA) if (owner := data_owner(key)) is not None}
    return sorted(owners.difference(listed))


def list_commits(storage: Storage, history: History, log: Log) -> list[Commit]:
    """Return every commit with a whole manifest, newest first; those outside the lineage are marked and come last."""
    found = []
    for id, in_lineage in history.commits:
        try:
            found.append(read_manifest(storage, id).as_commit(in_lineage=in_lineage))
        except CorruptCheckpoint as damage:
            log(f"{id} is not listed: {damage}")
    return found


def read_resumed_from(storage: Storage, claim: int) -> CommitId | None:
    """Return what this claim resumed from. Raises `CorruptCheckpoint` where the record is damaged or absent."""
    body = read_claim_body(storage, claim)
    try:
        found = id_from(body["resumed_from"])
    except (KeyError, ValueError) as error:
        raise CorruptCheckpoint(f"claim {claim_key(claim)}: {type(error).__name__}: {error}") from error
    if found is not None and found.claim >= claim:
        raise CorruptCheckpoint(f"claim {claim_key(claim)} says that it resumed from {found}, which is not older")
    return found


@read_again
def read_manifest(storage: Storage, id: CommitId) -> Manifest:
    """Return the commit's manifest, verified and checked. Raises `CorruptCheckpoint`, also where it is absent."""
    try:
        return parse(get_bounded(storage, id.manifest_key, MANIFEST_BYTES_MAX), id)
    except Missing as missing:
        raise CorruptCheckpoint(f"manifest {missing}", commit=str(id)) from None
    except TooLarge as error:
        raise corrupt_manifest(id, error) from None


_BYTES_MAX = 1 << 16


def write_note(storage: Storage, id: CommitId, note: dict[str, Any]) -> None:
    """Write the note of a commit. Raise StorageError."""
    storage.put(id.note_key, seal(note))


def read_note(storage: Storage, id: CommitId) -> dict[str, Any] | None:
    """Return the note; None: there is none, or what lies there is no such word. Raises StorageError."""
    try:
        return unseal(get_bounded(storage, id.note_key, _BYTES_MAX), f"note {id.note_key}")
    except (Missing, TooLarge, CorruptCheckpoint):
        return None
