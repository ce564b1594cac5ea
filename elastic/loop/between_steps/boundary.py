"""Between two steps, after the script's own code: what the exchange agreed on (Request) happens, on every worker."""

from __future__ import annotations

from elastic.group.fingerprint import Kind
from elastic.loop.cross_check import Budget
from elastic.loop.recovery import Recovery
from elastic.loop.run_state import Request
from elastic.loop.session import Session


class Boundary:
    """Crosses boundaries on one worker, for as long as its session is open."""

    def __init__(self, session: Session, recovery: Recovery) -> None:
        self._session = session
        self._state = session.state
        self._recovery = recovery
        self._leaves = self._saves = False  # this worker has said so
        config = session.context.config
        self._budget = Budget(
            config.plan.virtual_workers,
            cost=(1 + config.data.num_workers) * (1 if config.compute.mode == "exact" else 2),
        )

    def requests(self, checked: bool, last_of_epoch: bool) -> int:
        """Return this worker's requests for the exchange that is about to begin. checked: the step is cross-checked."""
        saver, live, departure = self._session.restorer.saver, self._session.context.live, self._recovery.departure
        requests = Request.STOP if self._state.stop_request is not None else Request(0)
        self._leaves = departure.notice is not None
        if self._leaves:
            departure.tell_notice()
            requests |= Request.LEAVE
        if live is not None and live.wants_regroup():
            requests |= Request.REGROUP
        self._saves = departure.look_for_hints()
        is_due = saver is not None and saver.is_due and self._session.view_group.rank == 0
        if not checked and saver is not None:
            foreseen, saves_next = self._state.foreseen, is_due or self._is_saved_behind(self._state.step + 1)
            if saves_next if foreseen is None else (foreseen == "epoch" and last_of_epoch):
                requests |= self._checks_first()
        if self._saves or (is_due and not requests & Request.CHECK):
            requests |= Request.SAVE
        return int(requests)

    def _is_saved_behind(self, step: int) -> bool:
        """Return whether a regular save comes behind that step."""
        every = self._session.context.config.saves.steps
        return every is not None and (step + 1) % every == 0

    def _checks_first(self) -> Request:
        """Return the request for a check if one may be asked for: what is saved is a step later then, which is checked.

        A loop that has foreseen how many batches there are is handed no more of them: it is checked where an epoch
        begins, or not at all.
        """
        may, world_size = self._session.checks, self._session.view_group.world_size
        return Request.CHECK if may and self._budget.asks(self._state.step, world_size=world_size) else Request(0)

    def reach(self) -> None:
        """Take the step as whole; end the run after its last one, or a run.stop. Raises StepError and SavesFailed."""
        session, state = self._session, self._state
        state.at_boundary = True
        if session.compiling is not None:
            session.compiling.check(f"step {state.step - 1} is applied; it is not saved")
        session.compile_cache.poll()
        if session.restorer.saver is not None:
            session.restorer.saver.poll()
        if state.step < state.total_steps:
            state.epoch = session.step_plan(state.step).epoch
        if self._agreed_requests() & Request.STOP:
            state.stopped = self._recovery.first_answer(Kind.STOP, state.stop_request)
            state.stop_request = None
            self._tell_who_stopped()
        state.look_for_end()
        session.curves.hand_over()

    def cross(self) -> bool:
        """Do what the exchange agreed on; return whether all workers leave here, and all is saved.

        Raises IdentityMismatch, as `reach`, and SystemExit on workers that leave here alone, or cannot save.
        """
        session, state, recovery = self._session, self._state, self._recovery
        if session.repeats:
            session.restorer.check_settings(state.step, session.gradient_sync.replicas.digest_of_settings)
        self.reach()
        if state.finished:
            return False
        assert state.agreed is not None
        requests, every = self._agreed_requests(), session.context.config.saves.steps
        leaving = [rank for rank, request in enumerate(state.agreed.requests) if request & Request.LEAVE]
        if leaving and (session.context.live is None or len(leaving) == len(state.agreed.requests)):
            recovery.leave()
            return True
        saver = session.restorer.saver
        if saver is not None:
            saver.check(state.position)
            others = state.agreed.requests[session.context.config.replica_size :]  # none of those who save
            if self._saves or any(
                request & Request.SAVE for request in others
            ):  # the cadence is the coordinator's alone
                saver.save_soon(state.step)
        if requests & Request.SAVE or (every is not None and state.step % every == 0):
            recovery.save()
            if self._saves:
                recovery.departure.saved_on_hint()
        if leaving or requests & Request.REGROUP:
            leavers = frozenset(state.agreed_by[rank] for rank in leaving)
            recovery.regroup(leaves=self._leaves, only_for=None if requests & Request.REGROUP else leavers)
        return False

    def _tell_who_stopped(self) -> None:
        """Warn where not all workers have called run.stop: the run may depend on its size."""
        assert self._state.agreed is not None
        requests = self._state.agreed.requests
        ranks = [str(rank) for rank, request in enumerate(requests) if request & Request.STOP]
        if len(ranks) < len(requests) and self._session.view_group.rank == 0:
            self._session.context.console.warn(
                f"run.stop was called on rank {', '.join(ranks)} of {len(requests)}, and ends the run for all; where "
                "loss.item() decided that,\n         which is of a worker's own share, a run of another size ends at "
                "another step: run.sums is of the whole batch"
            )

    def _agreed_requests(self) -> Request:
        """Return what any worker has asked for with the step's exchange."""
        assert self._state.agreed is not None
        requests = Request(0)
        for request in self._state.agreed.requests:
            requests |= request
        return requests
