"""Which examples does each share of a step read? A pure function of the configuration and the step's index.

Promises  the plan knows no ranks: shares are the same at every world size, and ranks only carry shares
          (loop/assignment.py). A run that goes on with 6 workers instead of 8 continues the same order.
          Every position of every epoch is read once ("drop" leaves out the tail that fills no batch).
          A step costs O(batch), wherever it lies in however large a dataset.
Leaves    which example stands at a position to order.py, loading to loader.py, the share's random stream to
          state/randomness.py, arithmetic to group/.

Step s of an epoch reads the positions [s * B, (s + 1) * B) of its order.
Shares may differ by one example, so gradients are summed and divided by the step's global count; averaging
the shares' means would weigh examples unequally. In the formulas B is `batch_size` and V `virtual_workers`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from elastic.data.order import EpochOrder, Order, Shuffled, Sizes
from elastic.data.permutation import LENGTH_MAX
from elastic.errors import ConfigError
from elastic.state.randomness import check_seed

_TOGETHER = 4096  # positions

LastBatch = Literal["short", "drop", "carry"]


@dataclass(frozen=True, kw_only=True)
class DataPlan:
    """The configuration that decides which examples a run reads. Raises ConfigError if it cannot work.

    order             which examples an epoch reads, and in which order
    last_batch        the end of an epoch that fills no batch: "short" trains on it as a smaller batch, "drop"
                      leaves it out, "carry" fills it up with the beginning of the next epoch
    micro_batch_size  the most examples in one forward pass, or None for a whole share
    epochs, steps     where the run ends: at least one of them, and the earlier end counts
    """

    dataset_length: int
    batch_size: int
    virtual_workers: int
    seed: int
    last_batch: LastBatch = "short"
    micro_batch_size: int | None = None
    epochs: int | None = None
    steps: int | None = None
    order: Order = field(default_factory=Shuffled)

    def __post_init__(self) -> None:
        _check(self)

    @cached_property
    def epoch_order(self) -> EpochOrder:
        """Return the order over this run's dataset. Raises ConfigError if it does not fit."""
        sizes = Sizes(
            dataset_length=self.dataset_length,
            batch_size=self.batch_size,
            last_batch=self.last_batch,
            seed=self.seed,
        )
        return self.order.for_run(sizes)

    @property
    def order_identity(self) -> dict[str, Any]:
        """Return what is recorded of the order; two entries are there only where an epoch is not every example once."""
        order = self.epoch_order
        length = {} if order.length == self.dataset_length else {"epoch_length": order.length}
        return {**order.identity, **length, **({} if order.each == "once" else {"each": order.each})}

    @property
    def epoch_length(self) -> int:
        """Return how many examples an epoch reads, its tail included."""
        return self.epoch_order.length

    @property
    def steps_per_epoch(self) -> int | None:
        """Return the steps in every epoch; None under "carry", where epochs differ by one step or share one."""
        if self.last_batch == "carry":
            return None
        if self.last_batch == "drop":
            return self.epoch_length // self.batch_size
        return _ceil(self.epoch_length, self.batch_size)

    def first_step_of(self, epoch: int) -> int:
        """Return the first step that begins in an epoch, if the run has no end before."""
        per_epoch = self.steps_per_epoch
        return _ceil(epoch * self.epoch_length, self.batch_size) if per_epoch is None else epoch * per_epoch

    @property
    def total_steps(self) -> int:
        """Return how many steps the run has, to the earlier of its ends."""
        ends = [] if self.steps is None else [self.steps]
        if self.epochs is not None:
            per_epoch = self.steps_per_epoch
            whole = _ceil(self.epochs * self.epoch_length, self.batch_size)
            ends.append(whole if per_epoch is None else self.epochs * per_epoch)
        return min(ends)

    def read_at(self, epoch: int, first: int, end: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return visits and indices at the positions first … end - 1 of an epoch."""
        number = first // _TOGETHER
        if (end - 1) // _TOGETHER == number:
            # Steps follow each other, and for a few thousand positions the order takes little longer than for a batch.
            visits, indices = self._some(epoch, number)
            part = slice(first - number * _TOGETHER, end - number * _TOGETHER)
            return visits[part], indices[part]
        return self.epoch_order.at(epoch, np.arange(first, end, dtype=np.int64))

    @cached_property
    def _some(self) -> Callable[[int, int], tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Return a function that gives a block of an epoch's order by its number, and keeps the last two."""

        def some(epoch: int, number: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
            end = min((number + 1) * _TOGETHER, self.epoch_length)
            return self.epoch_order.at(epoch, np.arange(number * _TOGETHER, end, dtype=np.int64))

        return lru_cache(maxsize=2)(some)

    def step(self, index: int) -> StepPlan:
        """Return the step with this index, counted from 0 over the whole run. Raises IndexError beyond its end."""
        if not 0 <= index < self.total_steps:
            raise IndexError(f"step {index} of a run of {self.total_steps} steps, counted from 0")
        length, batch = self.epoch_length, self.batch_size
        per_epoch = self.steps_per_epoch
        if per_epoch is None:
            first = index * batch
            end = first + batch if self.epochs is None else min(first + batch, self.epochs * length)
            epoch = first // length
            step_in_epoch = index - _ceil(epoch * length, batch)
        else:
            epoch, step_in_epoch = divmod(index, per_epoch)
            first = epoch * length + step_in_epoch * batch
            end = min(first + batch, (epoch + 1) * length)
        ends_epoch = end >= (epoch + 1) * length if per_epoch is None else step_in_epoch == per_epoch - 1
        return StepPlan(
            index=index,
            epoch=epoch,
            step_in_epoch=step_in_epoch,
            last_of_epoch=ends_epoch,
            count=end - first,
            sizes=share_sizes(end - first, batch, self.virtual_workers),
            first_position=first,
            plan=self,
        )


@dataclass(frozen=True, kw_only=True)
class StepPlan:
    """The examples of one step, and how its shares divide them.

    epoch          of the step's first example (under "carry" a step may reach into later epochs)
    step_in_epoch  counted from 0 among the steps that begin in this epoch
    last_of_epoch  no later step reads this epoch (under "drop": the steps of this epoch end here)
    count          examples in the step: batch_size, or fewer in a short one
    sizes          examples per share that has any: shares 0 … len(sizes)-1; the other virtual workers rest
    first_position the first example's place in the epochs laid end to end
    """

    index: int
    epoch: int
    step_in_epoch: int
    last_of_epoch: bool
    count: int
    sizes: tuple[int, ...]
    first_position: int
    plan: DataPlan = field(repr=False)

    def examples(self, share: int) -> Examples:
        """Return the share's examples, in order. Raises IndexError for a share that is empty in this step."""
        return self._all[self._range(share)]

    def examples_of(self, shares: range) -> Examples:
        """Return the examples of neighbouring shares, of which there is at least one, in order."""
        return self._all[self._range(shares[0]).start : self._range(shares[-1]).stop]

    def pieces(self, share: int) -> int:
        """Return into how many micro-batches the share is cut."""
        size = self.plan.micro_batch_size
        # As many as the largest share needs, so that what counts forward passes agrees over the shares.
        return 1 if size is None else min(self.sizes[share], _ceil(max(self.sizes), size))

    def micro_batches(self, share: int) -> list[Examples]:
        """Return the share's examples, cut into near-equal pieces of at most `micro_batch_size`."""
        examples, pieces = self.examples(share), self.pieces(share)
        if pieces == 1:
            return [examples]
        # Near-equal, so that none is a sliver of one example, which BatchNorm cannot train on.
        return [examples[slice(*_piece(i, pieces, len(examples)))] for i in range(pieces)]

    @property
    def indices(self) -> NDArray[np.int64]:
        """Return all of the step's dataset indices, share after share: int64[count]."""
        return self._all.indices

    def _range(self, share: int) -> slice:
        if not 0 <= share < len(self.sizes):
            raise IndexError(f"share {share} of step {self.index}, which has {len(self.sizes)} shares with examples")
        return slice(*_piece(share, len(self.sizes), self.count))

    @cached_property
    def _all(self) -> Examples:
        """Return all examples of the step, which may reach over ends of epochs."""
        order, end = self.plan.epoch_order, self.first_position + self.count
        length = order.length
        parts: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        at = self.first_position
        while at < end:
            epoch = at // length
            until = min(end, (epoch + 1) * length)
            parts.append(self.plan.read_at(epoch, at - epoch * length, until - epoch * length))
            at = until
        if len(parts) == 1:
            return Examples(*parts[0])
        return Examples(
            np.concatenate([visits for visits, _ in parts]), np.concatenate([indices for _, indices in parts])
        )


@dataclass(eq=False)
class Examples:
    """Some examples in reading order: visits int64[n] and dataset indices int64[n].

    A visit is the epoch; in orders that visit an example several times in an epoch, see EpochOrder.at.
    """

    visits: NDArray[np.int64]
    indices: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, part: slice) -> Examples:
        return Examples(self.visits[part], self.indices[part])


def share_sizes(count: int, batch_size: int, virtual_workers: int) -> tuple[int, ...]:
    """Return the examples per share: a step of `count` fills the fewest shares of nominal size, near-equally."""
    # The tail of an epoch fills fewer, and not V slivers: BatchNorm cannot train on a share of one example.
    shares = virtual_workers if count == batch_size else _ceil(count, _ceil(batch_size, virtual_workers))
    edges = [i * count // shares for i in range(shares + 1)]
    return tuple(high - low for low, high in pairwise(edges))


def _piece(i: int, parts: int, count: int) -> tuple[int, int]:
    """Return where part i of `count` things begins and ends when they are cut near-equally."""
    return i * count // parts, (i + 1) * count // parts


def _ceil(total: int, per: int) -> int:
    return -(-total // per)


def _check(plan: DataPlan) -> None:
    """Raise ConfigError for a plan that cannot work."""
    check_seed(plan.seed)
    for name in ("dataset_length", "batch_size", "virtual_workers", "epochs", "steps"):
        value = getattr(plan, name)
        if value is not None or name not in ("epochs", "steps"):
            _check_count(name, value)
    check_batching(plan.order, plan.last_batch, plan.micro_batch_size)
    batch, workers = plan.batch_size, plan.virtual_workers
    if plan.dataset_length > LENGTH_MAX:
        raise ConfigError(f"a dataset of {plan.dataset_length} examples; orders are computed for up to {LENGTH_MAX}")
    if batch < workers:
        raise ConfigError(
            f"batch_size = {batch} gives {workers} virtual workers {batch} / {workers} = {batch / workers:.2f} "
            f"examples each; every share of a full batch needs one. Use batch_size >= {workers}, or "
            f"virtual_workers <= {batch}."
        )
    if plan.epochs is None and plan.steps is None:
        raise ConfigError(
            "neither epochs nor steps is given, so the run has no end; pass epochs=20, say, or steps=10_000"
        )
    length = plan.epoch_length
    if plan.last_batch == "drop" and length < batch:
        raise ConfigError(
            f'last_batch = "drop" leaves nothing: {length} examples fill no batch of {batch}. '
            f'Use batch_size <= {length}, or last_batch = "short" or "carry".'
        )


def check_batching(order: Any, last_batch: Any, micro_batch_size: Any) -> None:
    """Raise ConfigError for what is no order, no way to end an epoch, or no size of a piece; None is a default."""
    if order is not None and (not isinstance(order, Order) or isinstance(order, type)):
        raise ConfigError(f"order={order!r}; expected one of elastic.orders, such as elastic.orders.Shuffled()")
    if last_batch not in ("short", "drop", "carry"):
        raise ConfigError(f'last_batch = {last_batch!r}; expected "short", "drop" or "carry"')
    if micro_batch_size is not None:
        _check_count("micro_batch_size", micro_batch_size)


def _check_count(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name} = {value!r} is a {type(value).__name__}; expected an integer")
    if value < 1:
        raise ConfigError(f"{name} = {value}; expected 1 or more")
