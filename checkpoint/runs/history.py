"""What storage says about claims and commits, read at one moment: which claim is newest, and the run's lineage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from checkpoint.errors import CorruptCheckpoint
from checkpoint.format.manifest import Manifest, parse
from checkpoint.format.names import COMMITS, DATA, CommitId, claim_key, commit_id, data_owner, id_from
from checkpoint.runs.fence import claim_numbers, read_claim_body
from checkpoint.runs.lineage import lineage
from checkpoint.storage import Missing, Storage

Log = Callable[[str], None]


@dataclass(frozen=True)
class History:
    """newest_claim  the highest number of a claim that counts, 0 where there is none
    highest       the highest number at all; the next claim takes the one above
    lineage       the run's commits, newest first
    outside       the commits that the run has moved on from
    """

    newest_claim: int
    highest: int
    lineage: tuple[CommitId, ...]
    outside: tuple[CommitId, ...]


def read_history(storage: Storage, log: Log, *, without: frozenset[int] = frozenset()) -> History:
    """Lists claims and commits, and reads the claims on the way down the lineage.

    without  claims that do not count, because nothing was committed under them nor will be
    A claim that cannot be read is passed over with a logged reason: its own commits repeat what it resumed from, and
    without any the run goes on from the claim below it.
    """
    commits = [id for key in storage.list(COMMITS) if (id := commit_id(key)) is not None]
    claims = claim_numbers(storage) | {id.claim for id in commits}
    newest = max(claims - without, default=0)

    def resumed_from(claim: int) -> CommitId | None:
        try:
            return read_resumed_from(storage, claim)
        except CorruptCheckpoint as error:
            log(f"claim {claim} cannot be read, its commits are asked instead: {error}")
        for id in sorted((id for id in commits if id.claim == claim), reverse=True):
            try:
                return read_manifest(storage, id).resumed_from
            except CorruptCheckpoint as error:
                log(f"{id} passed over: {error}")
        return max((id for id in commits if id.claim < claim), default=None)

    ordered = tuple(lineage(newest or None, commits, resumed_from))
    return History(newest, max(claims, default=0), ordered, tuple(sorted(set(commits) - set(ordered), reverse=True)))


def unlisted(storage: Storage, history: History) -> list[CommitId]:
    """Commits that are there although the listing behind `history` does not show them: then it was stale, as those of
    network filesystems may be for a minute, or they are brand new. One listing of the data, and a look for each save
    that has no commit."""
    owners = {owner for key in storage.list(DATA) if (owner := data_owner(key)) is not None}
    return [id for id in sorted(owners - {*history.lineage, *history.outside}) if is_committed(storage, id)]


def is_committed(storage: Storage, id: CommitId) -> bool:
    """Whether the manifest is there, whatever listings show."""
    try:
        storage.size(id.manifest_key)
    except Missing:
        return False
    return True


def read_resumed_from(storage: Storage, claim: int) -> CommitId | None:
    """What this claim resumed from. Raises `CorruptCheckpoint` where the record is damaged or absent."""
    body = read_claim_body(storage, claim)
    try:
        found = id_from(body["resumed_from"])
    except (KeyError, ValueError) as error:
        raise CorruptCheckpoint(f"claim {claim_key(claim)}: {type(error).__name__}: {error}") from error
    if found is not None and found.claim >= claim:
        raise CorruptCheckpoint(f"claim {claim_key(claim)} says that it resumed from {found}, which is not older")
    return found


def read_manifest(storage: Storage, id: CommitId) -> Manifest:
    """The commit's manifest, verified and checked. Raises `CorruptCheckpoint`, also where it is absent."""
    try:
        return parse(storage.get(id.manifest_key), id)
    except Missing:
        raise CorruptCheckpoint(f"manifest {id.manifest_key} is absent", commit=str(id)) from None
