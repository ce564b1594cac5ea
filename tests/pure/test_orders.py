"""Which examples the orders beside the shuffle visit, and how often: in any run, wherever one looks."""

from __future__ import annotations

import math
import tracemalloc
from collections import Counter
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from elastic.data.data_plan import DataPlan
from elastic.data.mixture import interleaved
from elastic.data.order import Each
from elastic.errors import ConfigError
from elastic.orders import Bucketed, EpochOrder, Mixture, Order, Sequential, Shuffled, Sizes, Weighted

LENGTH, BATCH = 150, 16
LENGTHS = np.random.default_rng(0).integers(1, 400, LENGTH)
WEIGHTS = np.random.default_rng(1).random(LENGTH) * (np.arange(LENGTH) % 5 > 0)
MIXTURE = Mixture({"web": (range(100), 0.7), "code": (range(7), 0.2), "books": (range(43), 0.1)})
ORDERS: dict[str, Order] = {
    "shuffled": Shuffled(),
    "sequential": Sequential(),
    "bucketed": Bucketed(LENGTHS),
    "drawn": Weighted(WEIGHTS, replacement=True),
    "drawn few": Weighted(WEIGHTS, replacement=True, per_epoch=41),
    "sampled": Weighted(WEIGHTS, replacement=False, per_epoch=70),
    "mixture": MIXTURE,
    "mixture in short epochs": Mixture({"a": (range(140), 3), "b": (range(10), 1)}, epoch_length=37),
}


def plan(order: Order, **changes: Any) -> DataPlan:
    given: dict[str, Any] = {
        "dataset_length": LENGTH, "batch_size": BATCH, "virtual_workers": 4, "seed": 5, "epochs": 4, "order": order,
    }  # fmt: skip
    return DataPlan(**given | changes)


def visits(plan: DataPlan) -> list[NDArray[np.int64]]:
    """The indices of every step."""
    return [plan.step(index).indices for index in range(plan.total_steps)]


def per_epoch(plan: DataPlan) -> list[Counter[int]]:
    found: dict[int, Counter[int]] = {}
    for index in range(plan.total_steps):
        step = plan.step(index)
        found.setdefault(step.epoch, Counter()).update(step.indices.tolist())
    return list(found.values())


@pytest.mark.parametrize("name", ORDERS)
def test_any_position_is_what_it_is_in_the_whole_epoch(name: str) -> None:
    """Random access, by which a run goes on in the middle of an epoch; one process's caches are not another's."""
    order = plan(ORDERS[name]).epoch_order
    whole = [order.at(epoch, np.arange(order.length)) for epoch in range(3)]
    for epoch, (turns, indices) in reversed(list(enumerate(whole))):
        some = np.random.default_rng(epoch).permutation(order.length)[:29]
        again = plan(ORDERS[name]).epoch_order.at(epoch, some)

        assert (again[0] == turns[some]).all()
        assert (again[1] == indices[some]).all()
        assert again[0].dtype == again[1].dtype == np.int64
        assert 0 <= indices.min() <= indices.max() < LENGTH


@pytest.mark.parametrize("name", ORDERS)
def test_epochs_have_the_length_that_the_order_gives_them(name: str) -> None:
    run = plan(ORDERS[name])

    assert [applied.total() for applied in per_epoch(run)] == [run.epoch_length] * 4
    assert run.steps_per_epoch == math.ceil(run.epoch_length / BATCH)


@pytest.mark.parametrize("name", ORDERS)
def test_the_seed_and_nothing_else_changes_an_order(name: str) -> None:
    ours, same, other = (
        np.concatenate(visits(plan(ORDERS[name], seed=seed))).tolist() for seed in (5, 5, 6)
    )  # fmt: skip

    assert ours == same
    assert (ours == other) == (name == "sequential")


@pytest.mark.parametrize("name", ["shuffled", "sequential", "bucketed"])
@pytest.mark.parametrize("length", [1, 15, 16, 17, 150, 160])
def test_every_example_comes_up_once_an_epoch(name: str, length: int) -> None:
    """Also where batches divide, where one is short, and where there is nothing but a short one."""
    order = (
        Bucketed(LENGTHS[:length] if length <= LENGTH else np.arange(length)) if name == "bucketed" else ORDERS[name]
    )

    assert per_epoch(plan(order, dataset_length=length)) == [Counter(range(length))] * 4


def test_what_is_drawn_comes_up_in_proportion_to_its_weight() -> None:
    """Among 200,000 draws; an example of weight 0 never does."""
    order = plan(Weighted(WEIGHTS, replacement=True, per_epoch=200_000)).epoch_order
    counts = np.bincount(order.at(0, np.arange(order.length))[1], minlength=LENGTH)
    expected = WEIGHTS / WEIGHTS.sum() * order.length
    some = expected > 0

    assert not counts[~some].any()
    assert within_chance(counts[some], expected[some])
    assert not within_chance(counts[some], np.full(some.sum(), order.length / some.sum())), "nothing was weighted"


@given(st.lists(st.integers(1, 400), min_size=1, max_size=12))
def test_no_prefix_of_a_mixture_is_off_by_one_example(counts: list[int]) -> None:
    """What a weighted draw could only do on average."""
    period = sum(counts)
    dealt = np.array(interleaved(counts))
    for part, count in enumerate(counts):
        off = np.cumsum(dealt == part) * period - count * np.arange(1, period + 1)
        assert np.abs(off).max() < period
        assert off[-1] == 0


@pytest.mark.parametrize("last_batch", ["short", "carry"])
def test_a_mixture_goes_on_through_the_ends_of_epochs(last_batch: str) -> None:
    """The run's epochs cut it, and nothing else; each dataset visits all of its examples before it begins again."""
    read = np.concatenate(visits(plan(MIXTURE, epochs=7, last_batch=last_batch)))
    for start, length, proportion in ((0, 100, Fraction(7, 10)), (100, 7, Fraction(2, 10)), (107, 43, Fraction(1, 10))):
        here = (read >= start) & (read < start + length)
        off = np.cumsum(here) * proportion.denominator - proportion.numerator * np.arange(1, len(read) + 1)
        assert np.abs(off).max() < proportion.denominator
        own = read[here] - start
        rounds = [own[i : i + length].tolist() for i in range(0, len(own) - length, length)]
        assert all(Counter(one) == Counter(range(length)) for one in rounds)
        assert len({tuple(one) for one in rounds}) == len(rounds)
    assert MIXTURE.dataset[106] == 6


def test_a_bucketed_batch_is_of_similar_lengths_and_other_company_in_every_epoch() -> None:
    """Shuffled batches would spread over nearly all lengths."""
    lengths = np.random.default_rng(2).integers(0, 1000, 6400)
    run = plan(Bucketed(lengths), dataset_length=6400, batch_size=64, epochs=3)
    spans = [int(np.ptp(lengths[indices])) for indices in visits(run)]
    shuffled = [int(np.ptp(lengths[indices])) for indices in visits(plan(Shuffled(), **sizes_of(run)))]

    assert max(spans) < 150
    assert min(shuffled) > 800
    means = [float(lengths[indices].mean()) for indices in visits(run)[:100]]
    assert abs(float(np.corrcoef(means, np.arange(100))[0, 1])) < 0.3, "the batches come by length"
    met = [{tuple(sorted(batch.tolist())) for batch in visits(run)[at : at + 100]} for at in (0, 100, 200)]
    assert not met[0] & met[1]
    assert not met[1] & met[2]


def test_the_numbers_of_all_orders_are_pinned() -> None:
    """On every platform. Whoever has to change one raises its version, and older runs are refused by name."""
    found = {
        name: plan(order).epoch_order.at(2, np.array([0, 1, 30, 36]))[1].tolist() for name, order in ORDERS.items()
    }

    assert found == PINNED


def test_identities_differ_by_what_decides_the_order() -> None:
    """They are what a run that goes on is compared by."""
    others: list[Order] = [
        *ORDERS.values(),
        Bucketed(LENGTHS[::-1]),
        Bucketed(LENGTHS, batches_per_bucket=1),
        Weighted(WEIGHTS[::-1], replacement=True),
        Mixture({"web": (range(100), 0.2), "code": (range(7), 0.7), "books": (range(43), 0.1)}),
        Mixture({"code": (range(7), 0.2), "web": (range(100), 0.7), "books": (range(43), 0.1)}),
        Mixture({"web": (range(99), 0.7), "code": (range(8), 0.2), "books": (range(43), 0.1)}),
    ]
    identities = [str(plan(order).order_identity) for order in others]

    assert len(set(identities)) == len(identities)
    assert plan(Shuffled()).order_identity == {"kind": "shuffled", "version": 1}
    assert all("version" in plan(order).order_identity for order in others)
    written: dict[str, tuple[Any, Any]] = {
        "web": (range(100), 7.0),
        "code": (range(7), 2),
        "books": (range(43), Fraction(1)),
    }
    assert plan(Mixture(written)).order_identity == plan(MIXTURE).order_identity


def test_an_order_of_a_script_of_ones_own_is_one() -> None:
    """Every second example; nothing but `over` is asked for."""

    class Even:
        length = 75
        each: Each = "at most once"
        identity: ClassVar = {"kind": "even", "version": 1}

        def for_run(self, sizes: Sizes) -> EpochOrder:
            return self

        def at(self, epoch: int, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
            return np.full_like(positions, epoch), 2 * positions

    run = plan(Even())
    assert per_epoch(run) == [Counter(range(0, LENGTH, 2))] * 4
    assert run.order_identity["epoch_length"] == 75


def test_orders_take_the_memory_of_what_they_were_given() -> None:
    """Mixtures of a trillion examples take what one of ten takes."""
    mixture = Mixture({"a": (range(10**12), 0.9), "b": (range(10**11), 0.1)})
    order = plan(mixture, dataset_length=len(mixture.dataset), epochs=10**4).epoch_order
    tracemalloc.start()
    order.at(10**4 - 1, np.arange(10**11, 10**11 + 256))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 200_000


WRONG: dict[str, tuple[Any, str]] = {
    "no order": (lambda: plan("shuffled"), r"order='shuffled'; expected one of elastic\.orders"),  # type: ignore[arg-type]
    "a class": (lambda: plan(Shuffled), r"such as elastic\.orders\.Shuffled\(\)"),  # type: ignore[arg-type]
    "weights of others": (lambda: plan(Weighted([1, 2], replacement=True)), "2 weights for a dataset of 150 examples"),
    "a weight below 0": (lambda: Weighted([1, -2], replacement=True), r"weights\[1\] = -2.0"),
    "a weight of nothing": (lambda: Weighted([1, math.nan], replacement=True), r"weights\[1\] = nan"),
    "weights of 0": (lambda: Weighted([0, 0], replacement=True), "add up to 0.0"),
    "weights in rows": (lambda: Weighted([[1, 2]], replacement=True), r"weights of shape \(1, 2\)"),
    "all of a sample": (lambda: Weighted([1, 2], replacement=False), "without per_epoch: .*below 2"),
    "more than there is": (lambda: Weighted([1, 0], replacement=False, per_epoch=2), "only the 1 examples with"),
    "an epoch of nothing": (lambda: Weighted([1, 0], replacement=True, per_epoch=0), "per_epoch=0; expected"),
    "lengths of others": (lambda: plan(Bucketed([1, 2])), "2 lengths for a dataset of 150 examples"),
    "lengths of texts": (lambda: Bucketed(["a", "b"]), "expected a number for each"),
    "batches of nothing": (lambda: Bucketed([1, 2], batches_per_bucket=0), "batches_per_bucket=0; expected"),
    "buckets that leak": (lambda: plan(Bucketed(LENGTHS), last_batch="carry"), '"carry" with Bucketed: 150 examples'),
    "a mixture of nothing": (lambda: Mixture({}), "is empty"),
    "no proportion": (lambda: Mixture({"a": range(3)}), "expected .*'name': \\(dataset, proportion\\)"),  # type: ignore[dict-item]
    "an empty dataset": (lambda: Mixture({"a": ([], 1.0)}), "dataset 'a' of the mixture is empty"),
    "a proportion of 0": (lambda: Mixture({"a": ([1], 0.0)}), "proportion of 'a' is 0.0"),
    "endless proportions": (
        lambda: Mixture({"a": ([1], 1 / 3), "b": ([1], 1 / 7)}),
        r"repeat after .*\n  next  round them, to \{'a': 700, 'b': 300\} say",
    ),
    "another dataset": (lambda: plan(MIXTURE, dataset_length=151), r"dataset=mixture\.dataset"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_work_is_refused_by_name(name: str) -> None:
    build, says = WRONG[name]
    with pytest.raises(ConfigError, match=f"(?s){says}"):
        build()


def sizes_of(run: DataPlan) -> dict[str, Any]:
    return {name: getattr(run, name) for name in ("dataset_length", "batch_size", "epochs")}


def within_chance(counts: NDArray[np.int64], expected: NDArray[np.float64]) -> bool:
    """Chi-square within five standard deviations."""
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    return chi_square - (len(counts) - 1) < 5 * math.sqrt(2 * (len(counts) - 1))


PINNED = {
    "shuffled": [86, 122, 95, 146],
    "sequential": [0, 1, 30, 36],
    "bucketed": [36, 90, 25, 93],
    "drawn": [33, 1, 146, 49],
    "drawn few": [33, 1, 146, 49],
    "sampled": [24, 141, 79, 132],
    "mixture": [33, 31, 11, 100],
    "mixture in short epochs": [14, 149, 16, 1],
}
