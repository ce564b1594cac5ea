"""What is kept in memory from step to step does not grow with the kinds of steps, nor with an evaluation's length."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from elastic.group.form import LocalGroup
from elastic.group.gradients import GradientSum
from elastic.group.hierarchical_sum import HierarchicalSum
from elastic.group.sums import ShareSums, SubtreeSums
from elastic.group.tree import Schedule, schedule
from elastic.group.treesum import TreeSum
from elastic.group.warm_memory import WarmMemory
from elastic.loop.assignment import blocks
from tests.one_process.test_loop_rules import Small

V = 8
SHORT_AND_FULL = (8, 5, 8, 3, 1, 7, 8)


class OneOf(LocalGroup):
    """A rank of several, for what is decided without the others."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank, self.world_size, self.hosts = rank, world_size, (range(world_size),)


def plan(shares: int, world_size: int) -> Schedule:
    return schedule(V, shares, tuple(blocks(shares, world_size)))


def test_short_batches_use_the_memory_of_full_ones() -> None:
    """The short last step of the first epoch took a second set of gradient buffers, for good: +430 MiB for 95."""
    for world_size in (2, 3, 4):
        for rank in range(world_size):
            group = OneOf(rank, world_size)
            together = TreeSum(group, 1000, torch.float32, torch.device("cpu"), ordered=True)
            alone = []
            for shares in SHORT_AND_FULL:
                together.begin(plan(shares, world_size))
                single = TreeSum(group, 1000, torch.float32, torch.device("cpu"), ordered=True)
                single.begin(plan(shares, world_size))
                alone.append(single)
            rows = max(len(one.rows) for one in alone)
            pieces = max(one.held_bytes - len(one.rows) * one.result.nbytes for one in alone)
            assert together.held_bytes <= max(rows, 1) * together.result.nbytes + pieces


@pytest.mark.parametrize(("before", "after"), [(3, 4), (4, 3), (2, 5)])
def test_the_sums_of_the_next_view_take_the_memory_of_those_of_the_last(before: int, after: int) -> None:
    """Of a model of 200 MB each of those who stayed got twice that from the kernel, page by page, while all waited."""
    cpu, numel = torch.device("cpu"), 1_000_003
    for kind in (TreeSum, HierarchicalSum):
        memory, steps = WarmMemory(), plan(8, before)
        first = kind(OneOf(0, before), numel, torch.float32, cpu, ordered=True, memory=memory)
        first.begin(steps)
        lay = {row.data_ptr() for row in first.rows}
        held = first.held_bytes
        first.release()
        assert first.held_bytes == 0
        assert memory.nbytes == held

        second = kind(OneOf(0, after), numel, torch.float32, cpu, ordered=True, memory=memory)
        second.begin(plan(8, after))
        assert all(row.tolist()[:3] == [0.0] * 3 for row in second.rows), "nothing of the last view is in it"
        assert second.rows[0].data_ptr() in lay
        memory.forget()
        assert memory.nbytes == 0
        assert second.rows[0].sum() == 0


def test_gradients_take_no_more_copies_than_the_tree_is_high() -> None:
    weight = nn.Parameter(torch.zeros(64))
    gradients = GradientSum([weight], ["weight"], LocalGroup(), overlap=True, ordered=True, bucket_bytes=1 << 20)
    gradients.open()
    held = []
    for shares in SHORT_AND_FULL:
        steps = plan(shares, 1)
        gradients.begin(steps)
        for share, merges in enumerate(steps.merges[0]):
            gradients.begin_pass(merges, piece=0, pieces=1, last=share == shares - 1)
            torch.autograd.backward(weight.sum())
            gradients.end_pass()
        gradients.finish(1)
        assert weight.grad is not None
        assert weight.grad.tolist() == [float(shares)] * 64
        held.append(gradients.held_bytes)
    gradients.close()
    assert held == [held[0]] * len(held)
    assert held[0] <= 4 * (64 + 16) * 4  # log2(V) + 1, each with room for the counts


def test_sums_of_many_shares_are_held_as_a_few() -> None:
    """And have the bits of the tree: a name that only some shares bring counts as nothing in the others."""
    draw = np.random.default_rng(1)
    values = draw.normal(size=1000) * 10.0 ** draw.integers(-6, 7, size=1000)
    sums, most = SubtreeSums(), 0
    many = schedule(1000, 1000, (range(1000),))
    for index, merges in enumerate(many.merges[0]):
        share = ShareSums()
        share.add("all", values[index])
        if index % 3 == 0:
            share.add("some", -0.0)
        sums.push(share, merges)
        most = max(most, len(sums.parts))

    def added(lo: int, hi: int) -> float:
        return float(values[lo]) if hi - lo == 1 else added(lo, (lo + hi) // 2) + added((lo + hi) // 2, hi)

    (total,) = sums.parts
    assert most <= 11
    assert float(total.values["all"]) == added(0, 1000)
    assert np.signbit(total.values["some"])
    assert total.given == {"all": (1000, 1000), "some": (334, 334)}


def test_an_evaluation_keeps_the_sums_of_a_few_batches_only(tmp_path: Path) -> None:
    """A confusion matrix per batch, for every batch of a large test set, filled the memory of the worker."""
    small = Small(tmp_path / "run")
    alive: list[int] = []
    seen: list[torch.Tensor] = []

    def confusion(x: torch.Tensor, _: torch.Tensor) -> dict[str, torch.Tensor]:
        if len(x) == 1:
            seen.append(x)
            if len(seen) in (1, 48):
                alive.append(sum(type(thing) is ShareSums for thing in gc.get_objects()))
        return {"confusion": torch.ones(3, 3), "n": torch.tensor(len(x))}

    with small.run as run:
        gc.collect()
        found = run.evaluate(small.data, confusion, batch_size=1)
        assert found["n"] == len(small.data)
        assert found["confusion"].tolist() == [[48.0] * 3] * 3
        assert alive[1] - alive[0] <= 7  # 48 batches
        run.stop("enough")
        for step in run:
            for share in step:
                small.backward(step, share)
