"""How does a sum travel where ranks share hosts? It is added inside each host before it crosses the network. Pure.

    together  inside a host, each rank gets its part of the host's rows, and adds what the tree joins there
    across    each element has a home, one rank: the other hosts send it what is left of their rows, and it adds them
    back      the sums return to the ranks that sent those rows
    around    and go from each of these to the others of its host

Each stage is one all-to-all. The joins are the tree's, in its order, each where both of its rows are: the bits are
those of any other way. Where each of H hosts has one row left, of N bytes, it sends 2N(H-1)/H, the least there is,
whatever number of ranks it has, which may differ from host to host; in a ring of W ranks it sends 2N(W-1)/W.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from elastic.group.tree import Schedule

RESULT = -1
ALIGNED = 16  # elements; what travels starts on cache lines

Joins = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Piece:
    """Some elements of a row, rows being numbered over all ranks, or of the RESULT."""

    row: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


Pieces = tuple[Piece, ...]


@dataclass(frozen=True)
class Stage:
    """One all-to-all of a rank, and what it does when all has arrived.

    send, receive  per rank, in the order in which they travel
    joins          the first piece takes the second one in, one after the other
    sums           pieces of row 0 that are the RESULT's from then on
    """

    send: tuple[Pieces, ...]
    receive: tuple[Pieces, ...]
    joins: tuple[tuple[Piece, Piece], ...] = ()
    sums: Pieces = ()


def hosts_of(addresses: Sequence[str]) -> tuple[range, ...]:
    """Return the ranks of each host: neighbours of one address. addresses: of the host of each rank."""
    starts = [rank for rank, address in enumerate(addresses) if rank == 0 or address != addresses[rank - 1]]
    return tuple(range(start, stop) for start, stop in pairwise([*starts, len(addresses)]))


@lru_cache(maxsize=256)
def in_any_order(hosts: tuple[range, ...]) -> Schedule:
    """Return the schedule of one row for each rank, added in an order that leaves one for each host."""
    ranks = range(hosts[-1].stop)
    inside = [(host.start, rank) for host in hosts for rank in host[1:]]
    return Schedule(
        parts=tuple((range(rank, rank + 1),) for rank in ranks),
        merges=tuple((0,) for _ in ranks),
        joins=(*inside, *((0, host.start) for host in hosts[1:])),
    )


@lru_cache(maxsize=1024)
def stages(schedule: Schedule, hosts: tuple[range, ...], numel: int, rank: int) -> tuple[Stage, ...]:
    """Return what `rank` sends, receives and adds. numel: of a row, a multiple of ALIGNED. Hosts cover the ranks."""
    way = _way(schedule, hosts, numel)
    mine, own, home = way.host[rank], way.part[rank], way.home[rank]
    return (
        _stage(rank, hosts, way.together, near=True, joins=_joins(way.inside[mine], [own])),
        _stage(rank, hosts, way.across, near=False, joins=_joins(way.joined_across, home), sums=_pieces([0], home)),
        _stage(rank, hosts, way.back, near=False),
        _stage(rank, hosts, way.around, near=True),
    )


def _stage(
    rank: int,
    hosts: tuple[range, ...],
    pieces: Callable[[int, int], Pieces],
    *,
    near: bool,
    joins: tuple[tuple[Piece, Piece], ...] = (),
    sums: Pieces = (),
) -> Stage:
    """Return one stage of a rank, inside its host (near) or between hosts. pieces: from one rank to another."""
    ranks = range(hosts[-1].stop)
    own_host = next(host for host in hosts if rank in host)
    partners = [other != rank and (other in own_host) == near for other in ranks]
    send = tuple(pieces(rank, other) if partner else () for other, partner in zip(ranks, partners, strict=True))
    receive = tuple(pieces(other, rank) if partner else () for other, partner in zip(ranks, partners, strict=True))
    return Stage(send, receive, joins, sums)


@dataclass(frozen=True)
class _Way:
    """The way of a sum: which rows and elements each rank adds.

    host           of each rank, its number
    rows           of each rank
    part           of each rank: the elements that it adds for its host
    home           of each rank: the elements that it adds for all; each lies in one part of each host
    inside         of each host: the joins inside it
    remaining      of each host: the rows that are left then
    joined_across  the other joins
    """

    host: tuple[int, ...]
    rows: tuple[range, ...]
    part: tuple[range, ...]
    home: tuple[tuple[range, ...], ...]
    inside: tuple[Joins, ...]
    remaining: tuple[tuple[int, ...], ...]
    joined_across: Joins

    def together(self, source: int, to: int) -> Pieces:
        return _pieces(self.rows[source], [self.part[to]])

    def across(self, source: int, to: int) -> Pieces:
        return _pieces(self.remaining[self.host[source]], _inside(self.part[source], self.home[to]))

    def back(self, source: int, to: int) -> Pieces:
        return _pieces([RESULT], _inside(self.part[to], self.home[source]))

    def around(self, source: int, to: int) -> Pieces:
        return _pieces([RESULT], [self.part[source]])


@lru_cache(maxsize=256)
def _way(schedule: Schedule, hosts: tuple[range, ...], numel: int) -> _Way:
    """Return which rank adds which of a row's `numel` elements, and where."""
    assert numel % ALIGNED == 0
    host = tuple(number for number, ranks in enumerate(hosts) for _ in ranks)
    firsts = [sum(schedule.rows[:rank]) for rank in range(len(host) + 1)]
    inside, remaining, across = _levels(schedule, host)
    part = tuple(one for ranks in hosts for one in _cut(range(numel), len(ranks)))
    bounds = sorted({bound for one in part for bound in (one.start, one.stop)})
    # between two bounds each host has one rank that adds for it: these share the elements
    shared = [_cut(range(*bound), len(hosts)) for bound in pairwise(bounds)]
    home = tuple(
        tuple(cell[host[rank]] for cell in shared if len(cell[host[rank]]) and cell[host[rank]].start in part[rank])
        for rank in range(len(host))
    )
    return _Way(host, tuple(range(*rows) for rows in pairwise(firsts)), part, home, inside, remaining, across)


def _levels(schedule: Schedule, host: Sequence[int]) -> tuple[tuple[Joins, ...], tuple[tuple[int, ...], ...], Joins]:
    """Return the joins inside each host, the rows that are left to it then, and the joins across."""
    hosts = max(host) + 1
    at: list[int | None] = [host[rank] for rank, count in enumerate(schedule.rows) for _ in range(count)]
    remaining = [[row for row, host_number in enumerate(at) if host_number == number] for number in range(hosts)]
    inside: list[list[tuple[int, int]]] = [[] for _ in range(hosts)]
    across: list[tuple[int, int]] = []
    for into, out_of in schedule.joins:
        number = at[into]
        if number is not None and number == at[out_of]:
            inside[number].append((into, out_of))
            remaining[number].remove(out_of)
        else:
            across.append((into, out_of))
            at[into] = None  # spread over hosts: so is every later join of it
    return tuple(map(tuple, inside)), tuple(map(tuple, remaining)), tuple(across)


def _cut(elements: range, count: int) -> list[range]:
    """Cut elements into so many near-equal ranges; some may be empty."""
    units = len(elements) // ALIGNED
    bounds = [elements.start + ALIGNED * (units * number // count) for number in range(count + 1)]
    return [range(*bound) for bound in pairwise(bounds)]


def _inside(part: range, ranges: Iterable[range]) -> list[range]:
    return [one for one in ranges if one.start in part]


def _pieces(rows: Iterable[int], ranges: Iterable[range]) -> Pieces:
    """Return these ranges of each of the rows, without empty ones."""
    rows = tuple(rows)
    return tuple(Piece(row, one.start, one.stop) for one in ranges for row in rows if len(one))


def _joins(joins: Joins, ranges: Iterable[range]) -> tuple[tuple[Piece, Piece], ...]:
    """Return the joins of whole rows as joins of their pieces in these ranges."""
    return tuple(
        (Piece(into, one.start, one.stop), Piece(out_of, one.start, one.stop))
        for one in ranges
        for into, out_of in joins
        if len(one)
    )
