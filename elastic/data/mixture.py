"""Several datasets in exact proportions: at any time, each has come up as often as it should, to less than one example.

The proportions are whole numbers over a period: 0.7, 0.2 and 0.1 are 7, 2 and 1 of every 10 positions. Within a period
the positions are dealt as a processor is to periodic tasks: the j-th example of a dataset with proportion p may come
from position (j - 1) / p on and has to come by j / p, and of those that may come the one comes that has to come first.
That meets every deadline (Baruah, Cohen, Plaxton and Varvel 1996, doi:10.1007/BF01940883), which says that no prefix
differs by one. The period repeats, through the ends of epochs, so any position is computed from the table.

Each dataset has its own shuffle, and goes on from its own epoch to its next: whichever ends first begins again.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import accumulate
from typing import Any

import numpy as np
from torch.utils.data import ConcatDataset

from elastic.data.order import Each, EpochOrder, Indices, Sizes, permutation
from elastic.data.permutation import VERSION
from elastic.errors import ConfigError

_OWN_VERSION = 1
PERIOD_MAX = 100_000  # of the table: 6 bytes a position, and 0.1 s to make


class Mixture:
    """Visits several datasets in exact proportions, each in a shuffled order of its own, again and again.

        mixture = elastic.orders.Mixture({"web": (web, 0.7), "code": (code, 0.2), "books": (books, 0.1)})
        with elastic.Run(…, dataset=mixture.dataset, data=elastic.Data(order=mixture), steps=10_000) as run:

    Args:
        parts: A dataset and its proportion by name. Proportions are relative to their sum; 0.1 means a tenth exactly.
            The name belongs to the dataset's order: another one shuffles otherwise.
        epoch_length: How many examples the run's epochs visit. Default: as many as the datasets have together. Epochs
            of the run cut the mixture into pieces, and nothing else: it goes on as if there were none.

    Attributes:
        dataset: The datasets, one after the other, for `Run(dataset=…)`.

    Raises:
        ConfigError: A part is not a dataset and a proportion, or the proportions repeat after 100,000 examples only.
    """

    def __init__(self, parts: Mapping[str, tuple[Any, float]], *, epoch_length: int | None = None) -> None:
        if not parts:
            raise ConfigError("Mixture({}) is empty; give it a dataset and its proportion by name")
        self._names = list(parts)
        self._lengths = [_length(name, part) for name, part in parts.items()]
        self._counts = _counts({name: part[1] for name, part in parts.items()})
        self.dataset: Any = ConcatDataset([part[0] for part in parts.values()])
        self._epoch_length = sum(self._lengths) if epoch_length is None else epoch_length
        if isinstance(epoch_length, bool) or not isinstance(self._epoch_length, int) or self._epoch_length < 1:
            raise ConfigError(f"epoch_length={epoch_length!r}; expected how many examples an epoch visits, 1 or more")

    def for_run(self, sizes: Sizes) -> EpochOrder:
        """Return this order as one run has it. Raises ConfigError for a dataset that is not the mixture's."""
        if sizes.dataset_length != sum(self._lengths):
            raise ConfigError(
                f"the mixture is of {sum(self._lengths)} examples, and the dataset has {sizes.dataset_length}\n"
                "  next  give Run(dataset=mixture.dataset, data=Data(order=mixture))"
            )
        return _Mixed(self._names, self._lengths, self._counts, self._epoch_length, sizes.seed)


class _Mixed:
    each: Each = "any"

    def __init__(
        self, names: Sequence[str], lengths: Sequence[int], counts: Sequence[int], epoch_length: int, seed: int
    ) -> None:
        self.length = epoch_length
        self.identity = {
            "kind": "mixture",
            "version": _OWN_VERSION,
            "permutation": VERSION,
            "parts": [list(part) for part in zip(names, lengths, counts, strict=True)],
        }
        self._names = names
        self._lengths = lengths
        self._starts = list(accumulate(lengths, initial=0))
        self._counts = counts
        self._part = np.array(interleaved(counts), dtype=np.int16)
        self._rank = np.empty(len(self._part), dtype=np.int32)  # among the period's positions of the same part
        for part, count in enumerate(counts):
            self._rank[self._part == part] = np.arange(count)
        self._seed = seed

    def at(self, epoch: int, positions: Indices) -> tuple[Indices, Indices]:
        periods, offsets = np.divmod(epoch * self.length + positions, len(self._part))
        parts = self._part[offsets]
        visits, indices = np.empty_like(positions), np.empty_like(positions)
        for part in np.unique(parts).tolist():
            here = parts == part
            count = periods[here] * self._counts[part] + self._rank[offsets[here]]
            visits[here], indices[here] = self._visited(part, count)
        return visits, indices

    def _visited(self, part: int, count: Indices) -> tuple[Indices, Indices]:
        """Return one dataset's visits and indices. count: how many of its examples came before each."""
        epochs, within = np.divmod(count, self._lengths[part])
        indices = np.empty_like(count)
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            order = permutation(self._lengths[part], "mixture", self._names[part], self._seed, epoch)
            indices[here] = order.at(within[here])
        return epochs, self._starts[part] + indices


def interleaved(counts: Sequence[int]) -> list[int]:
    """Return which part comes at each position of a period of sum(counts).

    After n positions part i has come up n * counts[i] / sum(counts) times, to less than one.
    """
    period = sum(counts)
    done = [0] * len(counts)
    coming = [(0, part) for part in range(len(counts))]  # from when on its next one may come
    ready: list[tuple[int, int]] = []  # by when it has to have come
    dealt = []
    for position in range(period):
        while coming and coming[0][0] <= position:
            part = heapq.heappop(coming)[1]
            heapq.heappush(ready, (-(-(done[part] + 1) * period // counts[part]), part))
        part = heapq.heappop(ready)[1]  # of those that may come, the one that has to come first
        dealt.append(part)
        done[part] += 1
        heapq.heappush(coming, (done[part] * period // counts[part], part))
    return dealt


def _length(name: str, part: Any) -> int:
    """Return how many examples a part has. Raises ConfigError for what is no part."""
    if not isinstance(name, str) or not isinstance(part, tuple) or len(part) != 2 or not hasattr(part[0], "__len__"):
        raise ConfigError(
            f"{name!r}: {part!r} in a Mixture; expected {{'name': (dataset, proportion), …}}, with datasets that have "
            "a length"
        )
    if not len(part[0]):
        raise ConfigError(f"dataset {name!r} of the mixture is empty; leave it out")
    return len(part[0])


def _counts(proportions: Mapping[str, float]) -> list[int]:
    """Return the smallest whole numbers in these proportions. Raises ConfigError if they add up to over PERIOD_MAX."""
    for name, value in proportions.items():
        if isinstance(value, bool) or not isinstance(value, int | float | Fraction) or not 0 < value < math.inf:
            raise ConfigError(f"the proportion of {name!r} is {value!r}; expected a number above 0")
    exact = [Fraction(str(value)) for value in proportions.values()]  # 0.1 as it was written: a tenth
    common = math.lcm(*(value.denominator for value in exact))
    whole = [int(value * common) for value in exact]
    counts = [value // math.gcd(*whole) for value in whole]
    if sum(counts) > PERIOD_MAX:
        rounded = {
            name: max(1, round(1000 * value / sum(exact))) for name, value in zip(proportions, exact, strict=True)
        }
        raise ConfigError(
            f"the proportions {dict(proportions)} repeat after {sum(counts):,} examples, at most {PERIOD_MAX:,} are "
            f"dealt exactly\n  next  round them, to {rounded} say"
        )
    return counts
