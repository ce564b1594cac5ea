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

from elastic.data.permutation import LENGTH_MAX, Permutation

lengths = st.one_of(st.integers(1, 5000), st.integers(1, LENGTH_MAX), st.sampled_from([2**k for k in range(63)]))
keys = st.integers(0, 2**64 - 1)


def test_every_short_length_is_permuted_exactly() -> None:
    """Cycle walking has its edge cases where lengths are squares, products or primes: take them all."""
    for length in range(1, 301):
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


def test_the_order_is_the_same_in_every_version() -> None:
    """A resumed run may meet a newer release; an order that moved would repeat and skip examples."""
    assert Permutation(10, 0).at(np.arange(10)).tolist() == [5, 2, 7, 8, 3, 9, 6, 1, 4, 0]
    ends = Permutation(10**12, 7).at(np.array([0, 1, 10**12 - 1]))
    assert ends.tolist() == [548693624163, 917702855606, 250518528950]


@pytest.mark.nightly(sample=1)
@pytest.mark.parametrize("length", [2, 3, 4, 5])
def test_all_orders_of_few_examples_are_equally_likely(length: int) -> None:
    """A short dataset sees the network's weakest case: digits of two or three values."""
    seen = Counter(tuple(Permutation(length, key).at(np.arange(length)).tolist()) for key in range(6000))
    counts = [seen[order] for order in itertools.permutations(range(length))]

    assert chi_square_excess(np.array(counts)) < 5


@pytest.mark.nightly(sample=1)
@pytest.mark.parametrize("length", [7, 12, 16, 31])
def test_pairs_of_positions_hold_all_pairs_of_examples_equally_often(length: int) -> None:
    """Uniform single positions would also come from a rotation; pairs tell a shuffle from one."""
    orders = np.array([Permutation(length, key).at(np.arange(length)) for key in range(6000)])
    apart = ~np.eye(length, dtype=bool)
    for first, second in [(0, 1), (0, length - 1), (length // 2, length // 2 + 1), (0, math.isqrt(length - 1) + 1)]:
        pairs = np.bincount(orders[:, first] * length + orders[:, second], minlength=length**2)

        assert chi_square_excess(pairs.reshape(length, length)[apart]) < 5


def test_neighbours_in_a_large_dataset_are_unrelated() -> None:
    """Consecutive positions differ in one digit only; whatever is left of that would group related examples."""
    length = 1_000_000
    order = Permutation(length, key=3).at(np.arange(length))

    assert abs(np.corrcoef(order, np.arange(length))[0, 1]) < 0.005
    for lag in (1, 2, 999, 1000, 1001):  # the digits' bases are 1000
        assert abs(np.corrcoef(order[:-lag], order[lag:])[0, 1]) < 0.005


def test_keys_give_unrelated_orders() -> None:
    """Epoch e + 1 must not be epoch e with a twist: neighbouring keys agree on one position by chance."""
    orders = [Permutation(1000, key).at(np.arange(1000)) for key in range(40)]
    agreements = [int((a == b).sum()) for a, b in itertools.combinations(orders, 2)]

    assert abs(np.mean(agreements) - 1) < 0.2
    assert max(agreements) < 10


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


def test_shapes_are_kept_and_arguments_untouched() -> None:
    """A plan asks for (shares, examples) blocks as well as for lists, and for none at all."""
    positions = np.arange(12).reshape(3, 4)
    values = Permutation(12, 5).at(positions)

    assert values.shape == (3, 4)
    assert (positions == np.arange(12).reshape(3, 4)).all()
    assert Permutation(12, 5).at(np.array([], dtype=np.int64)).shape == (0,)


def chi_square_excess(counts: NDArray[np.int64]) -> float:
    """Standard deviations by which chi-square exceeds what equally likely cells give."""
    expected = counts.sum() / counts.size
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    freedom = counts.size - 1
    return (chi_square - freedom) / math.sqrt(2 * freedom)
