"""What exact gradients are made of: opened, computed, closed, and the step committed.

    open     from here on a failure leaves a torn state; the modules get the step's buffers
    compute  clip, optimizers, schedulers (`default_update`), or what the script passes as `update=`, and its `on_apply`
    close    the state is that of the next step, and whole as far as this worker's own doing goes
    commit   the step is announced: to the event log, and to whoever waits for it

Every worker holds the same exact gradients and does the same arithmetic, so every worker ends with the same bits.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from elastic.config import Config
from elastic.events import schema
from elastic.events.digests import digest_of_indices, digest_of_sums, plain_values
from elastic.events.event import ABSENT
from elastic.group.sums import Agreed
from elastic.loop.session import Session
from elastic.loop.step import Step
from elastic.loop.step_in_hand import StepInHand


class Update:
    """The only place that changes the model.

    compute  what is done with exact gradients
    also     is called as part of it, at its end: the functions given to `on_apply`, if any
    """

    def __init__(
        self, session: Session, compute: Callable[[Step], None], also: Callable[[Step | StepInHand], bool]
    ) -> None:
        self._session = session
        self._context = session.context
        self._state = session.state
        self._compute = compute
        self._also = also

    def __call__(self, step: Step, agreed: Agreed) -> None:
        self._open()
        self._compute(step)
        self._also(step)
        self._close(agreed)
        if self._context.live is not None:
            self._session.train_state.applied.note()
        step.in_hand.applied = True
        self._commit(step.in_hand)

    def begin_own(self) -> None:
        """Of a loop that updates by its own code.

        What that changes beside the models and their optimizers is noted as it is now: a worker that takes the step
        over goes on right here, and runs that code itself.
        """
        self._open()
        if self._context.live is not None:
            self._session.train_state.applied.note_surroundings()

    def end_own(self, step: StepInHand, agreed: Agreed) -> None:
        also = self._also(step)
        self._close(agreed)
        if self._context.live is not None:
            self._session.train_state.applied.note_own_update(also=also)
        step.applied = True
        self._commit(step)

    def _open(self) -> None:
        self._state.begin_update()
        self._context.moment("update")
        if self._context.live is not None:
            self._session.train_state.applied.look()
        self._session.exchange.buffers.apply()

    def _close(self, agreed: Agreed) -> None:
        self._state.step += 1
        self._state.end_update(agreed)

    def _commit(self, step: StepInHand) -> None:
        self._context.progress.step_done()
        shares = self._session.exchange.assignment.shares
        coordinates = self._session.view_group.rank == 0
        self._context.events.emit(
            schema.StepApplied(
                step=step.index,
                epoch=step.epoch,
                attempt=step.attempt,
                shares=[shares.start, shares.stop],
                count=step.count,
                indices=digest_of_indices(step.indices_read),
                sums=digest_of_sums(step.sums, step.count),
                redone=step.attempt > 0,
                values=plain_values(step.sums) if coordinates else ABSENT,
                **self._context.stopwatch.lap(),
            )
        )
        self._context.moment("applied")


def default_update(config: Config) -> None:
    """Unscale, clip, step. The norm that is clipped is that of all parameters of all models together."""
    optimizers = list(config.optimizers.values())
    if config.scaler is not None:
        for optimizer in optimizers:
            config.scaler.unscale_(optimizer)
    if config.clip_grad_norm is not None:
        torch.nn.utils.clip_grad_norm_(config.parameters().values(), config.clip_grad_norm)
    for optimizer in optimizers:
        if config.scaler is not None:
            config.scaler.step(optimizer)
        else:
            optimizer.step()
    if config.scaler is not None:
        config.scaler.update()
    for scheduler in config.schedulers.values():
        scheduler.step()
