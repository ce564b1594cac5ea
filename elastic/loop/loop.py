"""Step after step, each applied on every worker exactly once, whatever happens to the workers.

    step: compute, exchange, apply -> the script's own code -> boundary: save, leave or stop -> ... -> final save

Where the run stands is run_state.py's, and what happens when a collective fails, or workers come and go, recovery.py's:
an exchange that fails comes to `recover`, which returns in the next view, in the same process with the same objects,
and its caller goes round again, unless a peer has got there already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from elastic.errors import PeerLost, StepError
from elastic.events import schema
from elastic.group.fingerprint import Kind
from elastic.loop.boundary import Boundary
from elastic.loop.context import Context
from elastic.loop.evaluation import Evaluations
from elastic.loop.recovery import EXIT_RESTART, Recovery
from elastic.loop.run_state import RunState
from elastic.loop.session import Session
from elastic.loop.step import Step
from elastic.loop.update import Update
from elastic.membership.live import RunEnded, ToldToLeave
from elastic.membership.progress import Phase
from elastic.preemption.signals import SignalNotices
from elastic.state.compiled import explained
from elastic.state.randomness import before_seed, end_seed, seed_streams, start_seed


class Loop:
    """Of one worker: entered once, then iterated over, then left.

    compute  what is done with a step's exact gradients
    """

    def __init__(self, context: Context, state: RunState, compute: Callable[[Step], None]) -> None:
        self._context = context
        self._state = state
        self._notices = SignalNotices()
        self.session = Session(context, state)
        self._recovery = Recovery(self.session, self._notices)
        self._boundary = Boundary(self.session, self._recovery)
        self._update = Update(self.session, compute)
        self._evaluations = Evaluations(self.session, self._recovery)
        self._step: Step | None = None  # in hand

    def enter(self) -> None:
        """Joins the run, and holds its state.

        Raises what Session.open raises, and SystemExit where the launcher is to start this worker again, or it was told
        to leave before it held anything. The session is closed then.
        """
        session, state, context = self.session, self._state, self._context
        try:
            session.open()
        except PeerLost as lost:
            session.close(abruptly=True)
            rank = session.view_group.rank
            context.console.warn(f"rank {rank} lost a peer while the run started: {lost}; its launcher starts it again")
            raise SystemExit(EXIT_RESTART) from lost
        except RunEnded as ended:
            session.tell_end(ended)
            session.close(abruptly=True)
            raise SystemExit(EXIT_RESTART) from ended
        except ToldToLeave as leaves:
            session.close(abruptly=True)
            raise SystemExit(0) from leaves
        except BaseException:
            session.close(abruptly=True)
            raise
        state.goes_on_from(session.restorer.position)
        if session.side_state_of_those_ahead is not None:
            self._evaluations.are_made_alone = session.side_state_of_those_ahead["in_loop"]
            state.take_side_state(session.side_state_of_those_ahead)
        for optimizer in context.config.optimizers.values():
            session.on_close(optimizer.register_step_pre_hook(self._only_in_update).remove)
        self._notices.install(context.live.told_to_leave if context.live is not None else None)
        session.on_close(self._notices.close)
        seed_streams(start_seed(context.config.plan.seed), context.config.device)
        context.moment("loaded")

    def exit(self, error: BaseException | None) -> None:
        """The script leaves its with-block, with this error or in order."""
        session, orderly = self.session, False
        try:
            if error is None:
                if self._state.in_loop:
                    self._broke_off()
                self._recovery.part()
                orderly = True
                return
            orderly = isinstance(error, SystemExit) and not error.code
            session.exchange.buffers.restore()  # a share that raised has moved BatchNorm's averages
            if not isinstance(error, (SystemExit, KeyboardInterrupt)):
                failure = f"{type(error).__name__}: {error}"
                self._context.events.emit(schema.Error(step=self._state.step, error=failure))
            if (known := explained(error)) is not None:
                raise known from error
        finally:
            session.close(abruptly=not orderly)

    def steps(self) -> Iterator[Step]:
        session, state, plan = self.session, self._state, self._context.config.plan
        device = self._context.config.device
        state.begin_loop()
        self._evaluations.are_made_alone = False
        session.trained.begin_loop()
        session.train_state.begin_loop()
        while not state.finished:
            session.phases.enter_script()
            self._step = step = self._next_step()
            seed_streams(before_seed(plan.seed, step.index), device)
            yield step
            if not step.applied:
                raise self._left_open(step)
            self._leave_step()
            self._boundary.cross()
        self._finish()
        state.in_loop = False
        seed_streams(end_seed(plan.seed), device)

    def evaluate(
        self, dataset: Any, function: Callable[..., Mapping[str, Any]], batch_size: int | None
    ) -> dict[str, Any]:
        """See Run.evaluate."""
        if self._step is not None and not self._step.applied:
            raise StepError(
                f"run.evaluate was called inside step {self._step.index}, whose gradients are under way\n"
                "  state  the model is as it was before this step\n"
                "  next   call it after the inner loop, on all workers"
            )
        return self._evaluations.make(dataset, function, batch_size)

    def _next_step(self) -> Step:
        plan = self.session.step_plan(self._state.step)
        return Step(self.session, self._recovery, plan, wishes=self._boundary.wishes, apply=self._update)

    def _leave_step(self) -> None:
        self._step, self._state.attempt = None, 0

    def _finish(self) -> None:
        """The last save, awaited by all, so that whoever sees this run end finds its result in storage."""
        session, recovery = self.session, self._recovery
        self._state.stop_wish = None

        def saved() -> None:
            self._context.moment("finish")
            recovery.commit(must=True, patiently="the last save")
            recovery.wait_for_all(Kind.FINISH, None)

        recovery.agree("finish", saved, "waiting for the last save")
        session.phases.enter(Phase.OVER)
        self._notices.close()
        if self._context.live is not None:
            self._context.live.finished(step=self._state.step)
        session.tell_finished()

    def _broke_off(self) -> None:
        """The script left the outer loop by `break`. If all workers do so at one step, the run ends there."""
        session, state = self.session, self._state
        step = self._step
        if step is not None and not step.applied:
            session.exchange.buffers.restore()
            raise self._left_open(step)
        self._leave_step()
        self._boundary.cross()
        if state.finished:
            self._finish()
        elif self._recovery.all_break():
            state.stopped = "the script left the loop"
            state.finished = True
            self._finish()
        else:
            self._recovery.departure.break_off()

    def _left_open(self, step: Step) -> StepError:
        """For a step whose inner loop did not come to its end: break, return, or an exception that was caught."""
        torn = self._state.updating
        return StepError(
            f"step {step.index} was left before {'its update was complete' if torn else 'its inner loop ended'}\n"
            f"  state  {'torn by that update' if torn else 'as it was before this step'}; nothing of it was saved\n"
            "  next   let `for batch in step` run to its end, and exceptions leave the with-block; run.stop(reason) "
            "ends a run early"
        )

    def _only_in_update(self, *_: Any) -> None:
        if not self._state.updating:
            raise StepError(
                "optimizer.step() was called in the loop, and Run steps the optimizer itself when the inner loop ends\n"
                "  state  the model is unchanged\n"
                "  next   remove the call, or pass update=function to do it your own way"
            )
