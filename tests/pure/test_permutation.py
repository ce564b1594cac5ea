"""The order of an epoch is a bijection that looks random, for a dataset of any length."""

from __future__ import annotations

import itertools
import math
import tracemalloc
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from elastic.data.permutation import LENGTH_MAX, LENGTH_SMALL, TABLE_MAX, VERSION, Permutation, random_words
from elastic.state.randomness import derive

lengths = st.one_of(st.integers(1, 5000), st.integers(1, LENGTH_MAX), st.sampled_from([2**k for k in range(63)]))
keys = st.integers(0, 2**64 - 1)


def test_every_short_length_is_permuted_exactly() -> None:
    """Cycle walking has its edge cases where lengths are squares, products or primes: take them all."""
    for length in range(1, 601):
        positions = np.arange(length)
        order = Permutation(length, key=length).at(positions)

        assert Counter(order.tolist()) == Counter(range(length))
        assert (Permutation(length, key=length).inverse(order) == positions).all()


@given(length=lengths, key=keys, where=st.floats(0, 1), count=st.integers(1, 300))
def test_any_window_of_any_length_goes_there_and_back(length: int, key: int, where: float, count: int) -> None:
    """A trillion examples cannot be listed, but an inverse that is right everywhere proves a bijection."""
    start = min(int(where * length), length - 1)
    positions = np.arange(start, min(start + count, length))
    permutation = Permutation(length, key)
    values = permutation.at(positions)

    assert values.dtype == np.int64
    assert values.min() >= 0
    assert values.max() < length
    assert (permutation.inverse(values) == positions).all()
    assert (permutation.at(permutation.inverse(positions)) == positions).all()


def test_version_1_is_these_numbers() -> None:
    """A resumed run may meet a newer release or another machine; an order that moved would repeat and skip examples.
    Whoever has to change a number here raises VERSION, and runs of version 1 are refused by name."""
    assert VERSION == 1
    assert Permutation(10, 0).at(np.arange(10)).tolist() == [2, 4, 6, 8, 5, 1, 7, 0, 9, 3]
    assert Permutation(1000, 7).at(np.array([0, 1, 499, 999])).tolist() == [844, 680, 524, 874]
    assert Permutation(10**12, 7).at(np.array([0, 1, 10**12 - 1])).tolist() == [
        808432777212,
        705390319941,
        429805300678,
    ]
    assert Permutation(LENGTH_MAX, 2**64 - 1).at(np.array([0, 1, LENGTH_MAX - 1])).tolist() == [
        1021990910426439584,
        902721093566979574,
        2901195994958205699,
    ]
    assert random_words(7, np.array([0, 1, 10**12])).tolist() == [
        7191089600892374487,
        309689372594955804,
        2002707688823753046,
    ]


@pytest.mark.nightly(sample=1)
@pytest.mark.parametrize("length", [2, 3, 4, 5])
def test_all_orders_of_few_examples_are_equally_likely(length: int) -> None:
    """Of four examples every order has a right to come."""
    seen = Counter(tuple(Permutation(length, key).at(np.arange(length)).tolist()) for key in range(6000))
    counts = [seen[order] for order in itertools.permutations(range(length))]

    assert chi_square_excess(np.array(counts)) < 5


KEYS = 6000
SMALL = [7, 31, 200, TABLE_MAX, TABLE_MAX + 1, 300, 1000]  # on either side of the table's end


@pytest.mark.nightly(sample=2)
@pytest.mark.parametrize("length", SMALL)
def test_short_orders_look_random(length: int) -> None:
    """Uniform single positions would also come from a rotation; the differences of pairs tell a shuffle from one."""
    assert max(found_in_small(length).values()) < 5


@pytest.mark.nightly(sample=2)
@pytest.mark.parametrize("length", [LENGTH_SMALL, 10**6, 10**9, 2**40, 10**12, LENGTH_MAX])
def test_long_orders_look_random(length: int) -> None:
    """A window of half a million positions: each is uniform, neighbours are unrelated, and so are epochs."""
    assert max(found_in_large(length).values()) < 5


def found_in_small(length: int) -> dict[str, float]:
    """Over KEYS keys, the largest excess of chi-square of every statistic."""
    right = 1 << ((length - 1).bit_length() // 2)  # positions that share a digit are the weakest
    some = np.unique(np.array([0, 1, 2, right - 1, right, right + 1, length // 2, length - 2, length - 1]) % length)
    orders = np.array([Permutation(length, key).at(some) for key in range(KEYS)])
    pairs = list(itertools.combinations(range(len(some)), 2))
    cells = min(length, 300)
    return {
        "single": max(spread(orders[:, i], length, cells) for i in range(len(some))),
        "difference": max(
            chi_square_excess(np.bincount((orders[:, i] - orders[:, j]) % length, minlength=length)[1:])
            for i, j in pairs
        ),
    }


def found_in_large(length: int) -> dict[str, float]:
    """Over a window somewhere in the order, the largest excess of chi-square of every statistic."""
    count = min(2**19, length)
    start = (length - count) // 3
    window = np.arange(start, start + count)
    order, other = (Permutation(length, derive("epoch order", 0, epoch)).at(window) for epoch in (0, 1))
    right = 1 << ((length - 1).bit_length() // 2)
    lags = [lag for lag in (1, 2, 3, 256, right - 1, right, right + 1, 2 * right) if 4 * lag < count]
    batches = order[: count // 256 * 256].reshape(-1, 256)
    within = np.bincount((coarse(batches, length, 8) + 8 * np.arange(len(batches))[:, None]).ravel()).reshape(-1, 8)
    return {
        "single": spread(order, length, 4096 if length > 2**20 else length // 64),
        "neighbours": max(
            chi_square_excess(np.bincount(coarse(order[lag:], length, 64) * 64 + coarse(order[:-lag], length, 64)))
            for lag in lags
        ),
        "distance": max(spread((order[lag:] - order[:-lag]) % length, length, 1000) for lag in lags),
        "batches": abs(float(((within - 32) ** 2 / 32).sum(axis=1).mean()) - 7) / math.sqrt(14 / len(batches)),
        **of_epochs(order, other, length),
    }


def of_epochs(one: NDArray[np.int64], other: NDArray[np.int64], length: int) -> dict[str, float]:
    """Neighbouring epochs have neighbouring numbers; their orders must not."""
    return {
        "epochs": chi_square_excess(np.bincount(coarse(one, length, 64) * 64 + coarse(other, length, 64))),
        "distance of epochs": spread((one - other) % length, length, 1000),
    }


def coarse(values: NDArray[np.int64], length: int, cells: int) -> NDArray[np.int64]:
    if length * cells < 2**62:
        return values * cells // length
    return (values.astype(np.float64) / length * cells).astype(np.int64)


def spread(values: NDArray[np.int64], length: int, cells: int) -> float:
    """Over cells of equal size, or as equal as integers allow."""
    edges = [-(-cell * length // cells) for cell in range(cells + 1)]
    share = np.diff(np.array(edges, dtype=np.float64)) / length
    counts = np.bincount(coarse(values, length, cells), minlength=cells)
    expected = share * len(values)
    return (float(((counts - expected) ** 2 / expected).sum()) - (cells - 1)) / math.sqrt(2 * (cells - 1))


def test_memory_does_not_grow_with_the_dataset() -> None:
    """A trillion examples would need 8 TB of indices."""
    tracemalloc.start()
    Permutation(10**12, 1).at(np.arange(256))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 100_000


def test_what_lies_outside_is_refused() -> None:
    """A wrong position would otherwise read some example twice, in silence."""
    permutation = Permutation(10, 0)
    for outside in ([10], [-1], [3, 10, 4]):
        with pytest.raises(IndexError, match="0 … 9"):
            permutation.at(np.array(outside))
        with pytest.raises(IndexError, match="0 … 9"):
            permutation.inverse(np.array(outside))
    with pytest.raises(ValueError, match="length from 1"):
        Permutation(0, 0)
    with pytest.raises(ValueError, match="length from 1"):
        Permutation(LENGTH_MAX + 1, 0)


def chi_square_excess(counts: NDArray[np.int64]) -> float:
    """Standard deviations by which chi-square exceeds what equally likely cells give."""
    expected = counts.sum() / counts.size
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    freedom = counts.size - 1
    return (chi_square - freedom) / math.sqrt(2 * freedom)
