"""Who has connected to a port that anybody may connect to, and has not said yet who it is: for a while, and not too
many. Of too many, the host with the most of them loses its oldest: one that opens connections without end shuts out
itself, and nobody else."""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

LEAST = 64  # as many may come at any time; beyond them, twice as many as are expected


class Strangers(Generic[K]):
    """patience_s  how long each of them has, on the clock of whoever asks
    most        at one time
    """

    def __init__(self, patience_s: float, most: int) -> None:
        self._patience_s = patience_s
        self._most = most
        self._waiting: dict[K, tuple[str, float]] = {}  # host, and until when; in the order in which they came

    def came(self, one: K, host: str, now_s: float) -> K | None:
        """Who is to be sent away for it, if anybody is."""
        self._waiting[one] = host, now_s + self._patience_s
        if len(self._waiting) <= self._most:
            return None
        ((crowd, _),) = Counter(host for host, _ in self._waiting.values()).most_common(1)
        oldest = next(one for one, (host, _) in self._waiting.items() if host == crowd)
        del self._waiting[oldest]
        return oldest

    def known(self, one: K) -> None:
        """It is no stranger any more, or it has gone."""
        self._waiting.pop(one, None)

    def overdue(self, now_s: float) -> list[K]:
        """Who is to be sent away."""
        late = []
        for one, (_, until_s) in self._waiting.items():
            if until_s > now_s:
                break
            late.append(one)
        for one in late:
            del self._waiting[one]
        return late

    def next_s(self) -> float | None:
        """When somebody's time is over."""
        return next((until_s for _, until_s in self._waiting.values()), None)

    def __iter__(self) -> Iterator[K]:
        return iter([*self._waiting])

    def __len__(self) -> int:
        return len(self._waiting)


def most_strangers(expected: int) -> int:
    """How many may wait where so many are expected: all of them at once and once again, but no more than half of the
    descriptors that this process may have."""
    return min(LEAST + 2 * expected, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
