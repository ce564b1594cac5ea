"""In which order does a run visit the examples? The protocol, and the two orders that need nothing but a length.

Promises  an order has random access: any position of any epoch, at once, as a function of (seed, epoch, position), the
          same on every platform and in every process. It takes the memory of what the user gave, or none.
          What decides it is recorded with the run, by `identity`, and a run with another one is refused.
Leaves    steps, shares and the end of an epoch to data_plan.py. Other orders: weighted.py, mixture.py, bucketed.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from elastic.data.permutation import VERSION, Permutation
from elastic.state.randomness import derive

Indices = NDArray[np.int64]
Each = Literal["once", "at most once", "any"]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The sizes and the seed of a run, over which its order is laid.

    Args:
        dataset_length: Examples in the dataset.
        batch_size: Examples in a full step.
        last_batch: "short", "drop" or "carry", see `Run`.
        seed: The run's.
    """

    dataset_length: int
    batch_size: int
    last_batch: str
    seed: int


class EpochOrder(Protocol):
    """A run's order: a pure function of epoch and position. An epoch has `length` positions, counted from 0."""

    @property
    def length(self) -> int:
        """Return the positions of every epoch; they need not be as many as the dataset has examples."""
        ...

    @property
    def each(self) -> Each:
        """Return how often an epoch visits each example of the dataset; a drill checks less if it is not once each."""
        ...

    @property
    def identity(self) -> dict[str, Any]:
        """Return what two runs of this order must have equal, beside Sizes: JSON, flat, with `kind` and `version`."""
        ...

    def at(self, epoch: int, positions: Indices) -> tuple[Indices, Indices]:
        """Return which examples stand at these positions.

        Args:
            epoch: From 0.
            positions: Any shape, int64, each from 0 to `length` - 1.

        Returns:
            visits: Like `positions`: the numbers that with an example's index name its visit. The visit's random stream
                (augmentation) is drawn from both: the visit is the epoch where an epoch visits each example once at
                most.
            indices: Like `positions`: the examples, from 0 to dataset_length - 1.
        """
        ...


@runtime_checkable
class Order(Protocol):
    """A way to visit examples, for any run: what `Data(order=…)` takes."""

    def for_run(self, sizes: Sizes) -> EpochOrder:
        """Return this order as one run has it.

        Raises:
            ConfigError: It does not fit the run's sizes.
        """
        ...


@lru_cache(maxsize=64)
def permutation(length: int, *key: int | str) -> Permutation:
    """Return the shuffle of this length that belongs to this key, see randomness.derive."""
    return Permutation(length, derive(*key))


@dataclass(frozen=True)
class Shuffled:
    """Each epoch visits every example once, in an order of its own. The default.

    The order is computed and not stored, for datasets of up to 2**62 examples.
    """

    def for_run(self, sizes: Sizes) -> EpochOrder:
        return _Shuffled(sizes)


@dataclass(frozen=True)
class Sequential:
    """Each epoch visits every example once, in the dataset's order."""

    def for_run(self, sizes: Sizes) -> EpochOrder:
        return _Sequential(sizes)


class _EachOnce:
    """The common part of orders whose epochs visit every example once."""

    each: Each = "once"

    def __init__(self, sizes: Sizes) -> None:
        self.length = sizes.dataset_length
        self._seed = sizes.seed


class _Shuffled(_EachOnce):
    @property
    def identity(self) -> dict[str, Any]:
        return {"kind": "shuffled", "version": VERSION}

    def at(self, epoch: int, positions: Indices) -> tuple[Indices, Indices]:
        return np.full_like(positions, epoch), permutation(self.length, "epoch order", self._seed, epoch).at(positions)


class _Sequential(_EachOnce):
    @property
    def identity(self) -> dict[str, Any]:
        return {"kind": "sequential", "version": 1}

    def at(self, epoch: int, positions: Indices) -> tuple[Indices, Indices]:
        return np.full_like(positions, epoch), positions
