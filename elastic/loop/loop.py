"""Step after step, each applied on every worker exactly once, whatever happens to the workers.

    step: compute, exchange, apply -> the script's own code -> boundary: save, leave or stop -> ... -> final save

Where the run stands is run_state.py's, and what happens when a collective fails, or workers come and go, recovery.py's:
an exchange that fails comes to `recover`, which returns in the next view, in the same process with the same objects,
and its caller goes round again, unless a peer has got there already.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, NoReturn, TypeVar

from elastic.errors import CollectiveMismatch, Evicted, PeerLost, SavesFailed, StartFailed, StepError, Stranded
from elastic.events import schema
from elastic.group.fingerprint import Kind
from elastic.loop.between_steps.boundary import Boundary
from elastic.loop.between_steps.evaluation import Evaluations
from elastic.loop.between_steps.on_coordinator import OnCoordinator
from elastic.loop.context import Context
from elastic.loop.leaving.deadline import RECORD_S, LeaveDeadline
from elastic.loop.plain.loop import PlainLoop
from elastic.loop.plain.step import Count, PlainStep
from elastic.loop.plain.update import known_as_of_a_run
from elastic.loop.recovery import BREAKING, GRACE_S, Recovery
from elastic.loop.run_state import RunState
from elastic.loop.session import Session
from elastic.loop.steps.bad_steps import BadSteps
from elastic.loop.steps.current_step import CurrentStep
from elastic.loop.steps.not_finite import NotFinite
from elastic.loop.steps.step import Step
from elastic.loop.steps.update import Update
from elastic.loop.storage.step_digest import StepDigest
from elastic.membership.exit_statuses import AGAIN, INTERRUPTED
from elastic.membership.progress import Phase
from elastic.membership.worker.live import LeaveRequested, RunEnded
from elastic.preemption.notice import Notice
from elastic.preemption.process_notices import ProcessNotices
from elastic.preemption.setting import sources
from elastic.preemption.signals import SignalNotices
from elastic.state import compiled, gpu_kernels
from elastic.state.randomness import before_seed, end_seed, start_seed

AnyStep = TypeVar("AnyStep", Step, PlainStep)


class Loop:
    """The training loop of one worker: entered once, then iterated over, then left.

    compute  what is done with a step's exact gradients
    also     see Update
    """

    def __init__(
        self,
        context: Context,
        state: RunState,
        compute: Callable[[Step], None],
        also: Callable[[Step | CurrentStep], bool],
    ) -> None:
        self._context = context
        self._state = state
        self._notices = _notices(context)
        self.session = Session(context, state)
        rule = context.config.on_bad
        self._bad_steps = BadSteps(self.session, rule) if rule is not None else None
        check = self._bad_steps.check_weights if self._bad_steps is not None else _nothing_to_check
        self._judge = self._bad_steps.judge if self._bad_steps is not None else NotFinite(self.session).judge
        self.session.restorer.check = check
        self._recovery = Recovery(self.session, self._notices, check)
        self._boundary = Boundary(self.session, self._recovery)
        self._leave_deadline = LeaveDeadline(self.session, self._recovery.departure)
        self._update = Update(self.session, compute, also, self._bad_steps)
        self._evaluations = Evaluations(self.session, self._recovery)
        self._on_coordinator = OnCoordinator(self.session, self._recovery)
        self.step: CurrentStep | None = None
        self._leaves: Callable[[StepDigest | None], NoReturn] | None = None  # of the step that comes next
        self.plain: PlainLoop | None = None
        self._others_break = False  # this worker joined those whose scripts are leaving the loop

    def enter(self) -> None:
        """Join the run, and take its state.

        Raises what Session.open raises, and SystemExit where the launcher is to start this worker again, or it was told
        to leave before it held anything. The session is closed then.
        """
        session, state, context = self.session, self._state, self._context
        if context.live is not None:  # one that waits for its view, or loads, leaves in order, too
            self._take_notices()
        try:
            session.open()
            state.goes_on_from(session.restorer.position)
            state.saved = state.step
            self._recovery.check()
        except PeerLost as lost:
            session.close(abruptly=True)
            rank = session.view_group.rank
            context.console.warn(f"rank {rank} lost a peer while the run started: {lost}; its launcher starts it again")
            raise SystemExit(AGAIN) from lost
        except Stranded as stranded:
            session.close(abruptly=True)
            raise SystemExit(AGAIN) from stranded
        except RunEnded as ended:
            self._recovery.departure.tell_end(ended)
            session.close(abruptly=True)
            raise SystemExit(AGAIN) from ended
        except LeaveRequested as leaves:
            session.close(abruptly=True)
            raise SystemExit(0) from leaves
        except BaseException:
            session.close(abruptly=True)
            raise
        if session.side_state_of_those_ahead is not None:
            is_late = session.side_state_of_those_ahead["in_loop"]
            self._evaluations.are_made_alone = self._on_coordinator.all_are_past = is_late
            state.take_side_state(session.side_state_of_those_ahead)
            state.joined = True
            self._others_break = BREAKING in state.agreements
        session.curves.begin(from_storage=session.side_state_of_those_ahead is None)
        if session.is_past:
            self._evaluations.are_made_alone = self._on_coordinator.all_are_past = True
        for optimizer in context.config.optimizers.values():
            session.on_close(optimizer.register_step_pre_hook(self._only_in_update).remove)
            session.on_close(known_as_of_a_run(optimizer))
        if context.live is None:
            self._take_notices()
        is_late = self._evaluations.are_made_alone
        self._before_loop = session.train_state.writes_before_loop(again=state.step > 0 or is_late)
        session.on_close(self._before_loop.close)
        session.seed(start_seed(context.config.plan.seed))
        context.moment("loaded")

    def _take_notices(self) -> None:
        """Take notices for as long as the session is open."""
        notices, session = self._notices, self.session
        notices.install(self._on_notice)
        session.on_close(self._leave_deadline.close)
        if self._context.live is not None:
            self._context.live.on_leave = self._leave_deadline.arm
        session.on_close(lambda: notices.close(gone=notices.leave is not None and session.is_orderly))

    def exit(self, error: BaseException | None) -> None:
        """End this worker's part in the run as the script leaves its with-block, with this error or in order."""
        session, orderly = self.session, False
        try:
            leaves = self.step.leaves if self.step is not None else None
            if leaves is not None and (error is None or isinstance(error, Exception)):
                orderly = True  # all is saved; the script left its loop by itself, or failed in a body for nothing
                if error is not None:
                    self._context.console.warn(
                        f"the batch that was passed once more on leaving raised {type(error).__name__}: {error}\n"
                        "  state  all is saved; a resume has nothing to compare its first share with\n"
                        "  next   nothing, if it does not raise on a resume"
                    )
                leaves(None)
            if error is None:
                if self._state.in_loop:
                    self._broke_off_or_refused()
                elif self._others_break and self._recovery.all_break():
                    self._finish()
                self._recovery.part()
                orderly = True
                return
            settled = self._recovery.departure.is_settled
            orderly = isinstance(error, SystemExit) and (not error.code or (settled and error.code == INTERRUPTED))
            if orderly and self._state.in_loop and not settled:
                self._ended_itself()
            session.gradient_sync.buffers.restore()  # a share that raised has moved BatchNorm's averages
            if self.plain is not None and hasattr(error, "add_note"):  # Python 3.11
                for note in self.plain.update.notes(error):
                    error.add_note(note)
            if not isinstance(error, (SystemExit, KeyboardInterrupt)):
                self._record(error)
            if (known := compiled.explained(error) or gpu_kernels.explained(error)) is not None:
                raise known from error
        finally:
            session.close(abruptly=not orderly)

    def begin_plain(self, count: Count | None) -> PlainLoop:
        """Return the loop over batches as people write it, whose own code is the update; for `count` see PlainStep."""
        self.plain = PlainLoop(self.session, self, self._update, count)
        return self.plain

    def in_steps(self) -> Iterator[Step]:
        """Return the iterator of `for step in run`."""
        return self.steps(self._next_step)

    def steps(self, next_step: Callable[[], AnyStep]) -> Iterator[AnyStep]:
        """Yield step after step until the run is finished, or all leave, and cross the boundary behind each."""
        session, state, plan = self.session, self._state, self._context.config.plan
        if (streams := self._context.config.streams) is not None:
            streams.check()
        session.find_generators()
        self._before_loop.undo(_written_before_loop, step=state.step)
        state.begin_loop()
        self._evaluations.are_made_alone = self._on_coordinator.all_are_past = session.is_past
        if session.is_past and not state.finished:
            raise StartFailed(
                f"the script's other workers are past this run, which is not finished, at step {state.step}\n"
                "  state  nothing was applied\n"
                "  next   let all workers leave a run where it ends, or by run.stop(reason), before the next one begins"
            )
        session.trained.begin_loop()
        session.train_state.begin_loop()
        if self._others_break:
            self._others_break = False
            self._recovery.all_break()
        while not state.finished:
            session.phases.enter_script()
            driver = next_step()
            self.step = step = driver.current
            session.seed(before_seed(plan.seed, step.index))
            began_s = time.monotonic()
            yield driver
            if not step.applied:
                raise self._left_open(step)
            self._leave_step()
            ended_s = time.monotonic()
            if self._boundary.cross():
                yield from self._leave(next_step, began_s, ended_s)
        self._finish()
        state.in_loop = False
        session.seed(end_seed(plan.seed))

    def _leave(self, next_step: Callable[[], AnyStep], began_s: float, ended_s: float) -> Iterator[AnyStep]:
        """Leave with all workers, once everything is saved. Raises SystemExit.

        The coordinator, and with it the others of its replica, is handed one more batch, for nothing: what the next
        step's first share gives is left for whoever resumes. began_s, ended_s: of the last step
        """
        session, departure, saver = self.session, self._recovery.departure, self.session.restorer.saver
        by_s = departure.by_s if departure.by_s is not None else ended_s + GRACE_S  # nobody says, and most wait so long
        in_time = by_s - time.monotonic() > ended_s - began_s + RECORD_S  # a share takes no longer than a step
        departure.tell_all_is_saved()
        saves = saver is not None and session.view_group.rank < self._context.config.replica_size
        if session.first_is_passed and saves and not session.any_mate(not in_time):
            self._leaves = self._leave_behind
            driver = next_step()
            self.step = driver.current
            session.seed(before_seed(self._context.config.plan.seed, driver.current.index))
            yield driver
        departure.leave_with_all()

    def _leave_behind(self, found: StepDigest | None) -> NoReturn:
        """Leave what the next step's first share gave for whoever resumes, if it is known, and end this worker."""
        saver = self.session.restorer.saver
        if found is not None and saver is not None:
            saver.poll()
            saver.note(found)
            saver.write_note()
        self._recovery.departure.leave_with_all()

    def evaluate(
        self,
        dataset: Any,
        function: Callable[..., Mapping[str, Any]],
        batch_size: int | None,
        collate_fn: Callable[[list[Any]], Any] | None,
    ) -> dict[str, Any]:
        """Evaluate as Run.evaluate says; raise StepError within a step, but for its update."""
        if not self._state.updating:
            self._check_between_steps("evaluate")
        step = self.plain.step if self.plain is not None else None
        with step.evaluating() if step is not None else nullcontext():
            return self._evaluations.make(dataset, function, batch_size, collate_fn)

    def log(self, values: Mapping[str, Any]) -> None:
        """Log as Run.log says; raise StepError within a step that is not applied."""
        self._check_between_steps("log")
        self.session.curves.log(values)

    def on_coordinator(self, function: Callable[[], object]) -> None:
        """Call `function` as Run.on_coordinator says; raise StepError within a step."""
        self._check_between_steps("on_coordinator")
        self._on_coordinator.call(function)

    def _check_between_steps(self, called: str) -> None:
        """Raise StepError where the script has called `called` within a step, or at the beginning of an epoch."""
        step = self.plain.step if self.plain is not None else None
        if step is not None and not step.current.begun and not step.current.applied and not step.update_follows:
            raise StepError(
                f"run.{called} was called at the beginning of epoch {step.epoch}, before its batches\n"
                "  found  who joins in the epoch's midst, or goes on there, passes its beginning by itself, and the "
                "others are past it\n"
                "  state  what was applied stays\n"
                "  next   call it behind the last batch of the epoch before; ahead of run.epochs() for the first one"
            )
        if self.step is not None and not self.step.applied:
            where = "after the inner loop" if self.plain is None else "in the body under `if run.stepped:`"
            raise StepError(
                f"run.{called} was called inside step {self.step.index}, whose gradients are under way\n"
                "  state  the model is as it was before this step\n"
                f"  next   call it {where}, on all workers"
            )

    def _next_step(self) -> Step:
        """Return the next step of `for step in run`."""
        self.session.train_state.since_boundary.note()
        return Step(self.current_step(), apply=self._update)

    def current_step(self) -> CurrentStep:
        """Return the step that comes next."""
        plan = self.session.step_plan(self._state.step)
        return CurrentStep(
            self.session,
            self._recovery,
            plan,
            requests=self._boundary.requests,
            judge=self._judge,
            leaves=self._leaves,
        )

    def _on_notice(self, notice: Notice) -> None:
        """Tell the agent of a notice, and watch its deadline; in a thread of its own, as this worker may wait."""
        if self._context.live is not None:
            self._context.live.request_leave(notice.why, notice.by_s)
        self._leave_deadline.arm()

    def _leave_step(self) -> None:
        """Let go of a step that is applied."""
        self.step, self._state.attempt = None, 0

    def _finish(self) -> None:
        """Make the last save and wait for it on all workers: whoever sees this run end finds its result in storage."""
        session, recovery = self.session, self._recovery
        self._state.stop_request = None
        recovery.check()

        def alike() -> None:
            recovery.meet(Kind.FINISH)
            session.gradient_sync.replicas.before_save(self._state.step)

        def saved() -> None:
            self._context.moment("finish")
            session.all_or_none(alike)
            recovery.save_unless_held(must=True, last=True)
            recovery.wait_for_all(Kind.FINISH, None)

        try:
            recovery.agree("finish", saved, "waiting for the last save")
        except SavesFailed as failed:
            raise failed.with_traceback(None) from None  # how it came here says nothing that its words do not
        session.phases.enter(Phase.ENDED)
        self._notices.close()
        if self._context.live is not None and not session.is_past:
            self._context.live.finished(step=self._state.step)
        session.tell_finished()

    def _record(self, error: BaseException) -> None:
        self._context.events.emit(schema.Error(step=self._state.step, error=f"{type(error).__name__}: {error}"))

    def _broke_off_or_refused(self) -> None:
        try:
            self._broke_off()
        except (StepError, CollectiveMismatch) as refused:  # which leaves no block of the script's any more
            self._record(refused)
            raise

    def _broke_off(self) -> None:
        """End the run if all workers left the outer loop by `break` at this step; else this worker alone leaves it."""
        # Asked before anything else: whoever waits to join, or is told to leave, has nothing more to wait for.
        session, state = self.session, self._state
        step = self.step
        if step is not None and not step.applied:
            session.gradient_sync.buffers.restore()
            raise self._left_open(step)
        self._leave_step()
        self._boundary.reach()
        plain = self.plain
        site = plain.left_at if plain is not None else None
        if state.finished or self._recovery.all_break(must=plain is not None, site=site):
            self._finish()
        else:
            self._recovery.departure.break_off()

    def _ended_itself(self) -> None:
        """Warn that nothing is saved for a script's sys.exit() in the loop: more of a step's code may have followed."""
        state, saver = self._state, self.session.restorer.saver
        with suppress(Evicted):  # what others go on with is not lost
            if saver is None or saver.holds(state.step, state.stopped):  # one worker tells it
                return
            stop = "; run.stop takes effect after one more step" if state.stop_request is not None else ""
            self._context.console.warn(
                f"the script ended by sys.exit() in the loop, with {state.step:,} of {state.total_steps:,} steps "
                f"applied{stop}\n"
                "  state  nothing was saved for that: unless others go on, the steps since the newest save are lost\n"
                "  next   let the loop go on: run.stop(reason) ends the run for all after the next step, saved; on "
                "SIGTERM to the\n         launcher, or a notice, all save and leave, and the same command goes on"
            )

    def _left_open(self, step: CurrentStep) -> StepError:
        """Return the error for a step whose inner loop did not end: break, return, or an exception that was caught."""
        torn, plain = self._state.updating, self.plain
        batches = "for batch in step" if plain is None else "for batch in run.batches()"
        where, found, instead = "", "", "run.stop(reason) ends a run early"
        if plain is not None:
            where = f", at {plain.left_at}" if plain.left_at is not None else ""
            found = "  found  a step has a body for each of this worker's shares, and is one when all are passed\n"
            instead = (
                "run.stop(reason)\n         ends a run early, for all workers; `break` where all come to it, "
                "`if run.stepped:`"
            )
        before = "its update was complete" if torn else "its inner loop ended"
        return StepError(
            f"step {step.index} was left before {before}{where}\n"
            f"{found}"
            f"  state  {'torn by that update' if torn else 'as it was before this step'}; nothing of it was saved, and "
            "what was saved before stays\n"
            f"  next   let `{batches}` run to its end, and exceptions leave the with-block; {instead}"
        )

    def _only_in_update(self, *_: Any) -> None:
        """Raise StepError where the script steps an optimizer that Run steps itself."""
        if not self._state.updating and self.plain is None:
            raise StepError(
                "optimizer.step() was called in the loop, and Run steps the optimizer itself when the inner loop ends\n"
                "  state  the model is unchanged\n"
                "  next   remove the call, or pass update=Update(apply=function) to do it your own way"
            )


def _written_before_loop(what: str) -> StepError:
    """Return the error for a script that writes to the run's state between `with` and its loop."""
    return StepError(
        f"between `with elastic.Run(...)` and its loop the script wrote to {what}\n"
        "  found  from `with` on they are the run's: a run that is resumed, and a worker that joins, come there with "
        "trained ones\n"
        "  state  nothing was trained here; what was applied and saved before is whole\n"
        "  next   write them ahead of the `with`: a new run begins with them; later, behind an epoch's last batch"
    )


def _notices(context: Context) -> ProcessNotices:
    """Return what hears notices; one worker of a node watches sources, where no agent does. Raises ConfigError."""
    launch = context.launch
    watched = sources(launch.notices) if launch.local_rank == 0 else []
    return ProcessNotices(SignalNotices(grace_s=launch.grace_s), watched, say=context.console.warn)


def _nothing_to_check() -> None:
    """Find everything fit to be saved, in a run without on_bad."""


def _nothing(_: Any) -> AbstractContextManager[None]:
    return nullcontext()
