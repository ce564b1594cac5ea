"""Replicas of several ranks: every share is passed once, by ranks that pass equally often, and added in one order."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

import elastic
from elastic.config import Config
from elastic.group.tree import Schedule, schedule, schedule_of_dealt
from elastic.loop.assignment import ShareAssignment, assign_shares, bodies


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """A run's of 24 virtual workers: batches of 72 examples, in micro-batches of 2, and a short last one."""
    model = torch.nn.Linear(2, 1)
    run = elastic.Run(
        tmp_path_factory.mktemp("dealt") / "run",
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        dataset=TensorDataset(torch.zeros(72 + 11, 2)),
        batch_size=72,
        virtual_workers=24,
        epochs=1,
        data=elastic.Data(micro_batch_size=2),
    )
    return run._config


def in_replicas_of(size: int, config: Config, virtual_workers: int | None = None) -> Config:
    """Where shares go depends on how many workers hold the model, and on nothing else of how it is sharded."""
    plan = replace(config.plan, virtual_workers=virtual_workers or config.plan.virtual_workers)
    sharding: Any = SimpleNamespace(size=size)
    return replace(config, sharding=sharding, plan=plan)


@st.composite
def cases(draw: st.DrawFn) -> tuple[int, int, int, int, frozenset[int]]:
    """(virtual workers, shares that hold examples, workers of a replica, replicas, those of them that are idle)."""
    virtual_workers = draw(st.integers(2, 32))
    size = draw(st.integers(2, 6))
    replicas = draw(st.integers(1, 5))
    idle = draw(st.sets(st.integers(0, replicas - 1), max_size=replicas - 1))
    return virtual_workers, draw(st.integers(1, virtual_workers)), size, replicas, frozenset(idle)


def dealt(config: Config, case: tuple[int, int, int, int, frozenset[int]]) -> list[ShareAssignment]:
    virtual_workers, shares, size, replicas, idle = case
    ranks = [replica * size + place for replica in idle for place in range(size)]
    return assign_shares(in_replicas_of(size, config, virtual_workers), shares, replicas * size, ranks)


@given(case=cases())
def test_every_share_is_passed_once_and_all_of_a_replica_have_the_same_rounds(
    made: Config, case: tuple[int, int, int, int, frozenset[int]]
) -> None:
    _, shares, size, replicas, idle = case
    assigned = dealt(made, case)
    assert len(assigned) == replicas * size
    assert sorted(chain.from_iterable(one.shares for one in assigned)) == list(range(shares))
    for number in range(replicas):
        members = [one.replica for one in assigned[number * size : (number + 1) * size]]
        assert all(one == members[0] for one in members)
        (first, *_) = members
        assert first is not None
        assert (number in idle) <= (not first.rounds)
        assert all(len(one.batches) == size for one in first.rounds)
        assert all(all(one.batches) for one in first.rounds[:-1])
        for place in range(size):
            passed = [share for one in first.rounds for share in one.batches[place]]
            assert passed == list(assigned[number * size + place].shares), "its shares are those of its place"
    working = [len(one.replica.rounds) for one in assigned if one.replica is not None and one.replica.rounds]
    assert max(working) - min(working) <= 1, "no replica passes much more often than others"


@given(case=cases(), drawn=st.randoms(use_true_random=False))
def test_sums_of_dealt_shares_have_the_bits_of_one_ranks_in_both_ways(
    made: Config, case: tuple[int, int, int, int, frozenset[int]], drawn: Any
) -> None:
    """Gradients are added in a replica as its rounds come, all else of a step by each rank alone and then by all."""
    virtual_workers, shares, size, replicas, _ = case
    values = [drawn.uniform(-1, 1) * 10.0 ** drawn.randint(-9, 9) for _ in range(shares)]
    whole = schedule(virtual_workers, shares, (range(shares),))
    expected = added(whole, [list(zip(values, whole.merges[0], strict=True))])
    assigned = dealt(made, case)

    by_ranks = [[(values[share], 0) for share in one.shares] for one in assigned]
    assert {one.schedule for one in assigned} == {assigned[0].schedule}
    assert all(one.merges == (0,) * len(one.shares) for one in assigned)
    assert added(assigned[0].schedule, by_ranks).hex() == expected.hex()

    of_replicas: list[list[tuple[float, int]]] = []
    for one in (assigned[number * size].replica for number in range(replicas)):
        assert one is not None
        passed = [zip(chain.from_iterable(of.batches), of.merges, strict=True) for of in one.rounds]
        of_replicas.append([(values[share], merges) for share, merges in chain.from_iterable(passed)])
        between = one.schedule
    assert added(between, of_replicas).hex() == expected.hex()


@given(case=cases())
def test_in_fast_mode_a_replica_passes_once_and_each_of_it_what_a_rank_passes_otherwise(
    made: Config, case: tuple[int, int, int, int, frozenset[int]]
) -> None:
    _, shares, size, _, _ = case
    fast = replace(made, compute=replace(made.compute, mode="fast"))
    assigned = dealt(fast, case)
    assert list(chain.from_iterable(one.shares for one in assigned)) == list(range(shares))
    of_replicas = [one.replica for one in assigned[::size]]
    for number, one in enumerate(assigned):
        assert one.replica is not None
        assert one.replica == of_replicas[number // size]
        passed = [of.batches[number % size] for of in one.replica.rounds]
        assert [batch for batch in passed if batch] == list(one.batches)
    merges = [[of.merges for of in one.rounds] for one in of_replicas if one is not None]
    assert all(of_one in ([], [(0,)]) for of_one in merges)
    between = of_replicas[0].schedule if of_replicas[0] is not None else None
    assert between is not None
    assert sum(between.rows) == sum(len(of_one) for of_one in merges), "a leaf of each replica that has shares"


def added(plan: Schedule, of_ranks: list[list[tuple[float, int]]]) -> float:
    """What ranks that follow `plan` add, of the contributions of each, with the merges that follow them."""
    rows: list[float] = []
    for contributions in of_ranks:
        stack: list[float] = []
        for value, merges in contributions:
            stack.append(value)
            for _ in range(merges):
                right = stack.pop()
                stack.append(stack.pop() + right)
        rows += stack
    assert sum(plan.rows) == len(rows) == len(plan.joins) + 1
    for into, out_of in plan.joins:
        rows[into] += rows[out_of]
    return rows[0]


def test_what_is_dealt_must_be_all_shares_once() -> None:
    with pytest.raises(AssertionError):
        schedule_of_dealt(4, 4, (range(0, 4, 2), range(0, 4, 2)))
    with pytest.raises(AssertionError):
        schedule_of_dealt(4, 3, (range(0, 2, 2), range(1, 2, 2)))


@pytest.mark.parametrize(("size", "replicas"), [(2, 1), (3, 2), (5, 2), (4, 6)])
def test_workers_of_a_replica_are_handed_equally_many_batches(made: Config, size: int, replicas: int) -> None:
    """Also of a short batch, whose shares are of one micro-batch or two; those without a share stand in."""
    config = in_replicas_of(size, made)
    counts = []
    for step in (config.plan.step(0), config.plan.step(1)):
        assert len(step.sizes) == (24 if step.count == 72 else 4)
        handed = [bodies(config, step, rank, size * replicas) for rank in range(size * replicas)]
        for first in range(0, size * replicas, size):
            assert len(set(handed[first : first + size])) == 1
        own = [
            sum(step.pieces(share) for share in one.shares)
            for one in assign_shares(config, len(step.sizes), size * replicas)
        ]
        assert all(passes >= needed for passes, needed in zip(handed, own, strict=True))
        counts.append(handed)
    assert counts[0] != counts[1]
