"""One step: this worker's shares of a batch, their gradients and sums, and the exchange that completes it.

    for each share: read -> seed its stream -> hand it to the loop's body -> backward -> its sums
    then: exchange -> exact gradients in `.grad`, exact sums in `sums` -> the update

A failed exchange has changed nothing but `.grad`: the same step comes round again in a new view, with its
sums reset (`attempt` counts). What drives it is step.py's (`for batch in step`) or plain/step.py's (a loop that knows
of no steps). Which shares are this worker's is loop/assignment.py's to say, in which order they are added
group/tree.py's, and what applying means update.py's.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from elastic.data.aligned import aligned
from elastic.data.data_plan import StepPlan
from elastic.data.example_digest import digest_at
from elastic.data.loader import LeftOut
from elastic.errors import UNTOUCHED, ExampleError, PeerLost, StepError
from elastic.events import schema
from elastic.events.timing import DATA
from elastic.group.sums import COUNT, FIRST, LEFT_OUT, READ, Agreed, ShareSums
from elastic.loop.assignment import pieces
from elastic.loop.cross_check import CrossCheck, First, Pass
from elastic.loop.disagreement import Disagreement, ShareDiffers
from elastic.loop.exchange import Exchange, nothing_to_read
from elastic.loop.recovery import Recovery
from elastic.loop.session import Session
from elastic.loop.steps.bad_steps import PassOver
from elastic.loop.storage.next_step import NextStep, reads_otherwise
from elastic.membership.progress import Phase
from elastic.state.randomness import after_seed, outside_seed, share_seed

T = TypeVar("T")

_NO_PIECE = -1
_PHASE = 0  # a step's only one; its place in the seeds and in the exchange's name


class Driver(Protocol):
    """What each kind of loop does before and after a body."""

    def check_begins(self) -> None:
        """Prepare for a batch whose body counts for nothing; what it gives is to be handed to `check`."""

    def check_has_ended(self) -> None:
        """Look at what such a body has done. Raises StepError."""

    def body_begins(self, batch: Any, examples: int) -> None:
        """Prepare for a batch of so many examples, before it is handed out."""

    def body_has_ended(self) -> bool:
        """Look at the body; return whether the step goes on with the next batch. Raises PeerLost, StepError."""

    def share_has_ended(self, exchange: Exchange) -> None:
        """Finish a share, after its last batch."""


class StepInHand:
    """A step as this worker computes it, whoever drives it.

    Attributes:
        index, epoch, step_in_epoch, last_of_epoch, attempt: See Step.
        sums, count: Likewise, once it is exchanged.
        applied: Whether the run's state holds it, or that it was passed over.
        bad: Once it is exchanged: what passing it over is; None: it is to be applied.
        due: A batch has been handed out, and its backward pass has not come yet.
        share: The one in hand.
        for_nothing: All of its examples were left out: the batch in hand is of others, and counts for nothing.
        last: Its batch in hand is this worker's last of the step.
        check: What other workers pass of it, too.
        leaves: All that it is for is its first share, for whoever resumes: called with that, to leave. None: for all
        computed: Once it is exchanged: what whoever resumes there is to find; None: nobody will, or it is not known.
        merges, piece, pieces: Of the batch in hand, see GradientSum.begin_pass.
        shown_sums: Of its sums and count, which sums people are shown; a trainer keeps some for itself.
    """

    def __init__(
        self,
        session: Session,
        recovery: Recovery,
        plan: StepPlan,
        *,
        requests: Callable[[bool, bool], int],
        judge: Callable[[int, Agreed], PassOver | None],
    ) -> None:
        self.session = session
        self.context = session.context
        self._state = session.state
        self._phases = session.phases
        self._streams = session.context.config.streams
        self._recovery = recovery
        self.plan = plan
        self._requests = requests
        self._judge = judge
        self.bad: PassOver | None = None
        self.index = plan.index
        self.epoch = plan.epoch
        self.step_in_epoch = plan.step_in_epoch
        self.last_of_epoch = plan.last_of_epoch
        self.attempt = self._state.attempt = 0
        self.sums: dict[str, Any] = {}
        self.count: float = 0
        self.shown_sums: Callable[[Mapping[str, Any], float], Mapping[str, Any]] = lambda sums, _: sums
        self.applied = False
        self.due = False
        self.last = False
        self.merges = 0
        self.piece = 0
        self.pieces = 0
        self.share: int | None = None
        self.for_nothing = False
        self.check = CrossCheck()
        self._differing: Disagreement | None = None  # a share that all pass, in place of what this step checks
        self.computed: NextStep | None = None
        self.leaves: Callable[[NextStep | None], NoReturn] | None = None
        self.examples = 0
        self.left_out = 0
        self.share_sums: list[ShareSums] = []
        self._counted = 0
        self.indices_read: list[NDArray[np.int64]] = []

    @property
    def passed_over(self) -> str | None:
        """Return why the step was passed over; None: it was not, or not yet."""
        return self.session.train_state.health.why(self.index) if self.applied else None

    def ready(self) -> Exchange:
        """Plan this worker's part in the present view; return that view's exchange."""
        exchange = self.session.exchange
        exchange.plan(self.plan)
        self._phases.enter(Phase.COMPUTING)
        return exchange

    def add(self, values: Mapping[str, Any], *, of_nothing: bool = False) -> bool:
        """Add to the sums of the share in hand; return whether there is one. of_nothing: see ShareSums.add."""
        if self.check.runs:
            return True
        if self.share is None or not self.share_sums:
            return False
        if self.for_nothing:
            return True
        for name, value in values.items():
            self.share_sums[-1].add(name, value, of_nothing=of_nothing)
        return True

    def count_in(self, items: float) -> None:
        """Add what the loss of the share in hand is of to the step's count."""
        if isinstance(items, int):
            self._counted += items
        else:  # what is no integer is added in the shares' order, as sums are
            self.share_sums[-1].add(COUNT, items)

    def batches(self, exchange: Exchange, driver: Driver) -> Iterator[Any]:
        """Hand out this worker's batches. Raises PeerLost, StepError, and what the driver raises."""
        context, plan = self.context, self.plan
        self.begin(exchange)
        if self.leaves is not None:
            yield from self._pass_first(exchange, driver)
            self.leaves(self._left_behind())
        yield from self.pass_checked(exchange, driver)
        assignment = exchange.assignment
        for number, (shares, merges) in enumerate(zip(assignment.batches, assignment.merges, strict=True)):
            self.examples = 0
            self.share = share = shares[0]
            self.share_sums.append(ShareSums())
            self.merges, self.pieces = merges, pieces(context.config, plan, shares, assignment.blocks)
            last_share = number == len(assignment.batches) - 1
            for micro in range(self.pieces):
                context.moment("data", share)
                self.session.train_state.staging.poll()
                exchange.announced.poll()
                self.session.group.check()
                self._phases.sign(Phase.READING)
                before = context.stopwatch.at(DATA)
                try:
                    loaded = self.read(self.session.loader.next)
                    self.for_nothing = loaded.batch is None
                    beside = self.read_for_nothing() if self.for_nothing else None
                finally:
                    context.stopwatch.at(before)
                self._phases.sign(Phase.COMPUTING)
                self.indices_read.append(loaded.indices)
                self.examples += len(loaded.indices)
                if loaded.left_out:
                    self._leave_out(loaded.left_out, share)
                if self._streams is not None and micro == self.pieces - 1:
                    for one in shares:
                        for name, position in self._streams.carried(one).items():
                            self.share_sums[-1].add(name, position)
                batch = beside
                if not self.for_nothing:
                    batch = context.observer.batch(loaded.batch, step=self.index, share=share, attempt=self.attempt)
                if self._notes_step and not loaded.left_out:
                    read = None if self.for_nothing else batch
                    self._note_read(read, share, micro, len(shares) if micro == self.pieces - 1 else 0)
                if share == self.check.copied and micro == 0 and (copied := _copy(batch)) is not None:
                    yield from self._hand_for_nothing(share, copied, exchange, driver, self.check.theirs)
                takes = self.check.takes(share, None if self.for_nothing else batch) if micro == 0 else None
                exchange.gradients.look_at(takes)
                self.piece = micro
                self.last = last_share and micro == self.pieces - 1
                self.seed_share(share, micro)
                context.moment("forward", share)
                self.due = True
                driver.body_begins(batch, len(loaded.indices))
                yield batch
                if not driver.body_has_ended():
                    return
            driver.share_has_ended(exchange)

    def pass_checked(self, exchange: Exchange, driver: Driver) -> Iterator[Any]:
        """Hand out what is passed for nothing ahead of this worker's own. Raises PeerLost, StepError."""
        found, self._differing = self._differing, None
        if found is None:
            if self.check.first is First.FOR_NOTHING:
                yield from self._pass_for_nothing(0, exchange, driver, self.check.left)
            for share in self.check.passes:
                yield from self._pass_for_nothing(share, exchange, driver, self.check.theirs)
            for share in self.check.alone:
                yield from self._pass_for_nothing(share, exchange, driver, self.check.ours)
            return
        for _ in range(2) if self.session.holds_state(self.index) else ():
            yield from self._pass_for_nothing(found.share, exchange, driver, self.check.theirs)
            self.check.passed_again(exchange.gradients.names)
        raise self.check.settles(found, self.session.group)

    def _pass_first(self, exchange: Exchange, driver: Driver) -> Iterator[Any]:
        """Hand out the step's first batch, on a worker that leaves and whose peers may be gone."""
        try:
            if self._streams is not None:
                batch = self.read(self.session.loader.next).batch
            else:
                batch = self.read(partial(self.session.read_beside, self.plan.micro_batches(0)[0]))
        except (ExampleError, PeerLost):  # whoever resumes reads it again
            return
        yield from self._hand_for_nothing(0, batch, exchange, driver, self.check.left)

    def _left_behind(self) -> NextStep | None:
        """Return what is left for whoever resumes here; None: there is nothing to compare."""
        digests = self.check.digests_of_first()
        return NextStep.of_share(self.index, digests) if digests is not None else None

    def _pass_for_nothing(self, share: int, exchange: Exchange, driver: Driver, kept: dict[int, Pass]) -> Iterator[Any]:
        """Hand out what another worker passes as its own; kept: see CrossCheck.begins."""
        self.session.train_state.staging.poll()
        exchange.announced.poll()
        self.session.group.check()
        self._phases.sign(Phase.READING)
        before = self.context.stopwatch.at(DATA)
        try:
            batch = self.read(partial(self.session.read_beside, self.plan.micro_batches(share)[0]))
        except ExampleError:
            if not self.context.config.data.num_workers:
                raise
            self.check.gives_up()  # a loader process reads it, and maybe nobody else can
            return
        finally:
            self.context.stopwatch.at(before)
            self._phases.sign(Phase.COMPUTING)
        yield from self._hand_for_nothing(share, batch, exchange, driver, kept)

    def _hand_for_nothing(
        self, share: int, batch: Any, exchange: Exchange, driver: Driver, kept: dict[int, Pass]
    ) -> Iterator[Any]:
        """Hand out a batch whose body counts for nothing, and put back the buffers that it moves."""
        self.check.begins(share, batch, kept)
        if batch is not None:
            self.share, self.piece, self.due, self.last = share, _NO_PIECE, True, False
            self.seed_share(share, 0)
            driver.check_begins()
            yield batch
            driver.check_has_ended()
            exchange.buffers.restore()
        self.check.ends()

    @property
    def _notes_step(self) -> bool:
        """Return whether this step is noted, for whoever resumes here to compare with it (storage/next_step.py)."""
        return self.index in (self._state.saved, self._state.total_steps - 1)

    def _examples_checked(self, share: int) -> Sequence[int]:
        """Return the numbers of the examples of a share's first micro-batch; none of streams."""
        return [] if self._streams is not None else self.plan.micro_batches(share)[0].indices.tolist()

    def _note_read(self, batch: Any, share: int, micro: int, ended: int) -> None:
        """Add a batch's digest to what the step's sums say of what was read."""
        if (place := digest_at(batch, share, micro)) is not None:
            self.share_sums[-1].add(READ, np.array([place, ended, 1]))

    def _compare_with_end(self) -> None:
        """Warn if the last step of a run that is made longer reads other values; nobody has read the one behind it."""
        last = self.session.restorer.last_read()
        if last is None or not last.shares or self._streams is not None or self.context.config.compute.mode != "exact":
            return
        plan, found = self.session.step_plan(last.step), [0, 0]
        for share in range(len(plan.sizes)):
            for micro, examples in enumerate(plan.micro_batches(share)):
                place = digest_at(self.read(partial(self.session.read_beside, examples)), share, micro)
                found = [found[0] + (place or 0), found[1] + 1]
        if found != [last.digest, last.batches]:
            self.context.console.warn(reads_otherwise(last.step))

    def read(self, read: Callable[[], T]) -> T:
        """Return what `read` gives; an error of the data set says that it was read for this step."""
        try:
            return read()
        except ExampleError as error:
            error.read_for = f"step {self.index}"
            error.may_be_left_out = self._streams is None and self.context.config.data.on_bad_example == "raise"
            raise

    def read_for_nothing(self) -> Any:
        """Return a batch of this step for a body that has none to count, and must pass one. Raises StepError."""
        for share in range(len(self.plan.sizes)):
            batch = self.read(partial(self.session.read_beside, self.plan.micro_batches(share)[0]))
            if batch is not None:
                return batch
        raise nothing_to_read(self.index, self.plan.count)

    def _leave_out(self, examples: Sequence[LeftOut], share: int) -> None:
        """Count examples that raised as left out, and record each."""
        self.share_sums[-1].add(LEFT_OUT, len(examples))
        for one in examples:
            self.context.events.emit(
                schema.ExampleLeftOut(step=self.index, attempt=self.attempt, share=share, **vars(one))
            )

    def begin(self, exchange: Exchange) -> None:
        """Begin the step in the present view, with nothing read or counted."""
        self.share_sums, self.indices_read, self._counted = [], [], 0
        self.sums, self.count, self.for_nothing = {}, 0, False
        self._compare_with_end()
        noted = self.session.restorer.weights_noted(self.index)
        trained = exchange.begin(self.index, again=self.attempt > 0, alone=self.leaves is not None, noted=noted)
        exchange.gradients.look_at(None)
        self.check = self.session.cross_check(self.plan) if self.leaves is None else CrossCheck()
        self.session.body.begin(self.index, trained)

    def take_buffers(self, exchange: Exchange) -> None:
        """Take what the share in hand has moved of buffers. Raises StepError."""
        assert self.share is not None
        refused = None
        try:
            exchange.buffers.share_done(self.share, self.examples)
        except StepError as error:
            refused = error
        if refused is not None:
            self.session.body.end(self.index)  # weights that were written come first: a rule would not help those
            raise refused

    def seed_share(self, share: int, micro: int) -> None:
        self.session.seed(share_seed(self.plan.plan.seed, self.index, _PHASE, share, micro))

    def end(self) -> None:
        """Close the step's bodies, after the last share of this worker. Raises StepError for what they may not do."""
        self.share = None
        self.session.body.end(self.index)

    def carry_out(self, exchange: Exchange, *, unit: int = 1) -> Agreed:
        """Exchange the step: `.grad`, `sums` and `count` are exact afterwards, and `bad` is known.

        unit: see Exchange.carry_out. Raises PeerLost, StepError, BadStep.
        """
        self.last = False
        self.session.seed(outside_seed(self.plan.plan.seed, self.index, _PHASE))  # the update draws alike everywhere
        self.context.moment("exchange")
        self.session.train_state.staging.poll()
        self._phases.enter(Phase.WAITING)
        if (digests := self.check.digests_of_first()) is not None:
            self.share_sums[0].add(FIRST, np.array(digests))
        agreed = exchange.carry_out(
            (self.epoch, self.index, _PHASE),
            self.share_sums,
            count=self._counted,
            examples=self.plan.count,
            requests=self._requests(self.check.takes_place, self.last_of_epoch),
            unit=unit,
            sets_options=self.session.body.has_set_options,
            checked=self.check.digests(),
        )
        self.check.compare(
            agreed.own,
            agreed.passed,
            self.session.group,
            exchange.gradients.names,
            step=self.index,
            examples=self._examples_checked,
        )
        self.check = CrossCheck()  # lets go of what was read
        self.session.restorer.agreed()
        self.computed = None
        if self._notes_step:
            whole = self.session.repeats and not agreed.left_out
            gradients = exchange.digest_of_gradients() if whole else 0
            self.computed = NextStep.of_step(self.plan, agreed.read, gradients, agreed.first)
            self.session.restorer.check_step(self.computed)
        if self._streams is not None:
            self._streams.settle(agreed.sums)
        self.sums, self.count, self.left_out = agreed.sums, agreed.count, agreed.left_out
        self._phases.enter(Phase.COMPUTING)
        self.bad = self._judge(self.index, agreed)
        return agreed

    def comes_again(self, lost: PeerLost, exchange: Exchange) -> bool:
        """Come into the next view, and return whether the step comes round again.

        It does not if a peer had applied it before the exchange failed here; then its state and sums came from there.
        """
        if self.leaves is not None:  # the peers have left
            self.leaves(None)
        self.session.body.end(self.index)
        self.session.body.give_up(self.index)
        exchange.buffers.restore()  # of a share that was broken off
        if isinstance(lost, ShareDiffers):
            self._differing = lost.found
            self.session.read_from(self.index)
            self._comes_again()
            return True
        self._look_since_boundary()
        with suppress(PeerLost):  # the first to know that scripts went different ways may have hung up
            exchange.announced.poll()
        self._recovery.recover(lost, f"in the exchange of step {self.index}")
        agreed = self._state.agreed
        if self._state.step > self.index and agreed is not None:
            self.sums, self.count, self.applied = agreed.sums, agreed.count, True
            return False
        self._comes_again()
        return True

    def _comes_again(self) -> None:
        """Count another attempt at the step, and record it."""
        self.attempt = self._state.attempt = self.attempt + 1
        self.context.events.emit(schema.Redo(step=self.index, attempt=self.attempt))

    def _look_since_boundary(self) -> None:
        """Leave the boundary if the script has changed something since: what comes now may save the state."""
        since_boundary = self.session.train_state.since_boundary
        changed = since_boundary.changed()
        if changed and self._state.at_boundary:
            self._state.at_boundary = False
            if not (of_script := [name for name in changed if name not in since_boundary.by_design]):
                return
            self.context.console.warn(
                f"{', '.join(of_script)}: changed in step {self.index} before its inner loop, and a run that goes on "
                "from here would do so once more\n"
                "  state  nothing is saved until the step is applied; what was committed before is whole\n"
                "  next   nothing: it is done once; what is changed behind the inner loop is saved in between, too"
            )

    def leave_to_the_script(self) -> None:
        """Seed the code after the update alike, also where the update drew noise or the state was taken over."""
        self.session.seed(after_seed(self.plan.plan.seed, self.index))


def _copy(batch: Any) -> Any:
    """Return a copy, aligned as the batch is, or kernels would sum in another order; None: there is none to be had."""
    try:
        return aligned(copy.deepcopy(batch))
    except Exception:  # the script's own class, which may raise anything
        return None


def counted(count: Any, asked: str) -> float:
    """Return a count as a number. Raises StepError. asked: how it was given."""
    of_one = (isinstance(count, torch.Tensor) and count.numel() == 1) or isinstance(count, np.generic)
    number = count.item() if of_one else count
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 <= number < math.inf:
        raise StepError(
            f"{asked}{count!r}: expected how many examples (or tokens, or what their weights add up to) the loss is "
            f"of,\na number of 0 or more\n{UNTOUCHED}  next   give len(y), say"
        )
    return number
