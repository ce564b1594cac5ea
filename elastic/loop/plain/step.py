"""A step of a loop that knows of no steps: the loop takes batch after batch, and its own code is the update.

    each batch is one of this worker's shares -> the loop's backward pass brings its gradients -> at the end of that of
    the last share the step is exchanged, inside `loss.backward()` -> `.grad` is exact: what the loop does then is the
    update (update.py), and before it `optimizer.step()` and `scheduler.step()` do nothing

The exchange cannot wait for `optimizer.step()`: what stands in between, clipping and unscaling, needs exact gradients.
A lost peer must not come out of the loop's `backward`: the step is recovered there, `optimizer.step()` does nothing,
and the next batches are those of the new view; or, where peers had applied the step, the loop goes on as if it had.

A mean loss over a share is turned back into a sum by what it is a mean over, as the gradients are taken. A rank without
a share passes the first one forward and back for nothing, so that its loop has a body.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from elastic.config import Config
from elastic.data.data_plan import StepPlan
from elastic.errors import CANNOT_DO, UNTOUCHED, PeerLost, StepError
from elastic.group.backward_end import at_end_of_pass
from elastic.group.sums import Agreed
from elastic.loop.steps.current_step import CurrentStep, Purpose
from elastic.loop.steps.script_step import ScriptStep, counted
from elastic.state.trained_set import listed

Count = Callable[[Any], Any]


class PlainStep(ScriptStep):
    """A step of a loop over batches, or of `for step in run.steps()`.

    count         of a batch, what its loss is a mean over; None: its examples
    on_batch      is called before the loss of a batch, which is a mean over so many, is passed back
    on_exact      is called when exact gradients are in `.grad`: the loop's own code is the update from there on
    on_pass_over  is called in its place where the step is passed over: the loop's optimizers have nothing to do
    check         raises StepError unless the loop has carried its update out

    over            the loop's body, its own update included, has ended
    items           what the loss of the batch in hand is a mean over
    update_follows  the loop's update comes behind all of the step's batches, and not behind the last one's backward
                    pass in the same body
    """

    must_have_a_body = True

    def __init__(
        self,
        current: CurrentStep,
        *,
        count: Count | None,
        on_batch: Callable[[float, Any], None],
        on_exact: Callable[[PlainStep, Agreed], None],
        on_pass_over: Callable[[PlainStep, Agreed], None],
        check: Callable[[PlainStep], None],
    ) -> None:
        super().__init__(current)
        self._session = current.session
        self._count = count
        self._moved: Callable[[], list[str]] | None = None  # behind the body's backward pass
        self._on_batch = on_batch
        self._on_exact = on_exact
        self._on_pass_over = on_pass_over
        self._check = check
        self._unit = _unit(self._session.context.config, current.plan) if count is None else 1
        self.items: float = 0
        self.over = False
        self.update_follows = False

    def __iter__(self) -> Iterator[Any]:
        if self.current.begun:
            raise StepError("a step's batches are read once; take the next step: for step in run.steps()")
        yield from self.batches()

    def show_sums(self, shown: Callable[[Mapping[str, Any], float], Mapping[str, Any]]) -> None:
        """Show people what `shown` makes of the step's sums and its count, in place of these sums."""
        self.current.shown_sums = shown

    @property
    def under_way(self) -> bool:
        """Return whether batches of the step were taken, and it is not applied."""
        return self.current.begun and self.current.agreed is None

    def check_closed(self) -> None:
        """Raise StepError unless the loop has carried its update out."""
        self._check(self)
        self.over = True

    def batches(self) -> Iterator[Any]:
        """Return this worker's batches, until the step is applied."""
        return self.current.batches(self)

    def add(self, values: Mapping[str, Any]) -> None:
        """Add to the sums of the share in hand; see Run.add. Raises StepError."""
        step = self.current
        if not step.batch.is_due:
            raise StepError(
                f"run.add was called after the backward pass of a batch, or outside the loop's body (step {step.index})"
                f"\n{UNTOUCHED}  next   call it before backward: the last batch's backward exchanges what was added"
            )
        step.add(values, of_nothing=not self.items)

    def leave_to_the_script(self) -> None:
        """Go on to the script's code behind the update, which is over, here or where this worker's state came from."""
        self.current.leave_to_the_script()
        if not (self.current.taken or self.current.completed):
            self._session.gradient_sync.gradients.at_next_pass(None)
            self._watch_buffers()

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Let an evaluation run in the block: it puts back the buffers that it moves, maybe in another view."""
        watched = self._moved is not None
        self._check_unmoved()
        yield
        if watched:
            self._watch_buffers()

    def body_begins(self, batch: Any) -> None:
        """Prepare for the backward pass of a body."""
        current, gradients = self.current.batch, self._session.gradient_sync.gradients
        if _counts(current.purpose):
            self.items = self._items(batch)
            gradients.begin_pass(
                current.merges,
                piece=current.piece,
                pieces=current.pieces,
                last=current.last,
                weight=self.items / self._unit,
                holds_back=True,
            )
            self._on_batch(self.items, batch)
            self._session.context.moment("backward", current.share)
        elif current.purpose is Purpose.STAND_IN and self._session.mates is not None:  # its mates' shares come with it
            gradients.begin_pass(0, piece=0, pieces=1, last=current.last, weight=0)
        elif current.purpose is Purpose.CHECK:
            gradients.begin_for_nothing(self.current.checked.check.take)
        gradients.at_next_pass(self._pass_begins)

    def _items(self, batch: Any) -> float:
        """Return what the loss of a batch is a mean over; 0: its body counts for nothing."""
        current = self.current.batch
        if current.purpose is Purpose.LEFT_OUT:
            return 0
        return current.examples if self._count is None else counted(self._count(batch), "count(batch) gave ")

    def body_has_ended(self) -> None:
        """Raise StepError for what the body may not do."""
        step = self.current
        done = step.agreed is not None
        if done and not self.update_follows:
            self.check_closed()
        self._check_unmoved()
        if step.batch.is_due:
            raise StepError(
                f"the loop's body ended without a backward pass for share {step.batch.share} of step {step.index}\n"
                f"{UNTOUCHED}  next   call loss.backward() for every batch: each example counts once, none is skipped\n"
                "         (the next batch may be asked for behind it alone, by no prefetcher, list() or look ahead)"
            )

    def shares_have_ended(self) -> None:
        """Do nothing: the last share's backward pass has exchanged the step, within the body."""

    def attempt_has_failed(self) -> None:
        """Listen to no backward pass any more, nor look at what the body moves behind it."""
        self._session.gradient_sync.gradients.at_next_pass(None)
        self._moved = None

    def _pass_begins(self) -> None:
        """Note that a backward pass has begun, and have its end noticed."""
        at_end_of_pass(self._pass_has_ended)
        if self._session.compiling is not None:
            self._session.compiling.check("the model is as it was before this step")

    def _pass_has_ended(self) -> None:
        """Take what the pass has given; behind the last one, exchange the step.

        Called in autograd's engine, on whichever thread of it came last, while the loop waits in `backward`.
        """
        step, gradients = self.current, self._session.gradient_sync.gradients
        step.backward_has_come()
        gradients.at_next_pass(self._second_pass)
        self._session.body.share_ends(step.index)
        last = step.batch.last
        try:
            self._take()
            if not last:
                return
            agreed = step.carry_out(unit=self._unit)
        except PeerLost as lost:  # it must not come out of the loop's `backward`
            step.recover(lost, self)
            if step.agreed is None or step.taken:
                return
            agreed = step.agreed  # a peer has applied it, and all that it is of is here
        (self._on_exact if step.bad is None else self._on_pass_over)(self, agreed)

    def _take(self) -> None:
        """Take the gradients, count and buffers of a backward pass."""
        step, batch, sync = self.current, self.current.batch, self._session.gradient_sync
        if not _counts(batch.purpose):
            sync.buffers.restore()
            if batch.purpose is Purpose.CHECK:
                sync.gradients.end_for_nothing()
            elif self._session.mates is not None:
                sync.gradients.end_pass()
            return
        sync.gradients.end_pass()
        step.own.count_in(self.items)
        if batch.piece == batch.pieces - 1:
            step.take_buffers()
            if not batch.last:
                self._watch_buffers()

    def _watch_buffers(self) -> None:
        """Watch for buffers that the body moves from here on."""
        self._moved = self._session.gradient_sync.buffers.watched(closely=self.current.checked.check.takes_place)

    def _check_unmoved(self) -> None:
        """Raise StepError where the body has moved buffers behind its backward pass."""
        moved, self._moved = self._moved, None
        names = moved() if moved is not None else []
        if not names:
            return
        step = self.current
        state = f"  state  step {step.index} is applied; it is not saved\n" if step.applied else UNTOUCHED
        raise StepError(
            f"the loop's body moved buffers behind its backward pass, in step {step.index}: {listed(names)}\n"
            "  found  how many shares a worker has, and which is its last, depends on the world size; so would what a "
            f"forward\n         pass over it leaves there\n{state}"
            "  next   model.eval() around that pass, or run.evaluate, which puts them back;\n         what belongs to "
            "the update, in run.on_apply(function)"
        )

    def _second_pass(self) -> None:
        """Raise StepError: a share has one backward pass."""
        step = self.current
        raise StepError(
            f"a second backward pass began for share {step.batch.share} of step {step.index}\n"
            f"{UNTOUCHED}  next   add the losses up and call backward once for each batch; torch.autograd.grad may be "
            "called;\n         checkpoint(..., use_reentrant=False) has one pass. SAM, gradients of single examples, "
            f"networks that are\n         updated one after the other (a GAN's): {CANNOT_DO}"
        )


def _counts(purpose: Purpose) -> bool:
    """Return whether a body stands for a share of this worker's own."""
    return purpose is Purpose.COUNTS or purpose is Purpose.LEFT_OUT


def _unit(config: Config, step: StepPlan) -> int:
    """Return how many examples a batch's gradient is of, where it is added up as it is.

    Means over equally many examples are; in fast mode each is weighted by its part of all, as it is copied, and their
    sum is the step's. Where examples may be left out, nobody knows before all have read theirs, and gradients are
    weighted by examples, and divided by their number.
    """
    if config.data.on_bad_example == "skip":
        return 1
    if config.compute.mode != "exact":
        return step.count
    if len(set(step.sizes)) != 1 or step.sizes[0] % step.pieces(0):
        return 1
    return step.sizes[0] // step.pieces(0)
