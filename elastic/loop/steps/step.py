"""A step as `for step in run` gives it: its inner loop hands out batches, and ends with the step applied."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from elastic.errors import UNTOUCHED, PeerLost, StepError
from elastic.group.sums import Agreed
from elastic.loop.steps.current_step import CurrentStep, Purpose
from elastic.loop.steps.script_step import ScriptStep, counted


class Step(ScriptStep):
    """What `for step in run` yields. Iterating over it gives this worker's shares; when they end, the step is applied.

        for step in run:
            for x, y in step:
                step.backward(F.cross_entropy(model(x), y, reduction="sum"), count=len(y))

    A loss is a sum, and neither zero_grad nor optimizer.step() is called.

    Attributes:
        index: Its number, from 0, over the whole run.
        epoch: That of its first example.
        step_in_epoch: Its place there, from 0.
        last_of_epoch: Whether no later step reads that epoch.
        attempt: 0, or how often the step has come round again.
        sums: After the inner loop: what `add` added, over the whole batch; the same on every worker.
        count: After the inner loop: what `backward` counted, over the whole batch.
        passed_over: After the inner loop: why the step was passed over and not applied (see `OnBad`); else None.
    """

    def __init__(self, current: CurrentStep, *, apply: Callable[[Step, Agreed], None]) -> None:
        super().__init__(current)
        self._apply = apply
        self._body = _Body(current)

    @property
    def step_in_epoch(self) -> int:
        return self.current.plan.step_in_epoch

    @property
    def attempt(self) -> int:
        return self.current.attempt

    @property
    def sums(self) -> dict[str, Any]:
        return self.current.sums

    @property
    def count(self) -> float:
        return self.current.count

    def __iter__(self) -> Iterator[Any]:
        step = self.current
        if step.begun:
            raise StepError("a step's shares are read once; take the next step from the outer loop: for step in run")
        yield from step.batches(self._body)
        assert step.agreed is not None
        if not step.taken:
            self._apply(self, step.agreed)
            step.leave_to_the_script()
            step.session.phases.enter_script()

    def add(self, **values: Any) -> None:
        """Add to `sums`, exactly and in the tree's order.

        Args:
            **values: Numbers, or tensors of any one shape per name.

        Raises:
            StepError: It was called outside the inner loop.
        """
        if not self.current.add(values):
            raise StepError(
                f"step.add was called outside the inner loop (step {self.index})\n{UNTOUCHED}"
                "  next   call it in `for batch in step`, where there is something to add"
            )

    def backward(self, loss: torch.Tensor, count: float) -> None:
        """Add the gradients of `loss`, a sum over `count` examples (or tokens), to the step.

        The division by the global count comes once, after the exchange: pass sums, never means. One call for each batch
        that the inner loop gives; combine several losses first. An error that the body catches ends the step all the
        same: a share that broke off half way cannot be left out.

        Args:
            loss: A scalar, the sum over the batch.
            count: How many examples (or tokens) it is the sum of.

        Raises:
            StepError: It was called outside the inner loop, or a second time for one batch.
        """
        try:
            self._body.backward(loss, count)
        except BaseException as error:
            self._body.broke = error
            raise


class _Body:
    """Drives a step by `step.backward`, which the inner loop's body must call for each batch.

    lost   in its backward pass
    broke  what its backward pass raised
    """

    must_have_a_body = False

    def __init__(self, current: CurrentStep) -> None:
        self._current = current
        self._session = current.session
        self.lost: PeerLost | None = None
        self.broke: BaseException | None = None

    def backward(self, loss: torch.Tensor, count: float) -> None:
        step, batch = self._current, self._current.batch
        if not batch.is_due:
            where = "outside the inner loop" if batch.share is None else f"a second time for share {batch.share}"
            raise StepError(
                f"step.backward was called {where} (step {step.index})\n{UNTOUCHED}"
                "  next   call it once for each batch of `for batch in step`; add several losses up first"
            )
        counts = batch.purpose is not Purpose.LEFT_OUT
        items = counted(count, "step.backward(loss, count=)") if counts else 0
        _check_loss(loss)
        if self._session.compiling is not None:
            self._session.compiling.check("the model is as it was before this step")
        step.backward_has_come()
        gradients, scaler = self._session.gradient_sync.gradients, self._session.context.config.update.scaler
        scaled = scaler.scale(loss) if scaler is not None else loss
        if batch.purpose is Purpose.CHECK:
            gradients.begin_for_nothing(step.checked.check.take)
            scaled.backward()
            gradients.end_for_nothing()
            return
        if batch.purpose is Purpose.STAND_IN:
            counts = False
        else:
            step.own.count_in(items)
            step.own.has_lost(loss)
        self._session.context.moment("backward", batch.share)
        try:
            gradients.begin_pass(
                batch.merges,
                piece=batch.piece,
                pieces=batch.pieces,
                last=batch.last,
                weight=int(counts),
                at_once=True,
            )
            scaled.backward()
            gradients.end_pass()
        except PeerLost as lost:  # a bucket could not leave: the iterator deals with it, not the loop's body
            self.lost = lost

    def body_begins(self, batch: Any) -> None:
        """Do nothing: `backward` begins the pass."""

    def body_has_ended(self) -> None:
        """Raise what the body has met, or StepError without step.backward; else take the buffers of a whole share."""
        step, batch = self._current, self._current.batch
        if self.broke is not None:
            raise self._broken_off(self.broke) from self.broke
        if self.lost is not None:
            raise self.lost
        if batch.is_due:
            raise StepError(
                f"the inner loop's body ended without step.backward for share {batch.share} of step {step.index}\n"
                f"{UNTOUCHED}  next   call step.backward(loss_sum, count) for every batch, and not "
                "loss.backward(); count=0 is fine"
            )
        if batch.purpose is Purpose.STAND_IN:
            self._session.gradient_sync.buffers.restore()
        elif batch.purpose is not Purpose.CHECK and batch.piece == batch.pieces - 1:
            step.take_buffers()

    def shares_have_ended(self) -> None:
        """Exchange the step."""
        self._current.carry_out()

    def attempt_has_failed(self) -> None:
        """Forget the peer that was lost in a backward pass."""
        self.lost = None

    def _broken_off(self, error: BaseException) -> StepError:
        step = self._current
        return StepError(
            f"step.backward failed for share {step.batch.share} of step {step.index}, and the inner loop's body went "
            "on\n"
            f"  found  {type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}\n"
            f"{UNTOUCHED}  next   let the exception leave the loop: every example counts once, none is skipped.\n"
            "         For what does not fit into memory there is data=Data(micro_batch_size=...)"
        )


def _check_loss(loss: Any) -> None:
    """Raise StepError unless the loss is one number that some parameter takes part in."""
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        found = (
            f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else f"a {type(loss).__name__}"
        )
        raise StepError(
            f"step.backward got {found}, and a loss is one number\n{UNTOUCHED}"
            '  next   sum it over the batch: reduction="sum", or loss.sum()'
        )
    if not loss.requires_grad:
        raise StepError(
            f"step.backward got a loss that no parameter takes part in\n{UNTOUCHED}"
            "  next   look for torch.no_grad(), .detach() or .item() on the way to the loss"
        )
