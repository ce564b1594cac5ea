"""The step engine: this worker's shares of a batch, their gradients and sums, and the exchange that completes them.

    for each share: read -> seed its stream -> hand it to the loop's body -> backward -> its sums
    then: exchange -> exact gradients in `.grad`, exact sums in `sums` -> the update

A failed exchange has changed nothing but `.grad`: the same step comes round again in a new view, with its sums reset
(`attempt` counts). Each kind of loop is a `Driver` of it: that of step.py (`for batch in step`), and that of
plain/step.py (a loop that knows of no steps). Which shares are this worker's is loop/assignment.py's to say, in which
order they are added group/tree.py's, what is passed for nothing checked_shares.py's, what applying means update.py's.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any, NoReturn, Protocol

import numpy as np

from elastic.data.aligned import aligned
from elastic.data.data_plan import StepPlan
from elastic.data.example_digest import quick_digest
from elastic.errors import PeerLost, StepError
from elastic.events import schema
from elastic.group.replica_group import MateLost, ReplicaGroup, Word
from elastic.group.sharded_gradients import ShardedGradientSum
from elastic.group.sums import FIRST, Agreed
from elastic.loop.assignment import ReplicaAssignment, pieces, pieces_in
from elastic.loop.disagreement import ShareDiffers
from elastic.loop.recovery import Recovery
from elastic.loop.session import Session
from elastic.loop.steps.bad_steps import PassOver
from elastic.loop.steps.checked_shares import CheckedShares, ForNothing
from elastic.loop.steps.reading import Contribution, Reader
from elastic.loop.steps.step_note import StepNote
from elastic.loop.storage.step_digest import StepDigest
from elastic.membership.progress import Phase
from elastic.state.randomness import after_seed, outside_seed, share_seed

_PHASE = 0  # a step's only one; its place in the seeds and in the exchange's name


class Purpose(Enum):
    """What the body of a batch is run for.

    COUNTS    its gradients and sums are the step's
    LEFT_OUT  it stands for a batch of which every example was left out: what it gives weighs nothing
    CHECK     another worker passes it as its own: what it gives is compared, and let go
    STAND_IN  this worker has no share of the step, and its loop must have a body
    """

    COUNTS, LEFT_OUT, CHECK, STAND_IN = range(4)


@dataclass
class BatchInHand:
    """The batch that was handed out last.

    share  whose it is; None: no body is at work
    merges, piece, pieces  see GradientSum.begin_pass
    examples, share_examples  how many are in it, and in the share up to it
    last   it is this worker's last of the step
    is_due  its backward pass has not come yet
    """

    share: int | None = None
    purpose: Purpose = Purpose.COUNTS
    merges: int = 0
    piece: int = -1
    pieces: int = 0
    examples: int = 0
    share_examples: int = 0
    last: bool = False
    is_due: bool = False


class Driver(Protocol):
    """What each kind of loop does around its bodies.

    must_have_a_body  a worker without a share is handed a batch all the same
    """

    must_have_a_body: bool

    def body_begins(self, batch: Any) -> None:
        """Prepare for the body of the batch in hand, before it is handed out."""

    def body_has_ended(self) -> None:
        """Look at the body. Raises PeerLost, StepError."""

    def shares_have_ended(self) -> None:
        """Exchange the step, unless a body has. Raises what `CurrentStep.carry_out` raises."""

    def attempt_has_failed(self) -> None:
        """Let go of what the bodies have begun: they come again, or a peer has applied the step."""


class CurrentStep:
    """A step as this worker computes it, whoever drives it.

    Attributes:
        index, attempt: See Step.
        batch: The one that was handed out last.
        reader, own: How its batches are read, and what this worker's shares add to it.
        checked, note: What is passed for nothing, and what is noted for a resume.
        agreed: What all know of it once it is exchanged, here or by the peers that had applied it.
        begun: Its first batch has been asked for.
        failed: The present attempt has failed.
        completed: A peer had applied it, and this worker, which held all of it, does so in the view after.
        taken: A peer had applied it: its state came from there, and there is nothing to update.
        applied: Whether the run's state holds it, or that it was passed over.
        bad: Once it is exchanged: what passing it over is; None: it is to be applied.
        leaves: All that it is for is its first share, for whoever resumes: called with that, to leave. None: for all
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
        leaves: Callable[[StepDigest | None], NoReturn] | None = None,
    ) -> None:
        self.session = session
        self.plan = plan
        self.index = plan.index
        self.attempt = session.state.attempt = 0
        self.batch = BatchInHand()
        self.reader = Reader(session, plan)
        self.own = Contribution()
        self.checked = CheckedShares(session, plan, self.reader)
        self.note = StepNote(session, plan)
        self.agreed: Agreed | None = None
        self.begun = self.failed = self.taken = self.completed = self.applied = False
        self.bad: PassOver | None = None
        self.leaves = leaves
        self.shown_sums: Callable[[Mapping[str, Any], float], Mapping[str, Any]] = lambda sums, _: sums
        self._recovery = recovery
        self._requests = requests
        self._judge = judge

    @property
    def sums(self) -> dict[str, Any]:
        """Return the step's sums; none before it is exchanged."""
        return {} if self.agreed is None else self.agreed.sums

    @property
    def count(self) -> float:
        """Return what the step's loss is of; 0 before it is exchanged."""
        return 0 if self.agreed is None else self.agreed.count

    @property
    def passed_over(self) -> str | None:
        """Return why the step was passed over; None: it was not, or not yet."""
        return self.session.train_state.health.why(self.index) if self.applied else None

    def batches(self, driver: Driver) -> Iterator[Any]:
        """Hand out this worker's batches, in one view after another, until the step is exchanged, here or by peers.

        Raises StepError, and what the driver raises.
        """
        self.begun = True
        while self.agreed is None:
            self.failed = False
            try:
                yield from self._attempt(driver)
                driver.shares_have_ended()
            except PeerLost as lost:
                self.recover(lost, driver)

    def _attempt(self, driver: Driver) -> Iterator[Any]:
        """Hand out the batches of one attempt, in the present view. Raises PeerLost, and as `batches`."""
        self._begin()
        if self.leaves is not None:
            for first in self.checked.first_share():
                yield from self._hand_for_nothing(first, driver)
            self.leaves(self.checked.left_behind())
        passed = 0
        for one in self.checked.ahead():
            yield from self._hand_for_nothing(one, driver)
            passed += 1
        for _ in range(passed, self.checked.check.at_least):
            yield from self._hand_for_nothing(ForNothing(0, self.reader.stand_in(), {}), driver)
        assignment = self.session.gradient_sync.assignment
        if assignment.replica is not None:
            yield from self._rounds(assignment.replica, driver)
            return
        if not assignment.batches and driver.must_have_a_body:
            yield from self._stand_in(driver, last=True)
        for number, (shares, merges) in enumerate(zip(assignment.batches, assignment.merges, strict=True)):
            self.own.begin_share()
            count, examples = pieces(self.session.context.config, self.plan, shares, assignment.blocks), 0
            last_share = number == len(assignment.batches) - 1
            for piece in range(count):
                current = BatchInHand(shares[0], merges=merges, piece=piece, pieces=count, share_examples=examples)
                current.last = last_share and piece == count - 1
                batch = self._read(shares, current)
                examples = current.share_examples
                check = self.checked.check
                if check.copied == shares[0] and piece == 0 and (copied := _copy(batch)) is not None:
                    yield from self._hand_for_nothing(ForNothing(shares[0], copied, check.theirs), driver)
                read = None if current.purpose is Purpose.LEFT_OUT else batch
                takes = check.takes(shares[0], read) if piece == 0 else None
                self.session.gradient_sync.gradients.look_at(takes)
                self.batch = current
                yield from self._hand(batch, driver)
                if self.agreed is not None or self.failed:  # within the body, in a loop over batches
                    return

    def _rounds(self, replica: ReplicaAssignment, driver: Driver) -> Iterator[Any]:
        """Hand out the batches of a replica of several workers, which all pass equally often.

        Whoever has no share in a round, or one of fewer micro-batches, passes another for nothing.
        """
        config, sync = self.session.context.config, self.session.gradient_sync
        gradients, place = sync.gradients, self.session.group.rank % config.replica_size
        assert isinstance(gradients, ShardedGradientSum)
        if not replica.rounds and driver.must_have_a_body:
            gradients.begin_round([], passes=1)
            yield from self._stand_in(driver, last=True)
        for of_round in replica.rounds:
            counts = pieces_in(config, self.plan, of_round, sync.assignment.blocks)
            passes, merges = max(counts), iter(of_round.merges)
            each = [(next(merges), count) if count else None for count in counts] if gradients.ordered else []
            gradients.begin_round(each or [(of_round.merges[0], passes)], passes=passes)
            own, count, examples = of_round.batches[place], counts[place], 0
            if own:
                self.own.begin_share()
            for piece in range(passes):
                last = of_round is replica.rounds[-1] and piece == passes - 1
                gradients.look_at(None)
                if piece >= count:
                    yield from self._stand_in(driver, last=last)
                else:
                    current = BatchInHand(own[0], piece=piece, pieces=count, share_examples=examples, last=last)
                    batch = self._read(own, current)
                    examples = current.share_examples
                    if piece == 0:
                        gradients.look_at(self.checked.check.takes(own[0], batch))
                    self.batch = current
                    yield from self._hand(batch, driver)
                if self.agreed is not None or self.failed:  # within the body, in a loop over batches
                    return

    def _stand_in(self, driver: Driver, *, last: bool) -> Iterator[Any]:
        """Hand out a batch for a body that counts for nothing."""
        batch = self.reader.stand_in()
        self.batch = BatchInHand(0, Purpose.STAND_IN, last=last)
        yield from self._hand(batch, driver)

    def _begin(self) -> None:
        """Begin the step in the present view, with nothing read or counted."""
        session, sync = self.session, self.session.gradient_sync
        sync.plan(self.plan)
        session.phases.enter(Phase.COMPUTING)
        self.own, self.reader.indices = Contribution(), []
        self.note.compare_with_end(self.reader)
        noted = session.restorer.weights_noted(self.index)
        trained = sync.begin(self.index, again=self.attempt > 0, alone=self.leaves is not None, noted=noted)
        sync.gradients.look_at(None)
        self.checked.begin(alone=self.leaves is not None)
        session.body.begin(self.index, trained)

    def _read(self, shares: range, current: BatchInHand) -> Any:
        """Read a batch of this worker's own, and note what was read. Raises PeerLost, ExampleError, StepError."""
        context, streams, share = self.session.context, self.session.context.config.streams, shares[0]
        context.moment("data", share)
        with self.reader.timed():
            loaded = self.reader.next()
            batch = loaded.batch
            if batch is None:
                current.purpose, batch = Purpose.LEFT_OUT, self.reader.stand_in()
        current.examples = len(loaded.indices)
        current.share_examples += current.examples
        if loaded.left_out:
            self.own.leave_out(loaded.left_out, self.session, step=self.index, attempt=self.attempt, share=share)
        ended = shares if current.piece == current.pieces - 1 else ()
        if streams is not None:
            for one in ended:
                self.own.add(streams.carried(one))
        if current.purpose is Purpose.COUNTS:
            batch = context.observer.batch(batch, step=self.index, share=share, attempt=self.attempt)
        if self.session.record.of_shares:
            is_read = current.purpose is Purpose.COUNTS
            self.own.has_read(loaded.digest or quick_digest(batch, 1) if is_read else 0)
        if self.note.is_taken and not loaded.left_out:
            read = batch if current.purpose is Purpose.COUNTS else None
            self.note.read(self.own, read, share, current.piece, len(ended))
        return batch

    def _hand(self, batch: Any, driver: Driver) -> Iterator[Any]:
        """Hand out the batch in hand, whose body draws from its share's own stream."""
        self.session.mates_go_on(None)  # all are about to make one pass together, or none
        share, piece = self.batch.share or 0, max(self.batch.piece, 0)
        self.session.seed(share_seed(self.plan.plan.seed, self.index, _PHASE, share, piece))
        if self.batch.purpose in (Purpose.COUNTS, Purpose.LEFT_OUT):
            self.session.context.moment("forward", share)
        self.batch.is_due = True
        driver.body_begins(batch)
        self.session.let_pass(True)
        try:
            yield batch
        finally:
            self.session.let_pass(False)
        driver.body_has_ended()

    def _hand_for_nothing(self, one: ForNothing, driver: Driver) -> Iterator[Any]:
        """Hand out a batch whose body counts for nothing, and put back the buffers that it moves."""
        check = self.checked.check
        check.begins(*one)
        if one.batch is not None:
            self.batch = BatchInHand(one.share, Purpose.CHECK)
            yield from self._hand(one.batch, driver)
            self.session.gradient_sync.buffers.restore()
        check.ends()

    def add(self, values: Mapping[str, Any], *, of_nothing: bool = False) -> bool:
        """Add to the sums of the share in hand; return whether there is one. of_nothing: see ShareSums.add."""
        if self.batch.share is None:
            return False
        if self.batch.purpose is Purpose.COUNTS:
            self.own.add(values, of_nothing=of_nothing)
        return True

    def backward_has_come(self) -> None:
        """Note the backward pass of the batch in hand: it has one."""
        self.batch.is_due = False

    def take_buffers(self) -> None:
        """Take what the share in hand has moved of buffers. Raises StepError."""
        assert self.batch.share is not None
        refused = None
        try:
            self.session.gradient_sync.buffers.share_done(self.batch.share, self.batch.share_examples)
        except StepError as error:
            refused = error
        if refused is not None:
            self.session.body.end(self.index)  # weights that were written come first: a rule would not help those
            raise refused

    def carry_out(self, *, unit: int = 1) -> Agreed:
        """Exchange the step: `.grad`, `sums` and `count` are exact afterwards, and `bad` is known.

        unit: see GradientSync.carry_out. Raises PeerLost, StepError, BadStep.
        """
        if self.session.mates is None:
            agreed = self._exchange(unit)
        else:
            agreed = self._exchange_with_mates(self.session.mates, unit)
        self._has_exchanged(agreed)
        return agreed

    def _has_exchanged(self, agreed: Agreed) -> None:
        """Take what the exchange gave: compare and note it, and judge the step. Raises as `carry_out`."""
        session = self.session
        session.let_pass(False)  # a body over batches goes on, while mates may wait for this worker at a save
        self.checked.compare(agreed)
        session.restorer.agreed()
        self.note.exchanged(agreed)
        if session.context.config.streams is not None:
            session.context.config.streams.settle(agreed.sums)
        session.phases.enter(Phase.COMPUTING)
        self.bad = self._judge(self.index, agreed)
        self.agreed = agreed

    def _exchange_with_mates(self, mates: ReplicaGroup, unit: int) -> Agreed:
        """Exchange the step, which a replica of several workers has or lacks as a whole. Raises as `carry_out`."""
        state, held, lost = self.session.state, None, None
        # From there on comes what the replica's workers exchange among themselves.
        self.session.all_or_none(self.session.gradient_sync.meet)
        try:
            held = self._exchange(unit)
            self.session.gradient_sync.all_hold(self.index)
        except PeerLost as failure:
            lost = failure
            self.session.view_group.abort()  # a mate may be waiting for this worker's word
        if mates.vote(Word.TAKEN if lost is None else Word.LOST) is Word.TAKEN:
            assert held is not None  # its own word went to all, behind all that it is of
            return held
        state.held = held
        raise MateLost(self.index) from lost

    def _exchange(self, unit: int) -> Agreed:
        """Exchange the step with all workers of the view."""
        session, context, own = self.session, self.session.context, self.own
        self.batch = BatchInHand()
        session.body.end(self.index)
        session.seed(outside_seed(self.plan.plan.seed, self.index, _PHASE))  # the update draws alike everywhere
        context.moment("exchange")
        session.train_state.staging.poll()
        session.phases.enter(Phase.WAITING)
        check = self.checked.check
        if (digests := check.digests_of_first()) is not None:
            own.sums[0].add(FIRST, np.array(digests))
        return session.gradient_sync.carry_out(
            (self.plan.epoch, self.index, _PHASE),
            own.sums,
            count=own.count,
            examples=self.plan.count,
            requests=self._requests(check.takes_place, self.plan.last_of_epoch),
            unit=unit,
            sets_options=session.body.has_set_options,
            checked=check.digests(),
            digests=own.digests(session.gradient_sync.assignment.batches) if session.record.of_shares else None,
        )

    def recover(self, lost: PeerLost, driver: Driver) -> None:
        """Come into the next view: the step comes round again, or is `taken`, where a peer had applied it."""
        self.failed, self.batch = True, BatchInHand()
        driver.attempt_has_failed()
        if self.leaves is not None:  # the peers have left
            self.leaves(None)
        session, state = self.session, self.session.state
        session.body.end(self.index)
        if state.held is None:
            session.body.give_up(self.index)
        session.gradient_sync.buffers.restore()  # of a share that was broken off
        if isinstance(lost, ShareDiffers):
            self.checked.pass_again(lost.found)
            session.read_from(self.index)
        else:
            self._leave_boundary_if_changed()
            with suppress(PeerLost):  # the first to know that scripts went different ways may have hung up
                session.gradient_sync.announced.poll()
            exchanged_by = session.gradient_sync
            self._recovery.recover(lost, f"in the exchange of step {self.index}")
            held, state.held = state.held, None
            if state.learned is not None and held is not None:
                self.completed = True
                session.completes(exchanged_by)
                self._has_exchanged(held)
                return
            session.body.give_up(self.index)  # a step that was held has kept what its bodies had set
            if state.step > self.index and state.agreed is not None:
                self.agreed, self.taken = state.agreed, True
                self.is_applied()
                self.leave_to_the_script()
                return
        self.attempt = state.attempt = self.attempt + 1
        session.context.events.emit(schema.Redo(step=self.index, attempt=self.attempt))

    def is_applied(self) -> None:
        """Note, and put on record, that the run's state holds the step, or that it was passed over."""
        self.applied = True
        session, noted, why = self.session, self.note.computed, self.passed_over
        assert self.agreed is not None
        session.record.add(
            self.index,
            session.restorer.claim,
            self.agreed,
            coordinates=session.view_group.rank == 0,
            epoch=self.plan.epoch,
            gradients=noted.gradients if noted is not None else 0,
            weights=noted.weights if noted is not None else 0,
            gradient_prefixes=self.note.prefixes.gradients,
            weight_prefixes=self.note.prefixes.weights,
            parameters=self.note.prefixes.parameters,
            passed_over=why,
            first=session.train_state.health.passed[-1].first if why is not None else None,
        )

    def _leave_boundary_if_changed(self) -> None:
        """Leave the boundary if the script has changed something since: what comes now may save the state."""
        state, since_boundary = self.session.state, self.session.train_state.since_boundary
        changed = since_boundary.changed()
        if changed and state.at_boundary:
            state.at_boundary = False
            if not (of_script := [name for name in changed if name not in since_boundary.by_design]):
                return
            self.session.context.console.warn(
                f"{', '.join(of_script)}: changed in step {self.index} before its inner loop, and a run that goes on "
                "from here would do so once more\n"
                "  state  nothing is saved until the step is applied; what was committed before is whole\n"
                "  next   nothing: it is done once; what is changed behind the inner loop is saved in between, too"
            )

    def leave_to_the_script(self) -> None:
        """Seed the code after the update alike, also where the update drew noise or the state was taken over."""
        if self.completed:
            self.session.has_completed()
        self.session.seed(after_seed(self.plan.plan.seed, self.index))


def _copy(batch: Any) -> Any:
    """Return a copy, aligned as the batch is, or kernels would sum in another order; None: there is none to be had."""
    try:
        return aligned(copy.deepcopy(batch))
    except Exception:  # the script's own class, which may raise anything
        return None
