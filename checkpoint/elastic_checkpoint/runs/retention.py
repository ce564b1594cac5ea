"""What may go: commits beyond the newest few, and the remains of saves that were never finished.

Only the holder of the newest claim sweeps. It looks again before each batch of commits that it removes, and stops at
the first sign of a newer claim. Their manifests go first, then their data: a crash between leaves data without a
manifest, which is an orphan like any other.

Kept      the newest max(keep, 2) commits of the lineage that are whole; damaged ones among them are kept too, but do
          not count, and of those that say that they are unfit (UNFIT) as many, which do not count either: so however
          many of them a run saves, the newest fit ones stay. A run takes for whole what lies in storage at its size; a
          person who sweeps has each byte verified
          with keep_every=N, for good: of the steps 0 to N-1, N to 2N-1 and so on, each time the first commit. That is
          step N itself where it was saved, and where saves follow the clock the first one after it
          with keep_multiple=N: the newest whole commit of a step that is a multiple of N, however many follow it
Removed   others of the lineage; after a grace period, commits outside the lineage and data without a manifest

A save of our own claim that is under way looks like the remains of one that failed. It may wait for finish_s until it
is begun, take finish_s, and be finished by a writer process whose parent has died, which takes no longer than that
again: so what is of our own claim is protected for three times finish_s, however short the grace period. That time
counts from when we first saw it, on a clock that nobody sets, and so does the grace of commits outside the lineage:
what a rollback left behind stays for that long. Ages by the names of saves, which hold the time of their writer's
clock, come in only where nothing that is under way could be committed any more.

What a holder that was replaced can still do: finish the one batch that it had begun before our claim existed. It chose
those commits among the ones older than its newest two, and claims.py makes sure that our claim names its newest. So
nothing that we resume from, nor the one below it to fall back to, is removed by anybody but us. What remains: a reader
without a claim can lose a checkpoint while reading it; `read` then looks again and takes the present ones.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from elastic_checkpoint import arguments
from elastic_checkpoint.errors import CorruptCheckpoint, StorageError
from elastic_checkpoint.format.names import DATA, CommitId, data_owner
from elastic_checkpoint.runs.history import History, Log, Resumed, read_history, read_manifest
from elastic_checkpoint.runs.newer_claim import is_there, newer_claim
from elastic_checkpoint.storage import Storage, batches, delete_many, deletes_at_once

KEEP_MIN = 2
UNFIT = "unfit"  # in a commit's `meta`: why nobody would choose to go on from it, in words

Objects = dict[CommitId, dict[str, int]]
"""Of each save, key -> size in bytes."""

_AT_ONCE = 100  # commits that go between two looks at the claims, where the storage removes many in a request


@dataclass(frozen=True)
class Contents:
    """What a whole commit has in storage, key -> size in bytes, and whether it says that it is unfit."""

    sizes: Mapping[str, int]
    unfit: bool = False


def removable(
    history: History,
    *,
    whole: Callable[[CommitId], bool],
    unfit: Callable[[CommitId], bool] = lambda id: False,
    owners: Iterable[CommitId],
    keep: int,
    keep_every: int | None = None,
    keep_multiple: int | None = None,
    grace_s: float,
    now_s: float,
    protected: Callable[[CommitId], bool] = lambda id: False,
) -> list[CommitId]:
    """Return the saves to remove, in order. Pure.

    whole      whether a commit is not damaged; asked only where more are there than are kept, until enough are found
    unfit      whether a whole one says so
    owners     the saves that data in storage belongs to
    protected  whether what is outside the lineage, or was never committed, stays for now, whatever its age
    """
    enough, kept = max(keep, KEEP_MIN), {False: 0, True: 0}
    superseded: list[CommitId] = []
    for id in history.lineage if len(history.lineage) > enough else ():
        if kept[False] >= enough:
            superseded.append(id)
        elif whole(id):
            kind = unfit(id)
            if kept[kind] >= enough:
                superseded.append(id)
            kept[kind] += 1
    if keep_every is not None and superseded:
        for_good = milestones(history.lineage, keep_every, whole)
        superseded = [id for id in superseded if id not in for_good]
    if keep_multiple is not None and superseded:
        regular = (id for id in history.lineage if id.step % keep_multiple == 0)
        newest = next((id for id in regular if whole(id)), None)
        superseded = [id for id in superseded if id != newest]
    committed = {*history.lineage, *history.outside}
    orphans = [*history.outside, *sorted(set(owners) - committed)]

    waiting = {id for id in orphans if protected(id)}  # all are asked: from then on they are watched
    return superseded[::-1] + [id for id in orphans if now_s - id.born_s >= grace_s and id not in waiting]


def milestones(lineage: Sequence[CommitId], every: int, whole: Callable[[CommitId], bool]) -> set[CommitId]:
    """Return of each `every` steps, counted from step 0, the first whole commit; damaged ones before it too. Pure.

    lineage  newest first; of two commits of one step the newer one is meant, as `read(step=...)` means it
    whole    asked only where there is a choice
    """
    stretches: dict[int, dict[int, CommitId]] = {}
    for id in lineage:
        stretches.setdefault(id.step // every, {}).setdefault(id.step, id)
    found: set[CommitId] = set()
    for stretch in stretches.values():
        choices = [id for _, id in sorted(stretch.items())]
        for id in choices:
            found.add(id)
            if len(choices) > 1 and whole(id):
                break
    return found


class Sweeper:
    """Removes what `removable` says, for one claim."""

    def __init__(
        self,
        storage: Storage,
        *,
        keep: int,
        keep_every: int | None = None,
        keep_multiple: int | None = None,
        orphan_grace_s: float,
        finish_s: float = 0.0,
        once: bool = False,
        verified: Callable[[CommitId], bool] = lambda id: True,
        log: Log,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Set what is kept. Raises CheckpointError where one of keep, keep_every and keep_multiple is no count.

        finish_s  how long a save of this claim may take; 0 where it makes none
        once      this sweeps once, for a person: commits outside the lineage are as old as their names say
        verified  asked of what lies in storage at its size: whether it is as it was written
        """
        arguments.refuse(arguments.keeping(keep, keep_every, keep_multiple))
        self._storage = storage
        self._keep = keep
        self._keep_every = keep_every
        self._keep_multiple = keep_multiple
        self._orphan_grace_s = orphan_grace_s
        self._own_grace_s = max(orphan_grace_s, 3 * finish_s)
        self._log = log
        self._once = once
        self._verified = verified
        self._clock = clock
        self._warned_of_uploads = False
        self._protected: set[CommitId] = set()
        self._seen_s: dict[CommitId, float] = {}  # what is protected for now: when it was first seen
        self._contents: dict[CommitId, Contents] = {}  # what manifests say; they never change
        self._resumed: Resumed = {}  # what claims say, likewise; `newer_claim` finds out if the run is another one

    def sweep(self, *, claim: int, nonce: str, now_s: float) -> list[str]:
        """Remove and return names of commits and orphans, and keys of temporary files. Raises `StorageError`."""
        history = read_history(self._storage, self._log, under=claim, known=self._resumed)
        if history.newest_claim != claim:
            self._log(f"nothing is swept: claim {history.newest_claim} replaced ours, {claim}")
            return []
        objects = by_owner(self._storage.list(DATA))
        to_remove = self.to_remove(history, objects, claim=claim, now_s=now_s)
        removed: list[str] = []
        listed = {*history.lineage, *history.outside}
        for some in batches(to_remove, min(_AT_ONCE, deletes_at_once(self._storage))):
            if (why := self._reason_to_stop(some, listed, claim, nonce)) is not None:
                self._log(f"sweeping stopped: {why}")
                return removed
            delete_many(self._storage, [id.manifest_key for id in some])
            delete_many(self._storage, [key for id in some for key in objects.get(id, {})])
            for id in some:
                self._contents.pop(id, None)
            removed += map(str, some)
        return [*removed, *self._tidy()]

    def to_remove(self, history: History, objects: Objects, *, claim: int, now_s: float) -> list[CommitId]:
        """Return what `removable` says of these commits and data, for this claim."""
        return removable(
            history,
            whole=lambda id: self._is_whole(id, objects),
            unfit=lambda id: self._contents_of(id).unfit,
            owners=objects,
            keep=self._keep,
            keep_every=self._keep_every,
            keep_multiple=self._keep_multiple,
            grace_s=self._orphan_grace_s,
            now_s=now_s,
            protected=self._protects(claim, set(history.outside)),
        )

    @contextlib.contextmanager
    def protecting(self, id: CommitId) -> Iterator[None]:
        """Protect this save while the block lasts, however long ago it began."""
        self._protected.add(id)
        try:
            yield
        finally:
            self._protected.discard(id)

    def learn(self, id: CommitId, contents: Contents) -> None:
        """Note what a commit of our own holds, so that its manifest need not be read."""
        self._contents[id] = contents

    def _protects(self, claim: int, outside: set[CommitId]) -> Callable[[CommitId], bool]:
        """Return the `protected` of `removable` for this sweep, which notes what is new and forgets what is gone."""
        seen_s, at_s = self._seen_s, self._clock()
        self._seen_s = {}

        def protected(id: CommitId) -> bool:
            if id in self._protected:
                return True
            for_s = self._own_grace_s if id.claim == claim else self._orphan_grace_s if id in outside else 0.0
            if self._once or not for_s:
                return False
            self._seen_s[id] = seen_s.get(id, at_s)
            return at_s - self._seen_s[id] < for_s

        return protected

    def _reason_to_stop(self, some: Iterable[CommitId], listed: set[CommitId], claim: int, nonce: str) -> str | None:
        """Return why these may not be removed; asked just before it."""
        if (newer := newer_claim(self._storage, claim, nonce)) is not None:
            return f"claim {newer} replaced ours, {claim}"
        hidden = next((id for id in some if id not in listed and is_there(self._storage, id.manifest_key)), None)
        return None if hidden is None else f"the listing of commits is stale, it lacks {hidden}, which is there"

    def _tidy(self) -> Sequence[str]:
        try:
            return self._storage.tidy(self._own_grace_s)
        except StorageError as error:  # listing multipart uploads is a right of its own, which few are given
            if not self._warned_of_uploads:
                self._log(f"what cut-short uploads left cannot be removed: {error}")
            self._warned_of_uploads = True
            return ()

    def _is_whole(self, id: CommitId, objects: Objects) -> bool:
        try:
            return self._contents_of(id).sizes.items() <= objects.get(id, {}).items() and self._verified(id)
        except CorruptCheckpoint as error:
            self._log(f"{id} does not count as kept: {error}")
            return False

    def _contents_of(self, id: CommitId) -> Contents:
        if id not in self._contents:
            self._contents[id] = read_contents(self._storage, id)
        return self._contents[id]


def by_owner(sizes: Mapping[str, int]) -> Objects:
    """Return the data objects of each save; sizes: of all keys below DATA."""
    objects: Objects = {}
    for key, size in sizes.items():
        if (owner := data_owner(key)) is not None:
            objects.setdefault(owner, {})[key] = size
    return objects


def read_contents(storage: Storage, id: CommitId) -> Contents:
    """Return what the manifest says. Raises CorruptCheckpoint, StorageError."""
    manifest = read_manifest(storage, id)
    sizes = {manifest.key(index): stored.size for index, stored in enumerate(manifest.objects)}
    return Contents(sizes, UNFIT in manifest.meta)
