"""Runs of one script, one after the other: which is the present one, and for which one a worker is ready.

A worker says which it has been in. Where it is ready for one that others are past, it is told so; where it is past the
present one, it waits until that is over.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto


class Place(Enum):
    """Where the run stands that a worker is ready for. One that cannot be placed is PRESENT: its identity tells."""

    PRESENT, PAST, NEXT = auto(), auto(), auto()


class Runs:
    """The runs of one script, as its workers tell of them.

    present  of the last view; None: the run that comes has had none
    """

    def __init__(self) -> None:
        self.present: str | None = None
        self._farthest: Sequence[str] = ()  # those of the worker that has been in most of them

    def heard(self, runs: Sequence[str]) -> None:
        """Note which runs a worker has been in, and last the one that it is ready for."""
        if len(runs) > len(self._farthest) and (not self._farthest or self._farthest[-1] in runs):
            self._farthest = tuple(runs)

    def place(self, runs: Sequence[str]) -> Place:
        """Return where the run stands that a worker with these runs is ready for."""
        if self.present is not None and self.present in runs[:-1]:
            return Place.NEXT
        newest = newest_of(runs)
        is_past = newest != self.present and newest in self._farthest[:-1]
        return Place.PAST if is_past else Place.PRESENT


def newest_of(runs: Sequence[str]) -> str:
    """Return the run that a worker with these runs is ready for; "" where it names none."""
    return runs[-1] if runs else ""
