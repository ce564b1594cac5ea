"""Which checkpoint is the newest that is whole, and are commits as they were written, to the byte? Needs no torch.

Whoever loads, alone or in a group, reads, streams, exports or only lists goes by one search: a checkpoint that is
damaged is passed over, with its reason logged, for the next older one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from elastic_checkpoint.errors import CheckpointError, CorruptCheckpoint, NoCheckpoint, StorageError
from elastic_checkpoint.format.names import CommitId
from elastic_checkpoint.load.objects import read_object
from elastic_checkpoint.runs.history import History, Log, read_manifest
from elastic_checkpoint.storage import Storage

NoneLeft = Callable[[int | None, dict[str, str]], NoCheckpoint]
T = TypeVar("T")


class Search:
    """A search for the newest whole checkpoint; what it has found damaged it does not try again.

    newest  the newest commit of the run when one was last chosen
    """

    def __init__(self, history: Callable[[], History], *, step: int | None, none: NoneLeft, log: Log) -> None:
        """Search for a whole checkpoint.

        step  of which checkpoint; None: of any
        none  the error for when none is whole; given `step`, and why those that exist are not, by their names
        """
        self.newest: CommitId | None = None
        self._history, self._step, self._none, self._log = history, step, none, log
        self._damaged: dict[CommitId, CorruptCheckpoint] = {}

    def first_whole(self, read: Callable[[CommitId], T]) -> T:
        """Read the newest commit that `read` finds whole, and return what it makes of that. Raises as `next` does."""
        while True:
            id = self.next()
            try:
                return read(id)
            except CorruptCheckpoint as damage:
                self.reject(id, damage)

    def next(self) -> CommitId:
        """Return the newest that was not rejected, from a list that is read anew each time, as a sweep may remove some.

        Raises what `none` makes; where `step` is given, and damaged, its damage.
        """
        lineage = self._history().lineage
        self.newest = lineage[0] if lineage else None
        for id in lineage:
            if self._step in (None, id.step) and id not in self._damaged:
                return id
        if self._step is not None and self._damaged:
            raise list(self._damaged.values())[-1]
        raise self._none(self._step, {str(id): str(damage) for id, damage in self._damaged.items()})

    def reject(self, id: CommitId, damage: CorruptCheckpoint) -> None:
        """Pass over this one from now on, since it is damaged."""
        self._log(f"{id} passed over: {damage}")
        self._damaged[id] = damage


def none_whole(url: str, step: int | None, rejected: dict[str, str]) -> NoCheckpoint:
    """Return the error of a search that found nothing; url: without credentials."""
    what = "no checkpoint" if step is None else f"no checkpoint of step {step}"
    if not rejected:
        return NoCheckpoint(f"{what} in {url}\n  next  check the URL, or start from the beginning")
    reasons = "\n".join(f"  {name}: {why.splitlines()[0]}" for name, why in rejected.items())
    return NoCheckpoint(f"{what} in {url} is whole\n{reasons}", rejected)


@dataclass(frozen=True)
class Verified:
    """The result of verifying one commit. `problems` is empty where every byte is as it was written."""

    name: str
    step: int
    in_lineage: bool
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.problems


def verify(storage: Storage, history: History, *, step: int | None = None) -> list[Verified]:
    """Verify every commit (or those of `step`), newest first, those outside the lineage last."""
    return [verify_commit(storage, id, inside) for id, inside in history.commits if step is None or id.step == step]


def verify_commit(storage: Storage, id: CommitId, in_lineage: bool) -> Verified:
    """Read every byte of the commit, going on after a damaged object, so that all of them are named."""
    problems = []
    try:
        manifest = read_manifest(storage, id)
    except StorageError:
        raise
    except CheckpointError as error:
        return Verified(str(id), id.step, in_lineage, (str(error),))
    for index in range(len(manifest.objects)):
        try:
            read_object(storage, manifest, index)
        except CorruptCheckpoint as error:
            problems.append(str(error))
    return Verified(str(id), id.step, in_lineage, tuple(problems))
