"""A sum that is added inside each host first has the tree's bits, and costs each host no more than its rows once."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest

from elastic.group.hierarchy import ALIGNED, RESULT, Piece, Stage, hosts_of, in_any_order, stages
from elastic.group.tree import Schedule, schedule

Values = npt.NDArray[np.float32]


class Rank:
    """What one rank holds while it goes through its stages: by row, the elements that it knows."""

    def __init__(self, rows: dict[int, Values], numel: int) -> None:
        self._numel = numel
        self.held = {row: {e: values[e] for e in range(numel)} for row, values in rows.items()}

    def take(self, piece: Piece) -> list[np.float32]:
        row = self.held[piece.row]
        return [row[element] for element in range(piece.start, piece.stop)]

    def put(self, piece: Piece, values: list[np.float32]) -> None:
        row = self.held.setdefault(piece.row, {})
        assert not any(e in row for e in range(piece.start, piece.stop)), "nothing is sent twice"
        row.update(zip(range(piece.start, piece.stop), values, strict=True))

    def add(self, stage: Stage) -> None:
        for into, out_of in stage.joins:
            summed = [one + other for one, other in zip(self.take(into), self.take(out_of), strict=True)]
            self.held[into.row].update(zip(range(into.start, into.stop), summed, strict=True))
        for piece in stage.sums:
            self.put(Piece(RESULT, piece.start, piece.stop), self.take(piece))

    @property
    def result(self) -> Values:
        row = self.held[RESULT]
        return np.array([row[element] for element in range(self._numel)], dtype=np.float32)


def carried_out(plan: Schedule, hosts: tuple[range, ...], rows: list[Values]) -> tuple[list[Values], list[int]]:
    """Every rank's result, and how many elements leave each host."""
    numel, world_size = len(rows[0]), hosts[-1].stop
    firsts = [sum(plan.rows[:rank]) for rank in range(world_size)]
    ranks = [
        Rank({first + i: rows[first + i] for i in range(count)}, numel)
        for first, count in zip(firsts, plan.rows, strict=True)
    ]
    ways = [stages(plan, hosts, numel, rank) for rank in range(world_size)]
    left = [0] * len(hosts)
    for number in range(len(ways[0])):
        now = [way[number] for way in ways]
        sent = [[[(p, ranks[rank].take(p)) for p in to] for to in now[rank].send] for rank in range(world_size)]
        for rank in range(world_size):
            for source in range(world_size):
                assert tuple(piece for piece, _ in sent[source][rank]) == now[rank].receive[source]
                for piece, values in sent[source][rank]:
                    ranks[rank].put(piece, values)
        for host, own in enumerate(hosts):
            left[host] += sum(
                len(p) for rank in own for to in range(world_size) if to not in own for p, _ in sent[rank][to]
            )
        for rank in range(world_size):
            ranks[rank].add(now[rank])
    return [rank.result for rank in ranks], left


def added(plan: Schedule, rows: list[Values]) -> Values:
    held: list[Values] = [row.copy() for row in rows]
    for into, out_of in plan.joins:
        held[into] += held[out_of]
    return held[0]


def drawn(draw: random.Random, count: int, numel: int) -> list[Values]:
    """Of widely differing sizes, so that another order of additions shows in the bits."""
    return [
        np.array([draw.gauss(0, 1) * 10.0 ** draw.randint(-6, 6) for _ in range(numel)], dtype=np.float32)
        for _ in range(count)
    ]


def hosts_with(*sizes: int) -> tuple[range, ...]:
    return hosts_of([str(host) for host, size in enumerate(sizes) for _ in range(size)])


@pytest.mark.parametrize("seed", range(40))
def test_any_schedule_on_any_hosts_has_the_bits_of_the_tree(seed: int) -> None:
    """Blocks of any size, idle ranks, short batches, hosts of different sizes, sums smaller than the ranks are many."""
    draw = random.Random(seed)
    for _ in range(5):
        hosts = hosts_with(*(draw.randint(1, 4) for _ in range(draw.randint(2, 4))))
        world_size = hosts[-1].stop
        virtual_workers = draw.randint(2, 24)
        shares = draw.randint(1, virtual_workers)
        cuts = sorted(draw.randint(0, shares) for _ in range(world_size - 1))
        bounds = [0, *cuts, shares]
        plan = schedule(virtual_workers, shares, tuple(range(a, b) for a, b in pairwise(bounds)))
        rows = drawn(draw, sum(plan.rows), ALIGNED * draw.choice([1, 2, 3, 7, 24]))

        expected = added(plan, rows).tobytes()
        results, _ = carried_out(plan, hosts, rows)

        assert [result.tobytes() for result in results] == [expected] * world_size


@pytest.mark.parametrize("sizes", [(2, 2), (4, 4), (2, 2, 2, 2), (8, 8), (3, 3)])
def test_a_host_sends_no_more_than_must_be_sent(sizes: tuple[int, ...]) -> None:
    """2(H-1)/H of the gradients for H hosts of equal work, where a ring of W ranks sends 2(W-1)/W."""
    hosts = hosts_with(*sizes)
    world_size, numel = hosts[-1].stop, ALIGNED * 48
    virtual_workers = 4 * world_size
    plan = schedule(virtual_workers, virtual_workers, tuple(range(4 * r, 4 * r + 4) for r in range(world_size)))

    _, left = carried_out(plan, hosts, drawn(random.Random(1), sum(plan.rows), numel))

    assert left == [2 * numel * (len(hosts) - 1) // len(hosts)] * len(hosts)


@pytest.mark.parametrize("sizes", [(3, 1), (2, 1), (1, 2, 3), (4, 2, 2)])
def test_uneven_hosts_send_as_little(sizes: tuple[int, ...]) -> None:
    """In whatever order: where the tree leaves a host two rows, it sends both."""
    hosts = hosts_with(*sizes)
    numel = ALIGNED * 72
    plan = in_any_order(hosts)
    rows = drawn(random.Random(1), sum(plan.rows), numel)

    results, left = carried_out(plan, hosts, rows)

    assert left == [2 * numel * (len(hosts) - 1) // len(hosts)] * len(hosts)
    assert len({result.tobytes() for result in results}) == 1


def test_hosts_are_neighbours_of_one_address() -> None:
    assert hosts_of(["a", "a", "b"]) == (range(2), range(2, 3))
    assert hosts_of(["a", "b", "a"]) == (range(1), range(1, 2), range(2, 3))
    assert hosts_of(["a"]) == (range(1),)
