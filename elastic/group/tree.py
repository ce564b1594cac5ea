"""In which order are the shares' contributions added? One fixed binary tree, whatever the view. Pure.

The tree stands over the shares 0..V-1 and splits every node (lo, hi) at (lo + hi) // 2. Floating-point
addition is commutative but not associative, so the bits of a sum depend on the tree and on nothing
else: a rank adds the complete subtrees that lie in its block of shares, and whoever holds the sums of
subtrees adds them as the tree says.

In a short batch only the shares 0..m-1 hold examples. The others take no part: a node with one empty
child is its other child. Sharing out the work (which rank holds which block) is loop/assignment.py's.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class Schedule:
    """The sums that every rank adds, and how the subtree sums of all ranks become one.

    parts   per rank, the subtrees that it sums alone, as ranges of shares, left to right
    merges  per rank and share, how many times the two topmost partial sums on the rank's stack are
            added after that share's contribution was pushed; what is left on it are its `parts`
    joins   over the parts of all ranks in share order: "row i takes row j in", ends with row 0
    """

    parts: tuple[tuple[range, ...], ...]
    merges: tuple[tuple[int, ...], ...]
    joins: tuple[tuple[int, int], ...]

    @property
    def rows(self) -> tuple[int, ...]:
        """Return how many subtree sums each rank holds."""
        return tuple(len(parts) for parts in self.parts)


@lru_cache(maxsize=256)
def schedule(virtual_workers: int, shares: int, blocks: tuple[range, ...]) -> Schedule:
    """Return the sums of a step of `shares` non-empty shares (of V) that ranks hold in contiguous `blocks`.

    The blocks cover 0..shares-1 in order; a rank's block may be empty. Cost: O(V) once, then cached.
    """
    assert 0 < shares <= virtual_workers
    assert [share for block in blocks for share in block] == list(range(shares))
    parts = tuple(tuple(_parts(0, virtual_workers, shares, block)) for block in blocks)
    merges = tuple(tuple(count for part in own for count in _merges(0, virtual_workers, shares, part)) for own in parts)
    joins = _joins(virtual_workers, shares, [part for own in parts for part in own])
    return Schedule(parts=parts, merges=merges, joins=joins)


@lru_cache(maxsize=256)
def schedule_of_dealt(virtual_workers: int, shares: int, owned: tuple[range, ...]) -> Schedule:
    """Return the sums of a step whose shares are dealt out: those of a rank are no neighbours, and it adds none alone.

    owned  per rank its shares, in rising order; together 0..shares-1 once, and share 0 is the first rank's
    """
    assert 0 < shares <= virtual_workers
    assert sorted(share for own in owned for share in own) == list(range(shares))
    parts = tuple(tuple(range(share, share + 1) for share in own) for own in owned)
    joins = _joins(virtual_workers, shares, [part for own in parts for part in own])
    return Schedule(parts=parts, merges=tuple((0,) * len(own) for own in owned), joins=joins)


def _parts(lo: int, hi: int, shares: int, block: range) -> list[range]:
    """Return the maximal nodes under (lo, hi) whose non-empty shares all lie in `block`."""
    end = min(hi, shares)
    if lo >= end or end <= block.start or lo >= block.stop:
        return []
    if block.start <= lo and end <= block.stop:
        return [range(lo, end)]
    middle = (lo + hi) // 2
    return _parts(lo, middle, shares, block) + _parts(middle, hi, shares, block)


def _merges(lo: int, hi: int, shares: int, part: range) -> list[int]:
    """Return, for each share of `part` in order, the merges that follow it; `part` is a node below (lo, hi)."""
    end = min(hi, shares)
    if lo >= end or end <= part.start or lo >= part.stop:
        return []
    if hi - lo == 1:
        return [0]
    middle = (lo + hi) // 2
    left, right = _merges(lo, middle, shares, part), _merges(middle, hi, shares, part)
    if left and right:
        right[-1] += 1
    return left + right


def _joins(virtual_workers: int, shares: int, parts: list[range]) -> tuple[tuple[int, int], ...]:
    """Return how the rows of all parts become one: pairs of rows, of which the first takes the second in."""
    row = {part: index for index, part in enumerate(parts)}
    joins: list[tuple[int, int]] = []

    def join(lo: int, hi: int) -> int | None:
        """Join what is below (lo, hi), and return the row that holds it then; None: it has no share."""
        end = min(hi, shares)
        if lo >= end:
            return None
        if range(lo, end) in row:
            return row[range(lo, end)]
        middle = (lo + hi) // 2
        left, right = join(lo, middle), join(middle, hi)
        assert left is not None
        if right is not None:
            joins.append((left, right))
        return left

    top = join(0, virtual_workers)
    assert top == 0
    return tuple(joins)
