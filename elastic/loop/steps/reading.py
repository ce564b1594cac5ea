"""Reads the batches of one step, and collects what this worker's shares add to it.

`Reader` reads: a share of this worker's own from its loader, any other one beside that. `Contribution` holds what
travels: the sums of each share, and what its loss is of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from elastic.data.data_plan import Examples, StepPlan
from elastic.data.loader import LeftOut, Loaded
from elastic.errors import ExampleError
from elastic.events import schema
from elastic.events.timing import DATA
from elastic.group.sums import COUNT, LEFT_OUT, ShareSums
from elastic.loop.gradient_sync import nothing_to_read
from elastic.loop.session import Session
from elastic.membership.progress import Phase
from elastic.record import share_digests

T = TypeVar("T")


class Reader:
    """Reads batches of one step.

    indices  the examples of this worker's own shares, as they are read
    """

    def __init__(self, session: Session, plan: StepPlan) -> None:
        self._session = session
        self._config = session.context.config
        self._plan = plan
        self.indices: list[NDArray[np.int64]] = []

    def next(self) -> Loaded:
        """Return the next batch of this worker's own. Raises ExampleError."""
        loaded = self._read(self._session.loader.next)
        self.indices.append(loaded.indices)
        return loaded

    def beside(self, share: int) -> Any:
        """Return the first micro-batch of any share; None: all of its examples are left out. Raises ExampleError."""
        return self.examples(self._plan.micro_batches(share)[0])

    def examples(self, examples: Examples) -> Any:
        """Return a batch of these, which nobody counts; None: all are left out. Raises ExampleError."""
        return self._read(partial(self._session.read_beside, examples))

    def stand_in(self) -> Any:
        """Return a batch for a body that has none of its own to count. Raises StepError where none can be read."""
        for share in range(len(self._plan.sizes)):
            batch = self.beside(share)
            if batch is not None:
                return batch
        raise nothing_to_read(self._plan.index, self._plan.count)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Say within the block that this worker reads, once it is sure that others still take part. Raises PeerLost."""
        session, stopwatch = self._session, self._session.context.stopwatch
        session.train_state.staging.poll()
        session.gradient_sync.announced.poll()
        session.group.check()
        session.phases.sign(Phase.READING)
        before = stopwatch.at(DATA)
        try:
            yield
        finally:
            stopwatch.at(before)
            session.phases.sign(Phase.COMPUTING)

    def _read(self, read: Callable[[], T]) -> T:
        try:
            return read()
        except ExampleError as error:
            error.read_for = f"step {self._plan.index}"
            error.may_be_left_out = self._config.streams is None and self._config.data.on_bad_example == "raise"
            raise


class Contribution:
    """What this worker's shares add to a step.

    sums   of each share, in the order in which they are passed
    count  what their losses are of, as far as that is whole numbers
    """

    def __init__(self) -> None:
        self.sums: list[ShareSums] = []
        self.count = 0
        self._read: list[int] = []  # of each share a digest of its batches; 0: it is not known
        self._losses: list[list[float]] = []  # of each share, as far as they are seen

    def begin_share(self) -> None:
        """Add to another share's sums from here on."""
        self.sums.append(ShareSums())
        self._read.append(1)
        self._losses.append([])

    def has_read(self, digest: int) -> None:
        """Take the digest of a batch of the share in hand; 0: it is not known."""
        before = self._read[-1]
        self._read[-1] = digest if before == 1 or not (digest and before) else share_digests.both(before, digest)

    def has_lost(self, loss: torch.Tensor) -> None:
        """Take the loss of the share in hand, where nobody has to wait for it."""
        if loss.is_cpu:
            self._losses[-1].append(loss.item())

    def digests(self, batches: Sequence[range]) -> list[int]:
        """Return what each share has read and given, for the step's record; batches: the shares, each alone."""
        return [
            share_digests.packed(batch[0], read, share_digests.gave(losses, sums.values))
            for batch, read, losses, sums in zip(batches, self._read, self._losses, self.sums, strict=True)
        ]

    def add(self, values: Mapping[str, Any], *, of_nothing: bool = False) -> None:
        """Add to the sums of the share in hand. of_nothing: see ShareSums.add."""
        for name, value in values.items():
            self.sums[-1].add(name, value, of_nothing=of_nothing)

    def count_in(self, items: float) -> None:
        """Count what the loss of the share in hand is of."""
        if isinstance(items, int):
            self.count += items
        else:  # what is no integer is added in the shares' order, as sums are
            self.sums[-1].add(COUNT, items)

    def leave_out(self, examples: Sequence[LeftOut], session: Session, *, step: int, attempt: int, share: int) -> None:
        """Count examples that raised as left out, and record each."""
        self.sums[-1].add(LEFT_OUT, len(examples))
        for one in examples:
            event = schema.ExampleLeftOut(step=step, attempt=attempt, share=share, **vars(one))
            session.context.events.emit(event)
