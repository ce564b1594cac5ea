"""What a step reads is a function of seed and step, deals every example out once, and knows no ranks."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic.data.data_plan import DataPlan, LastBatch
from elastic.errors import ConfigError
from elastic.loop.assignment import blocks

PLAN = DataPlan(dataset_length=1797, batch_size=256, virtual_workers=24, seed=0, epochs=3)


@st.composite
def plans(draw: st.DrawFn) -> DataPlan:
    virtual_workers = draw(st.integers(1, 32))
    batch_size = draw(st.integers(virtual_workers, 4 * virtual_workers + 7))
    last_batch: LastBatch = draw(st.sampled_from(["short", "drop", "carry"]))
    shortest = batch_size if last_batch == "drop" else 1
    return DataPlan(
        dataset_length=draw(st.integers(shortest, shortest + 150)),
        batch_size=batch_size,
        virtual_workers=virtual_workers,
        seed=draw(st.integers(0, 2**63 - 1)),
        last_batch=last_batch,
        micro_batch_size=draw(st.none() | st.integers(1, 9)),
        epochs=draw(st.integers(1, 4)),
    )


def applied(plan: DataPlan) -> Counter[tuple[int, int]]:
    """(epoch, index) of everything that the shares of all steps read."""
    read: Counter[tuple[int, int]] = Counter()
    for index in range(plan.total_steps):
        step = plan.step(index)
        for share in range(len(step.sizes)):
            examples = step.examples(share)
            read.update(zip(examples.visits.tolist(), examples.indices.tolist(), strict=True))
    return read


@given(plans())
def test_every_example_is_read_exactly_once_per_epoch(plan: DataPlan) -> None:
    """P2 begins here: what the plan deals out twice, no recovery can make once."""
    assert plan.epochs is not None
    everything = Counter((epoch, index) for epoch in range(plan.epochs) for index in range(plan.dataset_length))
    read = applied(plan)

    if plan.last_batch == "drop":
        tail = plan.dataset_length % plan.batch_size
        assert max(read.values()) == 1
        assert read <= everything
        assert read.total() == everything.total() - tail * plan.epochs
    else:
        assert read == everything


@given(plans())
def test_shares_are_near_equal_and_never_slivers(plan: DataPlan) -> None:
    """A share of one beside shares of eleven would stop BatchNorm, and slow shares set the pace."""
    nominal = -(-plan.batch_size // plan.virtual_workers)
    for index in range(plan.total_steps):
        step = plan.step(index)

        assert step.sizes == tuple(len(step.examples(share)) for share in range(len(step.sizes)))
        assert sum(step.sizes) == step.count == len(step.indices)
        assert max(step.sizes) - min(step.sizes) <= 1
        assert 1 <= min(step.sizes) <= max(step.sizes) <= nominal
        if step.count == plan.batch_size:
            assert len(step.sizes) == plan.virtual_workers
        else:
            assert (len(step.sizes) - 1) * nominal < step.count  # one share fewer could not hold them


@given(plans())
def test_micro_batches_are_the_share_in_sequence(plan: DataPlan) -> None:
    """Memory is bounded by cutting, and a cut may not reorder, repeat or drop."""
    step = plan.step(0)
    for share in range(len(step.sizes)):
        parts = step.micro_batches(share)
        sizes = [len(part) for part in parts]

        assert np.concatenate([part.indices for part in parts]).tolist() == step.examples(share).indices.tolist()
        assert np.concatenate([part.visits for part in parts]).tolist() == step.examples(share).visits.tolist()
        assert max(sizes) - min(sizes) <= 1
        assert max(sizes) <= (plan.micro_batch_size or step.count)
        needed = 1 if plan.micro_batch_size is None else -(-max(step.sizes) // plan.micro_batch_size)
        assert len(parts) == min(needed, step.sizes[share])


@given(plans())
def test_steps_know_where_their_epoch_begins_and_ends(plan: DataPlan) -> None:
    """Evaluation and schedulers hang on these; every epoch must begin at step_in_epoch 0 and end once."""
    steps = [plan.step(index) for index in range(plan.total_steps)]
    for before, after in zip([None, *steps], steps, strict=False):
        if before is not None and before.epoch == after.epoch:
            assert after.step_in_epoch == before.step_in_epoch + 1
            assert not before.last_of_epoch
        else:
            assert after.step_in_epoch == 0
            assert before is None or before.last_of_epoch
    assert steps[-1].last_of_epoch
    if plan.steps_per_epoch is not None:
        assert Counter(step.epoch for step in steps) == Counter(
            dict.fromkeys(range(plan.epochs or 0), plan.steps_per_epoch)
        )


def test_every_world_size_reads_the_same_shares_in_the_same_order() -> None:
    """P1 and P7, exhaustively: V up to 32, every world size, full and short batches."""
    for virtual_workers in range(1, 33):
        plan = DataPlan(dataset_length=90, batch_size=40, virtual_workers=virtual_workers, seed=5, epochs=1)
        for step in (plan.step(0), plan.step(2)):
            for world_size in range(1, virtual_workers + 1):
                read: list[int] = []
                for block in blocks(len(step.sizes), world_size):
                    for share in block:
                        read += step.examples(share).indices.tolist()
                assert read == step.indices.tolist()


def test_blocks_cover_all_shares_once_in_near_equal_contiguous_runs() -> None:
    """The tree reduction counts on contiguous blocks, and the pace of a step on equal ones."""
    for shares in range(33):
        for world_size in range(1, 34):
            dealt = blocks(shares, world_size)

            assert len(dealt) == world_size
            assert [share for block in dealt for share in block] == list(range(shares))
            assert max(map(len, dealt)) - min(map(len, dealt)) <= 1


def test_carry_runs_on_through_epochs_shorter_than_a_batch() -> None:
    """A step may hold several whole epochs; each example is still read once in each."""
    plan = DataPlan(dataset_length=3, batch_size=8, virtual_workers=2, seed=1, epochs=5, last_batch="carry")
    step = plan.step(0)

    assert plan.total_steps == 2
    assert step.epoch == 0
    assert step.last_of_epoch
    assert np.concatenate([step.examples(s).visits for s in (0, 1)]).tolist() == [0, 0, 0, 1, 1, 1, 2, 2]
    assert plan.step(1).count == 7
    assert applied(plan) == Counter((epoch, index) for epoch in range(5) for index in range(3))


def test_the_earlier_end_counts() -> None:
    """`steps` alone runs through as many epochs as it takes."""
    assert PLAN.total_steps == 24
    assert replace(PLAN, steps=10).total_steps == 10
    assert replace(PLAN, steps=1000).total_steps == 24
    assert replace(PLAN, epochs=None, steps=1000).total_steps == 1000
    assert replace(PLAN, epochs=None, steps=1000).step(999).epoch == 124
    assert replace(PLAN, last_batch="carry").steps_per_epoch is None
    for outside in (-1, 24):
        with pytest.raises(IndexError, match="a run of 24 steps"):
            PLAN.step(outside)
    with pytest.raises(IndexError, match="share 1 of step 7, which has 1 shares"):
        PLAN.step(7).examples(1)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"batch_size": 16}, "batch_size = 16 gives 24 virtual workers 16 / 24 = 0.67 examples each"),
        ({"epochs": None}, "pass epochs=20, say, or steps="),
        ({"epochs": 0}, "epochs = 0; expected 1 or more"),
        ({"steps": -3}, "steps = -3; expected 1 or more"),
        ({"dataset_length": 0}, "dataset_length = 0"),
        ({"batch_size": 256.0}, "batch_size = 256.0 is a float; expected an integer"),
        ({"virtual_workers": True}, "virtual_workers = True is a bool"),
        ({"micro_batch_size": 0}, "micro_batch_size = 0"),
        ({"last_batch": "keep"}, 'last_batch = \'keep\'; expected "short", "drop" or "carry"'),
        ({"last_batch": "drop", "dataset_length": 200}, "200 examples fill no batch of 256"),
        ({"seed": -1}, "seed = -1 is outside"),
        ({"seed": "0"}, "seed = '0' is a str"),
        ({"dataset_length": 2**63}, "orders are computed for up to"),
    ],
)
def test_a_plan_that_cannot_work_is_refused_with_the_way_out(wrong: dict[str, Any], says: str) -> None:
    """Before training starts, and never as an assertion three layers down."""
    with pytest.raises(ConfigError) as refused:
        replace(PLAN, **wrong)
    assert says in str(refused.value)


def test_the_plan_is_the_same_in_every_version() -> None:
    """A checkpoint holds (seed, epoch, step) and trusts that they mean the same examples for ever."""
    assert PLAN.step(9).examples(5).indices.tolist() == [1592, 1195, 1396, 41, 489, 513, 1795, 648, 1091, 1067, 159]
