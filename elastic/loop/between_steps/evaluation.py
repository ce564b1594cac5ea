"""Sums a function over every example of a dataset, each exactly once, with the same bits at any world size.

The dataset is cut into batches that no world size changes; ranks take contiguous blocks of them, and
their sums are added along the same kind of tree as a step's. If workers are lost meanwhile, those of the next view make
it again, but for those who know its result; in the midst of an update, each of those who are left makes it alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import numpy as np
import torch

from elastic.config import Config
from elastic.data.data_plan import Examples
from elastic.data.loader import Loader, read_once
from elastic.errors import ConfigError, ExampleError, PeerLost, StepError
from elastic.events.observer import Observer
from elastic.group.buffers import Buffers
from elastic.group.fingerprint import Kind, announce
from elastic.group.form import Group, LocalGroup
from elastic.group.sums import ShareSums, StepSums, SubtreeSums
from elastic.group.tree import schedule
from elastic.loop.assignment import blocks
from elastic.loop.recovery import Recovery
from elastic.loop.session import Session
from elastic.membership.progress import Phase
from elastic.state.modules import roots
from elastic.state.randomness import derive, evaluated_seed
from elastic.state.sharding import Sharding


class Evaluations:
    """Makes evaluations on one worker, for as long as its session is open.

    are_made_alone  this worker joined late, and its script has not come to its loop: the others are past what it makes
    """

    def __init__(self, session: Session, recovery: Recovery) -> None:
        self._session = session
        self._context = session.context
        self._state = session.state
        self._recovery = recovery
        self._has_made_one = False
        self.are_made_alone = False

    def make(
        self,
        dataset: Any,
        function: Callable[..., Mapping[str, Any]],
        batch_size: int | None,
        collate_fn: Callable[[list[Any]], Any] | None,
    ) -> dict[str, Any]:
        """Evaluate with the workers of the view, or alone; see Run.evaluate."""
        session, state, context = self._session, self._state, self._context
        context.moment("evaluate")
        state.evaluations += 1
        position, ordinal = (state.epoch, state.step, 0), state.evaluations

        def sign(phase: Phase) -> None:
            session.train_state.staging.poll()
            first_s = None if self._has_made_one else context.progress.long_s  # it may compile
            declared_s = session.phases.long_section_s
            session.phases.sign(phase, first_s if declared_s is None and phase == Phase.EVALUATING else declared_s)

        def within(group: Group) -> dict[str, Any]:
            session.phases.enter(Phase.EVALUATING, math.inf)
            buffers = session.gradient_sync.buffers
            collate = collate_fn or context.config.data.collate_fn
            batched = (batch_size, collate)
            at_work = (sign, session.seed, session.phases.waiting, session.all_or_none)
            session.let_pass(True)
            try:
                return evaluate(context.config, group, dataset, function, batched, position, ordinal, at_work, buffers)
            finally:
                session.let_pass(False)

        def alone() -> dict[str, Any]:  # what it gives does not depend on who computes it
            return within(LocalGroup())

        def together() -> dict[str, Any]:
            try:
                return session.all_or_none(lambda: within(session.group))
            except PeerLost:
                # No other view comes once the run is over; and nobody would bring a whole state into one that comes in
                # the midst of an update: that is completed, and the next exchange fails.
                if not state.updating and (context.live is None or not state.finished):
                    raise
                session.group.abort()
                return alone()

        if self.are_made_alone:
            sums = alone()
        elif state.updating:
            sums = together()
        else:
            name = f"evaluation {ordinal}{'' if state.looped else ' before the loop'}"
            sums = self._recovery.agree(name, together, f"evaluating after step {state.step}")
        self._has_made_one = True
        if state.updating:
            session.phases.enter(Phase.COMPUTING)
        else:
            session.phases.enter_script()
        if session.compiling is not None:
            session.compiling.check(f"{state.step} steps are applied; what was evaluated is not given")
        at = state.step if state.looped else None
        session.seed(evaluated_seed(context.config.plan.seed, at, state.evaluations))
        return sums


def evaluate(
    config: Config,
    group: Group,
    dataset: Any,
    function: Callable[..., Mapping[str, Any]],
    batched: tuple[int | None, Callable[[list[Any]], Any] | None],
    position: tuple[int, int, int],
    ordinal: int,
    at_work: tuple[
        Callable[[Phase], None],
        Callable[[int], None],
        Callable[[], AbstractContextManager[None]],
        Callable[[Callable[[], None]], None],
    ],
    buffers: Buffers,
) -> dict[str, Any]:
    """Sum `function` over a dataset with the ranks of a group; see Run.evaluate.

    batched   a batch's size, None for a share's, and what makes one of examples
    position  (epoch, step, phase)
    ordinal   which evaluation since the last update, from 1
    at_work   tells with every batch what this worker is at, see membership/progress.py; seeds all generators; makes a
              context for waiting for the others; and has a replica's workers go on together
    buffers   what a forward pass moves of them, in eval mode too (observers, counters), is put back after each batch:
              all batches see the same ones, whoever computes them, and the run goes on with those that it had

    Raises PeerLost, CollectiveMismatch.
    """
    (batch_size, collate_fn), (sign, seed_all, waiting, all_or_none) = batched, at_work
    size = batch_size or -(-config.plan.batch_size // config.plan.virtual_workers)
    if not hasattr(dataset, "__len__") or len(dataset) == 0:
        raise ConfigError("evaluate needs a dataset with a length above 0, to see every example of it exactly once")
    sizes = (len(dataset), size)
    announced = announce(group, Kind.EVALUATION, step=position[1], ordinal=ordinal, batches=sizes, waiting=waiting)
    if config.replica_size > 1:  # their passes are made together: all of them, or none
        all_or_none(announced.check)
    batches = -(-len(dataset) // size)
    dealt = blocks(batches, group.world_size)
    mine = dealt[group.rank]
    seed = derive("evaluation", config.plan.seed, position[1])
    loader = Loader(
        dataset,
        seed=seed,
        observer=Observer(),
        collate_fn=collate_fn,
        interrupt=group.check if config.replica_size == 1 else _never,
        **config.loading(),
    )
    plan = schedule(batches, batches, tuple(dealt))
    sums = SubtreeSums()
    with _evaluating(list(roots(config.models, config.extra).values()), config.sharding), buffers.untouched():
        try:
            loader.open(_requests(len(dataset), size, mine, position[0]))
            for number, merges in zip(mine, plan.merges[group.rank], strict=True):
                if config.replica_size == 1:  # else mates would wait in a pass that this worker does not make
                    announced.poll()
                sign(Phase.READING)
                batch = _read(loader, position[1])
                sign(Phase.EVALUATING)
                seed_all(derive("evaluation batch", seed, number))  # by the batch, whoever computes it
                sums.push(_called(function, batch), merges)
                buffers.restore()
            for _ in range(_passes_of_mates(dealt, group.rank, config.replica_size) - len(mine)):
                examples = next(iter(_requests(len(dataset), size, range(1), position[0])))
                batch = read_once(dataset, examples, seed=seed, collate_fn=collate_fn, to=config.device)
                _called(function, batch)  # for nothing: a replica's workers make equally many passes
                buffers.restore()
        except PeerLost:
            with suppress(PeerLost):  # the first to know that scripts went different ways may have hung up
                announced.poll()
            group.abort()  # before the loader's end, which takes a moment
            raise
        finally:
            loader.close()
    sign(Phase.WAITING)
    announced.check()
    exchange = StepSums(group).exchange
    return exchange(position, sums.parts, count=0, requests=0, buffers=0, newly_moving=(), schedule=plan).sums


def _never() -> None:
    """Interrupt no wait."""


def _passes_of_mates(dealt: Sequence[range], rank: int, size: int) -> int:
    """Return how many passes each worker of this rank's replica makes."""
    first = rank - rank % size
    return max(len(batches) for batches in dealt[first : first + size])


def _read(loader: Loader, step: int) -> Any:
    try:
        return loader.next().batch
    except ExampleError as error:
        error.read_for = f"an evaluation, {step} steps being applied"
        raise


def _requests(length: int, size: int, mine: range, epoch: int) -> Iterator[Examples]:
    """Yield the examples of this rank's batches, in order."""
    for number in mine:
        indices = np.arange(number * size, min((number + 1) * size, length), dtype=np.int64)
        yield Examples(np.full(len(indices), epoch, dtype=np.int64), indices)


def _called(function: Callable[..., Mapping[str, Any]], batch: Any) -> ShareSums:
    """Return the sums that the function gives for a batch. Raises StepError."""
    result = function(*batch) if isinstance(batch, (tuple, list)) else function(batch)
    if not isinstance(result, Mapping):
        raise StepError(
            f"the function given to evaluate returned a {type(result).__name__}; expected a dict of sums by name"
        )
    added = ShareSums()
    for name, value in result.items():
        added.add(name, value)
    return added


@contextmanager
def _evaluating(models: Sequence[torch.nn.Module], sharding: Sharding | None) -> Iterator[None]:
    """Set eval mode, and no gradients, within the block; every module gets its own mode back."""
    modes = [(module, module.training) for model in models for module in model.modules()]
    for model in models:
        model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        if sharding is not None:
            sharding.reshard()
        for module, training in modes:
            module.training = training
