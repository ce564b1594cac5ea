"""The newest checkpoint that is whole: one that is damaged is passed over, with its reason logged, for the next older.

Whoever loads, alone or in a group, reads, streams, exports or only lists goes by this one search.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from elastic_checkpoint.errors import CorruptCheckpoint, NoCheckpoint
from elastic_checkpoint.format.names import CommitId
from elastic_checkpoint.runs.history import History, Log

NoneLeft = Callable[[int | None, dict[str, str]], NoCheckpoint]
T = TypeVar("T")


class Search:
    """A search for the newest whole checkpoint; what it has found damaged it does not try again.

    newest  the newest commit of the run when one was last chosen
    """

    def __init__(self, history: Callable[[], History], *, step: int | None, none: NoneLeft, log: Log) -> None:
        """
        step  of which checkpoint; None: of any
        none  the error for when none is whole; given `step`, and why those that exist are not, by their names
        """
        self.newest: CommitId | None = None
        self._history, self._step, self._none, self._log = history, step, none, log
        self._damaged: dict[CommitId, CorruptCheckpoint] = {}

    def first_whole(self, read: Callable[[CommitId], T]) -> T:
        """What `read` makes of the newest commit that it finds whole. Raises as `next`."""
        while True:
            id = self.next()
            try:
                return read(id)
            except CorruptCheckpoint as damage:
                self.reject(id, damage)

    def next(self) -> CommitId:
        """The newest that was not rejected. The list is read anew each time: a sweep may have removed what was there.

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
        """It is damaged."""
        self._log(f"{id} passed over: {damage}")
        self._damaged[id] = damage


def none_whole(url: str, step: int | None, rejected: dict[str, str]) -> NoCheckpoint:
    """The error of a search that found nothing. url  without credentials"""
    what = "no checkpoint" if step is None else f"no checkpoint of step {step}"
    if not rejected:
        return NoCheckpoint(f"{what} in {url}\n  next  check the URL, or start from the beginning")
    reasons = "\n".join(f"  {name}: {why.splitlines()[0]}" for name, why in rejected.items())
    return NoCheckpoint(f"{what} in {url} is whole\n{reasons}", rejected)
