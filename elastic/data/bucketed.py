"""Batches of examples of similar length, in shuffled order; each epoch visits every example once.

The examples are sorted by length, once: 8 bytes an example. A bucket is a number of consecutive batches of that; within
it each epoch shuffles the examples, and cuts them into batches anew; the batches of all buckets come in shuffled order.
Both shuffles are permutations with random access, so a batch in the middle of an epoch costs what the first does. What
fills no batch, the epoch's last batch, is cut out of the sorted examples at a place that every epoch draws.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from elastic.data.order import Each, EpochOrder, Indices, Sizes, permutation
from elastic.data.permutation import VERSION
from elastic.errors import ConfigError
from elastic.state.randomness import derive

_OWN_VERSION = 1
_BATCHES_MIN, _BATCHES_MAX = 4, 50  # of a bucket, by default; between, an eighth of all


class Bucketed:
    """An order: each epoch visits every example once, in batches of similar length; the batches come in any order.

    A batch is a step's: `Run(batch_size=…)` examples. Its shares and micro-batches are parts of it, so that they are of
    similar length, too.

    Args:
        lengths: One number for each example of the dataset.
        batches_per_bucket: How many batches' examples mix; more make batches of more different lengths, and fewer let
            the same examples meet again and again. Default: an eighth of an epoch's batches, but 4 to 50.

    Raises:
        ConfigError: lengths is no list of numbers. By `Run`: `Data(last_batch="carry")` would have batches reach from
            one bucket into another.
    """

    def __init__(self, lengths: ArrayLike, *, batches_per_bucket: int | None = None) -> None:
        array = np.asarray(lengths)
        if array.ndim != 1 or array.dtype.kind not in "iuf" or not np.isfinite(array).all():
            raise ConfigError(
                f"lengths of shape {array.shape} and type {array.dtype}; expected a number for each example"
            )
        per_bucket = batches_per_bucket
        if per_bucket is not None and (
            isinstance(per_bucket, bool) or not isinstance(per_bucket, int) or per_bucket < 1
        ):
            raise ConfigError(f"batches_per_bucket={per_bucket!r}; expected a number of batches, 1 or more, or None")
        self._by_length = np.argsort(array, kind="stable")
        self._batches_per_bucket = batches_per_bucket

    def for_run(self, sizes: Sizes) -> EpochOrder:
        """Return this order as one run has it. Raises ConfigError where it does not fit."""
        if len(self._by_length) != sizes.dataset_length:
            raise ConfigError(
                f"Bucketed got {len(self._by_length)} lengths for a dataset of {sizes.dataset_length} examples; it "
                "needs one for each"
            )
        if sizes.last_batch == "carry" and sizes.dataset_length % sizes.batch_size:
            raise ConfigError(
                f'last_batch="carry" with Bucketed: {sizes.dataset_length} examples are no multiple of batch_size = '
                f"{sizes.batch_size}, and from the second epoch on batches would reach from one bucket into another\n"
                '  next  use last_batch="short" or "drop"'
            )
        return _Bucketed(self._by_length, self._batches_per_bucket, sizes)


class _Bucketed:
    each: Each = "once"

    def __init__(self, by_length: Indices, batches_per_bucket: int | None, sizes: Sizes) -> None:
        self.length = sizes.dataset_length
        self._by_length = by_length
        self._batch = sizes.batch_size
        self._batches, self._tail = divmod(self.length, self._batch)
        self._per_bucket = batches_per_bucket or max(_BATCHES_MIN, min(_BATCHES_MAX, self._batches // 8))
        self._seed = sizes.seed
        self.identity: dict[str, Any] = {
            "kind": "bucketed",
            "version": _OWN_VERSION,
            "permutation": VERSION,
            "batches_per_bucket": self._per_bucket,
            "lengths": hashlib.sha256(by_length.astype("<i8").tobytes()).hexdigest()[:16],
        }

    def at(self, epoch: int, positions: Indices) -> tuple[Indices, Indices]:
        # The epoch's last batch, which is not full, is cut out of the sorted examples at a place that every epoch
        # draws.
        cut = derive("tail", self._seed, epoch) % (self._batches + 1) * self._batch
        full = positions < self._batches * self._batch
        ranks = np.empty_like(positions)
        ranks[~full] = cut + positions[~full] - self._batches * self._batch
        among_full = self._shuffled(epoch, positions[full])
        ranks[full] = among_full + self._tail * (among_full >= cut)
        return np.full_like(positions, epoch), self._by_length[ranks]

    def _shuffled(self, epoch: int, positions: Indices) -> Indices:
        """Return, for positions in full batches, the ranks among the examples of full batches, by length."""
        slots, offsets = np.divmod(positions, self._batch)
        batches = permutation(self._batches, "batches", self._seed, epoch).at(slots) if slots.size else slots
        buckets = batches // self._per_bucket
        ranks = batches * self._batch + offsets
        for bucket in np.unique(buckets).tolist():
            here = buckets == bucket
            start = bucket * self._per_bucket * self._batch
            end = min(start + self._per_bucket * self._batch, self._batches * self._batch)
            ranks[here] = start + permutation(end - start, "bucket", self._seed, epoch, bucket).at(ranks[here] - start)
        return ranks
