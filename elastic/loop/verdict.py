"""Workers gave different bits for one share, or hold different ones: which of them are wrong? Pure.

Promises  a worker is called wrong only against more than half of all, who agree.
          What a script keeps to itself is not taken for a machine: all pass the share twice more, and bits that change
          from pass to pass on most of them are of no machine's making.
          A machine that errs once and not again is found as well: by what it gave then, once it is known what is right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence

ENOUGH = 3  # workers, for any of them to be in the right


def wrong(first: Mapping[int, Hashable], again: Mapping[int, Sequence[Hashable]]) -> frozenset[int]:
    """Return the ranks that are wrong; none where nobody can tell.

    first  what the two gave whose bits differed, by rank
    again  what each rank gave when all passed that share, twice each
    """
    steady = {rank: passes[0] for rank, passes in again.items() if len({*passes}) == 1}
    right = _of_most(steady, len(again))
    if right is None:
        return frozenset()
    found = {rank for rank in again if steady.get(rank) != right}
    found |= {rank for rank, given in first.items() if given != right}
    return frozenset(found) if 2 * len(found) < len(again) else frozenset()


def apart(held: Sequence[Hashable]) -> frozenset[int]:
    """Return the ranks that hold something else than most; none where nobody can tell."""
    right = _of_most(dict(enumerate(held)), len(held))
    return frozenset() if right is None else frozenset(rank for rank, one in enumerate(held) if one != right)


def _of_most(given: Mapping[int, Hashable], workers: int) -> Hashable | None:
    """Return what more than half of the workers gave; None: they do not agree, or are fewer than ENOUGH."""
    if workers < ENOUGH or not given:
        return None
    most, count = Counter(given.values()).most_common(1)[0]
    return most if 2 * count > workers else None
