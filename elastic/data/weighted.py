"""Examples that come up in proportion to weights: with replacement, or each at most once an epoch.

With replacement, a position draws a random number and looks it up among the weights' cumulative sums: O(log n) a
position, and 8 bytes an example. (An alias table would be O(1), and takes a sequential pass to build and twice the
memory; of a step of 256 the look-up takes some 20 µs in a million.)

Without, an epoch's sample is what drawing one after the other, each time from what is left, gives: the `per_epoch`
smallest of -log(u_i) / w_i (Efraimidis and Spirakis 2006, doi:10.1016/j.ipl.2005.11.003), which is O(n log n) once an
epoch, and 8 bytes a sampled example. The heaviest stand first there, so the sample is shuffled.

Only sums, products, quotients and comparisons of doubles are used, which are the same on every platform.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from elastic.data.order import Each, EpochOrder, Indices, Sizes, permutation
from elastic.data.permutation import VERSION, random_words
from elastic.errors import ConfigError
from elastic.state.randomness import derive

_OWN_VERSION = 1


class Weighted:
    """Each epoch visits examples drawn in proportion to weights.

    Args:
        weights: One number of 0 or more for each example of the dataset.
        replacement: True: each position of an epoch draws from all examples, so one may come up several times, each
            time with its own augmentation. False: one after the other is drawn from those that are left, so that each
            comes up once at most (as `torch.multinomial` has it), and they are visited in shuffled order.
        per_epoch: How many an epoch visits. Default, with replacement: as many as the dataset has.

    Raises:
        ConfigError: There is nothing to draw, or not as much as an epoch visits.
    """

    def __init__(self, weights: ArrayLike, *, replacement: bool, per_epoch: int | None = None) -> None:
        self._weights = _checked(weights)
        positive = int(np.count_nonzero(self._weights))
        if per_epoch is None and not replacement:
            raise ConfigError(
                "Weighted(replacement=False) without per_epoch: an epoch of all examples would visit each once, "
                "whatever its weight\n"
                f"  next  give per_epoch=…, below {positive}, the number of examples with a weight above 0"
            )
        self._per_epoch = len(self._weights) if per_epoch is None else per_epoch
        most = positive if not replacement else None
        if isinstance(per_epoch, bool) or not isinstance(self._per_epoch, int) or self._per_epoch < 1:
            raise ConfigError(f"per_epoch={per_epoch!r}; expected how many examples an epoch visits, 1 or more")
        if most is not None and self._per_epoch > most:
            raise ConfigError(
                f"per_epoch={per_epoch}, and without replacement only the {most} examples with a weight above 0 can be "
                f"drawn\n  next  use per_epoch <= {most}, or replacement=True"
            )
        self._replacement = replacement

    def for_run(self, sizes: Sizes) -> EpochOrder:
        """Return this order as one run has it. Raises ConfigError where it does not fit."""
        if len(self._weights) != sizes.dataset_length:
            raise ConfigError(
                f"Weighted got {len(self._weights)} weights for a dataset of {sizes.dataset_length} examples; it needs "
                "one for each"
            )
        identity = {
            "kind": "weighted",
            "version": _OWN_VERSION,
            "permutation": VERSION,
            "replacement": self._replacement,
            "weights": hashlib.sha256(self._weights.astype("<f8").tobytes()).hexdigest()[:16],
        }
        drawn = _WithReplacement if self._replacement else _WithoutReplacement
        return drawn(self._weights, self._per_epoch, sizes.seed, identity)


class _WithReplacement:
    """Draws with replacement."""

    each: Each = "any"

    def __init__(self, weights: NDArray[np.float64], per_epoch: int, seed: int, identity: dict[str, Any]) -> None:
        self.length = per_epoch
        self.identity = identity
        self._cumulative = np.cumsum(weights)  # adds up one after the other, unlike sum()
        self._seed = seed

    def at(self, epoch: int, positions: Indices) -> tuple[Indices, Indices]:
        drawn = (random_words(derive("weighted", self._seed, epoch), positions) >> np.uint64(11)) * 2.0**-53
        # On the right of equal sums: an example of weight 0 has the same sum as the one before it.
        indices = np.searchsorted(self._cumulative, drawn * self._cumulative[-1], side="right")
        return epoch * self.length + positions, indices.astype(np.int64, copy=False)


class _WithoutReplacement:
    """Draws without replacement."""

    each: Each = "at most once"

    def __init__(self, weights: NDArray[np.float64], per_epoch: int, seed: int, identity: dict[str, Any]) -> None:
        self.length = per_epoch
        self.identity = identity
        self._weights = weights
        self._seed = seed
        self._sample = lru_cache(maxsize=2)(self._draw)  # a step may lie in two epochs

    def at(self, epoch: int, positions: Indices) -> tuple[Indices, Indices]:
        # The heaviest stand first in a sample.
        shuffled = permutation(self.length, "sample order", self._seed, epoch).at(positions)
        return np.full_like(positions, epoch), self._sample(epoch)[shuffled]

    def _draw(self, epoch: int) -> Indices:
        """Return an epoch's sample, the heaviest first; see the file's first lines."""
        positive = np.flatnonzero(self._weights)
        words = random_words(derive("sample", self._seed, epoch), positive)
        uniform = ((words >> np.uint64(12)) + 0.5) * 2.0**-52  # above 0 and below 1
        # The smallest ones: what drawing one after the other, each time from what is left, gives.
        first = np.argsort(_minus_log(uniform) / self._weights[positive], kind="stable")[: self.length]
        return positive[first].astype(np.int64, copy=False)


def _minus_log(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return -log to the last bits, which are the same everywhere, as those of np.log are not.

    It is -2 artanh((m - 1) / (m + 1)) of the mantissa m, by its series.
    """
    mantissa, exponent = np.frexp(numbers)
    small = mantissa < 0.7071067811865476
    mantissa[small] *= 2
    ratio = (mantissa - 1) / (mantissa + 1)
    square = ratio * ratio
    series = np.zeros_like(ratio)
    for odd in range(25, 0, -2):
        series = series * square + 1 / odd
    result: NDArray[np.float64] = (small - exponent) * 0.6931471805599453 - 2 * ratio * series
    return result


def _checked(weights: ArrayLike) -> NDArray[np.float64]:
    """Return the weights as float64. Raises ConfigError where they are none."""
    array = np.array(weights, dtype=np.float64)
    if array.ndim != 1 or not array.size:
        raise ConfigError(f"weights of shape {array.shape}; expected one number for each example of the dataset")
    wrong = np.flatnonzero(~(np.isfinite(array) & (array >= 0)))
    if wrong.size:
        raise ConfigError(f"weights[{wrong[0]}] = {array[wrong[0]]}; expected a finite number of 0 or more")
    if not np.isfinite(np.cumsum(array)[-1]) or not array.any():
        raise ConfigError(f"the weights add up to {np.cumsum(array)[-1]}; expected a finite number above 0")
    return array
