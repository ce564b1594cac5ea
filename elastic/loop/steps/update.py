"""What exact gradients are made of: opened, computed, closed, and the step committed.

    open     what a save still copies is joined (state/staging.py); from here on a failure leaves a torn state; the
             modules get the step's buffers
    compute  clip, optimizers, schedulers (`default_update`), or what the script passes as `update=`, and its `on_apply`
    close    the state is that of the next step, and whole as far as this worker's own doing goes
    commit   the step is announced: to the event log, and to whoever waits for it

A step that is bad is opened and closed likewise, and passed over in between (bad_steps.py).

Every worker holds the same exact gradients and does the same arithmetic, so every worker ends with the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch

from elastic.config import Config
from elastic.events import schema
from elastic.events.digests import digest_of_indices, digest_of_sums, plain_values
from elastic.events.event import ABSENT
from elastic.events.timing import Spent
from elastic.events.words import counted
from elastic.group.sums import Agreed
from elastic.loop.session import Session
from elastic.loop.steps.bad_steps import BadSteps, PassOver
from elastic.loop.steps.current_step import CurrentStep
from elastic.loop.steps.step import Step

_LISTED = 1000  # examples, in a record


class Update:
    """The only place that changes the model, or that opens and closes the update of a loop that changes it itself.

    compute  what is done with exact gradients
    also     is called as part of it, at its end: the functions given to `on_apply`, if any
    """

    def __init__(
        self,
        session: Session,
        compute: Callable[[Step], None],
        also: Callable[[Step | CurrentStep], bool],
        bad_steps: BadSteps | None,
    ) -> None:
        self._session = session
        self._context = session.context
        self._state = session.state
        self._compute = compute
        self._also = also
        self._bad_steps = bad_steps
        self._said_left_out = False

    def __call__(self, step: Step, agreed: Agreed) -> None:
        if step.current.bad is not None:
            self.pass_over(step.current, agreed)
            return
        self._open()
        self._compute(step)
        self._also(step)
        self._close(step.current, agreed)
        if self._context.live is not None:
            self._session.train_state.applied.note()
        step.current.is_applied()
        self._commit(step.current)

    def begin_own(self) -> None:
        """Begin the update of a loop that updates by its own code.

        What that changes beside the models and their optimizers is noted as it is now: a worker that takes the step
        over goes on right here, and runs that code itself.
        """
        self._open()
        if self._context.live is not None:
            self._session.train_state.applied.note_surroundings()

    def end_own(self, step: CurrentStep, agreed: Agreed, *, read: bool) -> None:
        """End and commit that update; read: the script's own code has read exact gradients, and may have used them."""
        also = self._also(step) or read
        self._close(step, agreed)
        if self._context.live is not None:
            self._session.train_state.applied.note_own_update(also=also)
        step.is_applied()
        self._commit(step)

    def pass_over(self, step: CurrentStep, agreed: Agreed) -> None:
        """Pass a step over in place of its update, in either loop."""
        over, buffers = step.bad, self._session.gradient_sync.buffers
        assert over is not None
        assert self._bad_steps is not None
        buffers.restore()
        self._begin()
        buffers.close()
        self._bad_steps.pass_over(over)
        self._close(step, agreed)
        if self._context.live is not None:
            self._session.train_state.applied.note()
        step.is_applied()
        self._context.progress.step_done()
        self._tell_passed_over(step, over)
        self._context.moment("applied")

    def _begin(self) -> None:
        """Join what a save still copies; from here on a failure leaves a torn state."""
        self._session.train_state.staging.join()
        self._state.begin_update()
        self._context.moment("update")
        if self._context.live is not None:
            self._session.train_state.applied.update_begins()

    def _open(self) -> None:
        """Begin the update, and give the modules the step's buffers."""
        self._begin()
        self._session.gradient_sync.buffers.apply()

    def _close(self, step: CurrentStep, agreed: Agreed) -> None:
        """Make the state that of the next step."""
        self._state.step += 1
        self._state.joined &= not self._session.holds_state(step.index)
        self._state.end_update(agreed, self._session.view_group.view.workers)
        step.note.applied(self._session.gradient_sync.parameters)

    def _tell_passed_over(self, step: CurrentStep, over: PassOver) -> None:
        passed = over.passed
        coordinates = self._session.view_group.rank == 0
        self._context.events.emit(
            schema.PassedOver(
                **self._facts(step),
                first=passed.first,
                why=passed.why,
                signs=plain_values(over.signs.by_name),
                examples=self._examples(over.new[:_LISTED]) if coordinates else ABSENT,
                examples_count=sum(self._session.step_plan(new).count for new in over.new) if coordinates else ABSENT,
            )
        )
        back = "" if passed.first == step.index else f", and goes back to the state after {passed.first} steps"
        self._context.console.say(f"step {step.index} is passed over{back}: {passed.why}")

    def _examples(self, steps: Sequence[int]) -> list[int]:
        indices: list[int] = []
        for step in steps:
            indices += self._session.step_plan(step).indices.tolist()
        return indices[:_LISTED]

    def _commit(self, step: CurrentStep) -> None:
        """Announce an applied step, to the event log and to whoever waits for it."""
        if self._bad_steps is not None:
            self._bad_steps.applied()
        self._context.progress.step_done()
        coordinates, left_out = self._session.view_group.rank == 0, step.agreed.left_out if step.agreed else 0
        self._context.events.emit(
            schema.StepApplied(
                **self._facts(step),
                redone=step.attempt > 0,
                values=plain_values(step.shown_sums(step.sums, step.count)) if coordinates else ABSENT,
                left_out=left_out or ABSENT,
            )
        )
        if left_out and not self._said_left_out:
            self._said_left_out = True
            self._context.console.say(
                f"step {step.index} leaves out {counted(left_out, 'example')} that raised: see elastic report"
            )
        self._context.moment("applied")

    def _facts(self, step: CurrentStep) -> _Facts:
        shares = self._session.gradient_sync.assignment.shares
        return {
            "step": step.index,
            "epoch": step.plan.epoch,
            "attempt": step.attempt,
            "shares": [shares.start, shares.stop],
            "count": step.count,
            "indices": digest_of_indices(np.concatenate(step.reader.indices) if step.reader.indices else ()),
            "sums": digest_of_sums(step.sums, step.count),
            **self._context.stopwatch.lap(),
        }


class _Facts(Spent):
    """What the events of a step's end have in common."""

    step: int
    epoch: int
    attempt: int
    shares: list[int]
    count: float
    indices: str
    sums: str


def default_update(config: Config, parameters: Iterable[torch.nn.Parameter]) -> None:
    """Unscale, clip, step. The norm that is clipped is that of all `parameters` of all models together."""
    optimizers = list(config.optimizers.values())
    if config.update.scaler is not None:
        for optimizer in optimizers:
            config.update.scaler.unscale_(optimizer)
    if config.update.clip_grad_norm is not None:
        torch.nn.utils.clip_grad_norm_(parameters, config.update.clip_grad_norm)
    for optimizer in optimizers:
        if config.update.scaler is not None:
            config.update.scaler.step(optimizer)
        else:
            optimizer.step()
    if config.update.scaler is not None:
        config.update.scaler.update()
    for scheduler in config.schedulers.values():
        scheduler.step()
