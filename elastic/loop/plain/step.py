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
from elastic.loop.exchange import Exchange
from elastic.loop.steps.script_step import ScriptStep
from elastic.loop.steps.step_in_hand import StepInHand, counted
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
    taken           a peer had applied this step: its state came from there, and the loop's optimizers have nothing to
                    do
    items           what the loss of the batch in hand is a mean over
    has_begun       its first batch has been asked for
    update_follows  the loop's update comes behind all of the step's batches, and not behind the last one's backward
                    pass in the same body
    """

    def __init__(
        self,
        in_hand: StepInHand,
        *,
        count: Count | None,
        on_batch: Callable[[float, Any], None],
        on_exact: Callable[[PlainStep, Agreed], None],
        on_pass_over: Callable[[PlainStep, Agreed], None],
        check: Callable[[PlainStep], None],
    ) -> None:
        super().__init__(in_hand)
        self._session = in_hand.session
        self._count = count
        self._moved: Callable[[], list[str]] | None = None  # behind the body's backward pass
        self._on_batch = on_batch
        self._on_exact = on_exact
        self._on_pass_over = on_pass_over
        self._check = check
        self._unit = _unit(in_hand.context.config, in_hand.plan) if count is None else 1
        self.items: float = 0
        self._idle = False
        self._done = False
        self._comes_again = False
        self._begun = False
        self.has_begun = False
        self.taken = False
        self.over = False
        self.update_follows = False

    def __iter__(self) -> Iterator[Any]:
        if self._begun:
            raise StepError("a step's batches are read once; take the next step: for step in run.steps()")
        self._begun = True
        return self.batches()

    def show_sums(self, shown: Callable[[Mapping[str, Any], float], Mapping[str, Any]]) -> None:
        """Show people what `shown` makes of the step's sums and its count, in place of these sums."""
        self.in_hand.shown_sums = shown

    @property
    def under_way(self) -> bool:
        """Return whether batches of the step were taken, and it is not applied."""
        return self.has_begun and not self._done

    def check_closed(self) -> None:
        """Raise StepError unless the loop has carried its update out."""
        self._check(self)
        self.over = True

    def batches(self) -> Iterator[Any]:
        """Yield this worker's batches, until the step is applied."""
        self.has_begun = True
        step = self.in_hand
        while not self._done:
            exchange = step.ready()
            self._comes_again = False
            self._idle = not exchange.assignment.batches and step.leaves is None
            try:
                yield from self._for_nothing(exchange) if self._idle else step.batches(exchange, self)
            except PeerLost as lost:  # found before a batch was handed out
                self._recover(lost, exchange)

    def add(self, values: Mapping[str, Any]) -> None:
        """Add to the sums of the share in hand; see Run.add. Raises StepError."""
        step = self.in_hand
        if not step.due:
            raise StepError(
                f"run.add was called after the backward pass of a batch, or outside the loop's body (step {step.index})"
                f"\n{UNTOUCHED}  next   call it before backward: the last batch's backward exchanges what was added"
            )
        if not self._idle:
            step.add(values, of_nothing=not self.items)

    def leave_to_the_script(self) -> None:
        """Go on to the script's code behind the update, which is over, here or where this worker's state came from."""
        self.in_hand.leave_to_the_script()
        if not self.taken:
            self._session.exchange.gradients.at_next_pass(None)
            self._watch_buffers()

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Let an evaluation run in the block: it puts back the buffers that it moves, maybe in another view."""
        watched = self._moved is not None
        self._check_unmoved()
        yield
        if watched:
            self._watch_buffers()

    def check_begins(self) -> None:
        """Prepare for a body that counts for nothing."""
        self._idle = True
        self._session.exchange.gradients.at_next_pass(self._pass_begins)

    def check_has_ended(self) -> None:
        """Look at a body that counts for nothing as at every other one."""
        self.body_has_ended()
        self._idle = not self._session.exchange.assignment.batches

    def body_begins(self, batch: Any, examples: int) -> None:
        """Prepare for the backward pass of a body that counts."""
        step, gradients = self.in_hand, self._session.exchange.gradients
        self.items = self._items(batch, examples)
        gradients.begin_pass(
            step.merges,
            piece=step.piece,
            pieces=step.pieces,
            last=step.last,
            weight=self.items / self._unit,
            holds_back=True,
        )
        gradients.at_next_pass(self._pass_begins)
        self._on_batch(self.items, batch)
        step.context.moment("backward", step.share)

    def _items(self, batch: Any, examples: int) -> float:
        """Return what the loss of a batch is a mean over; 0: its body counts for nothing."""
        if self.in_hand.for_nothing:
            return 0
        return examples if self._count is None else counted(self._count(batch), "count(batch) gave ")

    def body_has_ended(self) -> bool:
        """Return whether the step goes on with the next batch; raise StepError for what the body may not do."""
        step = self.in_hand
        if self._done and not self.update_follows:
            self.check_closed()
        self._check_unmoved()
        if self._done or self._comes_again:
            return False
        if step.due:
            raise StepError(
                f"the loop's body ended without a backward pass for share {step.share} of step {step.index}\n"
                f"{UNTOUCHED}  next   call loss.backward() for every batch: each example counts once, none is skipped\n"
                "         (the next batch may be asked for behind it alone, by no prefetcher, list() or look ahead)"
            )
        return True

    def share_has_ended(self, exchange: Exchange) -> None:
        """Do nothing: the share's last backward pass has seen to that, within the body."""

    def _for_nothing(self, exchange: Exchange) -> Iterator[Any]:
        """Yield a batch that counts for nothing, on a rank without a share."""
        step = self.in_hand
        step.begin(exchange)
        yield from step.pass_checked(exchange, self)
        batch = step.read_for_nothing()
        step.seed_share(0, 0)
        step.due = step.last = True
        exchange.gradients.at_next_pass(self._pass_begins)
        yield batch
        self.body_has_ended()

    def _pass_begins(self) -> None:
        """Note that a backward pass has begun, and have its end noticed."""
        at_end_of_pass(self._pass_has_ended)
        if self._session.compiling is not None:
            self._session.compiling.check("the model is as it was before this step")

    def _pass_has_ended(self) -> None:
        """Take what the pass has given; behind the last one, exchange the step.

        Called in autograd's engine, on whichever thread of it came last, while the loop waits in `backward`.
        """
        step, exchange = self.in_hand, self._session.exchange
        step.due = False
        exchange.gradients.at_next_pass(self._second_pass)
        self._session.body.share_ends(step.index)
        try:
            self._take(exchange)
            if not step.last:
                return
            step.end()
            agreed = step.carry_out(exchange, unit=self._unit)
        except PeerLost as lost:  # it must not come out of the loop's `backward`
            self._recover(lost, exchange)
            return
        self._done = True
        (self._on_exact if step.bad is None else self._on_pass_over)(self, agreed)

    def _take(self, exchange: Exchange) -> None:
        """Take the gradients, count and buffers of a backward pass."""
        step, gradients = self.in_hand, exchange.gradients
        if self._idle:
            exchange.buffers.restore()
            if step.check.runs:
                step.check.passed(gradients.given())
                gradients.clear()
            return
        gradients.end_pass()
        step.count_in(self.items)
        if step.piece == step.pieces - 1:
            step.take_buffers(exchange)
            if not step.last:
                self._watch_buffers()

    def _recover(self, lost: PeerLost, exchange: Exchange) -> None:
        """Come into the next view: the step comes round again, or a peer had applied it."""
        self.in_hand.due = False
        exchange.gradients.at_next_pass(None)
        self._moved = None
        if self.in_hand.comes_again(lost, exchange):
            self._comes_again = True
        else:
            self._done = self.taken = True
            self.leave_to_the_script()

    def _watch_buffers(self) -> None:
        """Watch for buffers that the body moves from here on."""
        self._moved = self._session.exchange.buffers.watched(closely=self.in_hand.check.takes_place)

    def _check_unmoved(self) -> None:
        """Raise StepError where the body has moved buffers behind its backward pass."""
        moved, self._moved = self._moved, None
        names = moved() if moved is not None else []
        if not names:
            return
        step = self.in_hand
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
        step = self.in_hand
        raise StepError(
            f"a second backward pass began for share {step.share} of step {step.index}\n"
            f"{UNTOUCHED}  next   add the losses up and call backward once for each batch; torch.autograd.grad may be "
            "called;\n         checkpoint(..., use_reentrant=False) has one pass. SAM, gradients of single examples, "
            f"networks that are\n         updated one after the other (a GAN's): {CANNOT_DO}"
        )


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
