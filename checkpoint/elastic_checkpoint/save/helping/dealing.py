"""Who stores which object of a save that several processes store together. Pure: it is told the time.

    dealt in blocks  ->  each takes of its own  ->  then of what others have not begun
      ->  who commits also takes what a helper has begun, and has not stored in 1.5 times what its own took at most

Who commits is there before any helper is, and stores many at once. So until it has stored as many as were dealt to it,
it is at no more at once: what it took of others' beforehand would go by its way to the storage, and theirs stay free.
Helpers are given a second to come.

So a helper that is slow, silent or gone costs what that object takes, and where all are, the save is made alone: who
commits has stored everything then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import inf

COMMITS = 0
"""The number of who commits; helpers have others."""

_PATIENCE = 1.5
_COME_S = 1.0


class Dealing:
    """Of the objects of one save."""

    def __init__(self, objects: int, helpers: Sequence[int]) -> None:
        everybody = [COMMITS, *helpers]
        edges = [-(-objects * number // len(everybody)) for number in range(len(everybody) + 1)]
        self._not_begun = {
            one: deque(range(edges[number], edges[number + 1])) for number, one in enumerate(everybody)
        }  # of its own
        self._dealt = len(self._not_begun[COMMITS])
        self._helpers = {*helpers}  # to whom something is left: neither lost nor given up
        self._come_by_s: float | None = None  # one of them at least; infinite: one is here
        self._declined: deque[int] = deque()
        self._begun: dict[int, dict[int, float]] = {index: {} for index in range(objects)}  # by whom, and when
        self._longest_s: float | None = None
        self.stored: dict[int, int] = {}

    @property
    def done(self) -> bool:
        return len(self.stored) == len(self._begun)

    @property
    def is_alone(self) -> bool:
        """Who commits stores, or has begun to, all that is not stored: nobody else is waited for."""
        return all(COMMITS in self._begun[index] for index in self._missing())

    def is_at(self, who: int, index: int) -> bool:
        """Whether it has begun this object."""
        return who in self._begun.get(index, {})

    def take(self, who: int, now_s: float) -> int | None:
        """The next object that this one stores, which it begins now; None: there is none for it at present."""
        if who != COMMITS:
            self._come_by_s = inf
        elif self._come_by_s is None:
            self._come_by_s = now_s + _COME_S
        elif now_s >= self._come_by_s:
            self._helpers.clear()
        index = self._next(who, now_s)
        if index is not None:
            self._begun[index][who] = now_s
        return index

    def has_stored(self, who: int, index: int, now_s: float) -> None:
        self.stored.setdefault(index, who)
        if who == COMMITS:
            self._longest_s = max(self._longest_s or 0.0, now_s - self._begun[index][who])

    def decline(self, who: int, index: int) -> None:
        """It does not store it: who commits does."""
        if self._begun[index].pop(who, None) is not None and self._is_free(index):
            self._declined.append(index)

    def lose(self, who: int) -> None:
        """It is gone."""
        self._helpers.discard(who)
        for index, by in self._begun.items():
            if by.pop(who, None) is not None and self._is_free(index):
                self._not_begun[who].append(index)

    def overtakes_s(self) -> float | None:
        """When who commits may take an object that a helper has begun, or others than were dealt to it; None: nobody
        knows yet, or there is none, or not before it has stored something."""
        if self._leaves_the_rest:
            return None if self._come_by_s == inf else self._come_by_s
        if self._longest_s is None or (index := self._oldest()) is None:
            return None
        return min(self._begun[index].values()) + _PATIENCE * self._longest_s

    def _next(self, who: int, now_s: float) -> int | None:
        if own := self._not_begun[who]:
            return own.popleft()
        if who == COMMITS and self._declined:
            return self._declined.popleft()
        if who == COMMITS and self._leaves_the_rest:
            return None
        longest = max(self._not_begun.values(), key=len)
        if longest and not self._is_first_of_who_commits(who, longest):
            return longest.pop()
        at_s = self.overtakes_s() if who == COMMITS else None
        return self._oldest() if at_s is not None and now_s >= at_s else None

    @property
    def _leaves_the_rest(self) -> bool:
        """Who commits is busy enough, and others are here, or about to come."""
        begun = [index for index, by in self._begun.items() if COMMITS in by]
        stored = sum(index in self.stored for index in begun)
        return bool(self._helpers) and stored < self._dealt <= len(begun) - stored

    def _is_first_of_who_commits(self, who: int, objects: deque[int]) -> bool:
        """It stores one at least: by what that took it knows when to wait no more."""
        if who == COMMITS or objects is not self._not_begun[COMMITS] or len(objects) > 1:
            return False
        return not any(COMMITS in by for by in self._begun.values())

    def _oldest(self) -> int | None:
        """Of what others are at, and who commits is not."""
        found = [index for index in self._missing() if self._begun[index] and COMMITS not in self._begun[index]]
        return min(found, key=lambda index: min(self._begun[index].values()), default=None)

    def _missing(self) -> list[int]:
        return [index for index in self._begun if index not in self.stored]

    def _is_free(self, index: int) -> bool:
        """Nobody has stored it, or is at it."""
        return index not in self.stored and not self._begun[index]
