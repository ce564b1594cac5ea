"""How a worker comes into the next view, or to its end, where a collective failed, or workers leave and join.

    PeerLost  ->  under `elastic run`: the next view, same process, same objects; a peer that is ahead gives its state
                  under plain torchrun: a clean state is saved if that is quick, and the process ends with AGAIN
    no view comes any more (RunEnded)  ->  the process ends

How a worker leaves is leaving/departure.py's, which rests on this. `agree` is how workers ask each other something
between two steps, whatever happens to them meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from typing import Any

from elastic.errors import PeerLost, Stranded
from elastic.events import schema
from elastic.group.fingerprint import Kind, announce
from elastic.loop.disagreement import PeerWrong
from elastic.loop.leaving.departure import Departure
from elastic.loop.session import Session
from elastic.loop.storage.saver import Saver
from elastic.membership.exit_statuses import AGAIN
from elastic.membership.progress import Phase
from elastic.membership.rules.next_view import BOUNDARY
from elastic.membership.worker.live import AskedToClaim, AskedToSave, LeaveRequested, RunEnded
from elastic.membership.worker.missing import seen_missing, sentence
from elastic.preemption.process_notices import ProcessNotices

_QUICK = 1 / 3  # of the time from SIGTERM to SIGKILL
GRACE_S = 30.0  # torchrun's, where nobody says another
_ASKED_S = 1.0
_REGROUPED = "regroup"
BREAKING, _ALL_BREAK = "break", "all break"


class Recovery:
    """Brings one worker into the next view, or to its end, for as long as its session is open.

    check  whether what this worker holds is fit to be saved, asked on all before; it raises where it is not
    """

    def __init__(self, session: Session, notices: ProcessNotices, check: Callable[[], None]) -> None:
        self._session = session
        self._context = session.context
        self._state = session.state
        self.check = check
        self.departure = Departure(
            session, notices, save_unless_held=self.save_unless_held, wait_for_all=self.wait_for_all
        )

    # between two steps

    def agree(self, name: str, ask: Callable[[], Any], doing: str) -> Any:
        """Return what workers agree on under this name before the next update: asked once, and known from then on."""
        while name not in self._state.agreements:
            try:
                self._state.agreements[name] = ask()
                self._session.mates_go_on(None)  # a mate that has lost a peer meanwhile learns of the answer
            except PeerLost as lost:
                self.recover(lost, doing)
        return self._state.agreements[name]

    def meet(self, kind: Kind) -> None:
        """Wait until all workers have come to this: rank 0 may save first. Raises PeerLost, CollectiveMismatch."""
        self._session.phases.enter(Phase.WAITING)
        announce(self._session.group, kind, step=self._state.step).check()

    def wait_for_all(self, kind: Kind, answer: str | None) -> str | None:
        """Wait for all workers, and return the answer of the first rank that has one. Raises as `meet`."""
        self.meet(kind)
        first = self._session.view_group.first_answer(answer)
        self._session.phases.enter_script()
        return first

    def first_answer(self, kind: Kind, answer: str | None) -> str | None:
        """Return the answer of the first rank that has one, which is agreed on before the next update."""

        def ask() -> str | None:
            return self.wait_for_all(kind, answer)

        name = kind.name.lower()
        first: str | None = self.agree(name, ask, f"at the boundary after step {self._state.step - 1}: {name}")
        return first

    def save(self) -> None:
        """Save: all workers call it, and the coordinator writes."""
        self.check()
        self.agree_to_save()
        self._session.restorer.save_begun_s = time.monotonic()
        self.save_unless_held(must=False)
        self._state.saved = self._state.step

    def agree_to_save(self) -> None:
        """Agree that all hold the same, and on a stop that is saved with it. Raises CollectiveMismatch."""
        doing = f"at the boundary after step {self._state.step - 1}: save"
        self._state.stop_request = self.agree("save", self.departure.agreed_to_save, doing)

    def save_unless_held(
        self, *, must: bool, patiently: str | None = None, by_s: float | None = None, last: bool = False
    ) -> None:
        """Save on the coordinator, unless storage holds this very state.

        patiently  what it is called, where it is tried again: nobody will save later
        by_s       until when at most, by time.monotonic()
        last       of the run: see Saver.save_last
        """
        saver, state = self._session.restorer.saver, self._state
        self._session.record.save_begins(state.step, coordinates=self._session.view_group.rank == 0)
        if saver is None:
            return
        self._session.phases.enter(Phase.SAVING, self._session.restorer.storage_s)
        # What became of a save each worker finds out alone, and all of a replica save, or none.
        if not self._session.any_mate(not saver.holds(state.step, state.stopped)):
            return
        self.check()
        self._context.moment("save")
        if last:
            saver.save_last(state.position)
        elif patiently is not None:
            saver.patiently(patiently, lambda: saver.save(state.position, must=must, by_s=by_s), by_s=by_s)
        else:
            saver.save(state.position, must=must)
        self._context.moment("saved")

    def all_break(self, *, must: bool = False, site: str | None = None) -> bool:
        """Return whether all workers leave the loop by `break`, at this step: then the run is finished.

        A newcomer of the view that follows a loss meanwhile learns of it by the agreement, and asks, too.

        must  it is a bug where they do not: raises CollectiveMismatch on all. Of a newcomer, as for the others
        site  see announce
        """
        state = self._state
        must = state.agreements.setdefault(BREAKING, must)
        while not state.finished:  # else a peer knows the answer, of whom the next view has heard
            self._session.phases.enter(Phase.WAITING)
            try:
                kind = Kind.BREAK_FOR_ALL if must else Kind.BREAK
                announced = announce(self._session.group, kind, step=state.step, site=site)
                if must:
                    announced.check()
                elif not announced.all_meet():
                    return False
                state.agreements[_ALL_BREAK] = True
                state.stopped = "the script left the loop"
                state.look_for_end()
                self._session.mates_go_on(None)
            except PeerLost as lost:
                self.recover(lost, f"waiting for others to leave the loop after step {state.step - 1}")
        return True

    # leaving

    def leave(self) -> None:
        """Save what all hold, as they leave in order. Raises SystemExit on a worker that could not."""
        self.check()
        if self._context.live is None:
            self.departure.save_without_agent()
        else:
            self.agree_to_save()
            self.agree("leave", self.departure.saved_by_all, "waiting for the save on leaving")
        self.part()

    def part(self) -> None:
        """Wait for the others, so that nobody's last collective fails because we were faster."""
        with suppress(PeerLost):
            self.wait_for_all(Kind.PART, None)

    def regroup(self, *, leaves: bool, only_for: Set[str] | None) -> None:
        """Let some leave or join at this boundary, once; the others go on in the next view. Nothing is redone.

        only_for  who leaves, where nobody joins: once a loss has brought a view without them, there is nothing to do
        """

        def meet() -> None:
            if only_for is not None and only_for.isdisjoint(self._session.view_group.view.workers):
                self._state.agreements[_REGROUPED] = True
            else:
                self.meet(Kind.REGROUP)

        while _REGROUPED not in self._state.agreements:
            self.agree("to regroup", meet, f"regrouping after step {self._state.step - 1}")
            if _REGROUPED in self._state.agreements:
                return
            if leaves:
                self.departure.leave_while_others_go_on()  # it returns where the next view waits for what is held here
            else:
                self._state.agreements[_REGROUPED] = True  # whoever comes to this boundary later finds it done
            self.enter_next_view(at=BOUNDARY, lost=False)

    # losing

    def recover(self, lost: PeerLost, doing: str) -> None:
        """Go into the next view, or end this process: a collective failed in what this worker was `doing`.

        In the next view all workers hold the same state: this one may have got it from those ahead of it, and then the
        step has risen.
        """
        session = self._session
        lost.step = self._state.step
        session.gradient_sync.buffers.restore()  # a share that was broken off may have moved some
        self._context.progress.step_broken()
        if isinstance(lost, PeerWrong) and not (lost.unapplied or session.state_is_agreed_on):
            self._go_back(lost)
        if self._context.live is None:
            self._give_up(lost, doing)
        self._tell_lost(lost)
        session.mates_have_voted(lost)
        self.enter_next_view(at=doing, lost=True)

    def _go_back(self, lost: PeerWrong) -> None:
        """End this process, to go back to the newest save: no state here can be relied on. Raises SystemExit."""
        self._tell_lost(lost)
        if lost.tells:
            self._context.console.warn(
                f"{lost}\n  found  what was applied since the newest save, {self._state.step} steps by now, may hold "
                "what it gave\n  next   nothing: all workers begin again from that save"
            )
        raise SystemExit(AGAIN) from lost

    def enter_next_view(self, *, at: str, lost: bool) -> None:
        """Enter the next view. Returns as `recover` does."""
        session, state = self._session, self._state
        session.train_state.staging.join()  # nothing computes meanwhile, and this worker may be lost as it waits
        self._session.phases.enter(Phase.WAITING)
        while True:
            state.learned = None
            applied = session.train_state.applied
            # Of a replica of several workers nothing is rewound: whoever is behind by a step comes back as a newcomer.
            rewinds = applied.known() and self._context.config.replica_size == 1
            summary = state.summary(rewinds=rewinds, steady=applied.weights.steady)
            try:
                restorer = session.restorer
                own = state.side_state(restorer.claim_document(), restorer.losses().document())
                whole = state.is_whole
                side_state = session.change_view(summary, own, at=at, lost=lost, whole=whole)
                if side_state is not None:
                    state.take_side_state(side_state)
                session.mates_go_on(None)
                break
            except PeerLost as again:
                lost = True
                self._tell_lost(again)
                session.mates_have_voted(again)
            except Stranded as stranded:
                self._context.console.warn(str(stranded))
                raise SystemExit(AGAIN) from stranded
            except AskedToSave as asked_to:
                if asked_to.waits:
                    self.departure.save_for_the_wait()
                    self._session.phases.enter(Phase.WAITING)
                else:
                    self.departure.save_for_all(patiently=False)  # the run has failed, maybe of the storage
            except AskedToClaim as asked:
                session.restorer.claim_for_next_view(asked.words)
            except LeaveRequested:
                self.departure.leave_where_it_waits()
            except RunEnded as ended:
                self.departure.tell_end(ended)
                raise SystemExit(AGAIN) from ended
        session.read_from(state.step + (state.learned is not None))  # a step that is completed is read already
        if lost:
            self._save_again()
        self._session.phases.enter_script()

    def _save_again(self) -> None:
        """Make a regular save that the coordinator before may not have copied, where bad steps go back to those."""
        every, restorer, state = self._context.config.saves.steps, self._session.restorer, self._state
        if not self._context.config.goes_back or every is None or restorer.saver is None:
            return
        is_due = state.step % every == 0 and state.is_whole and not state.finished
        if is_due and self._session.any_mate(not restorer.is_committed(state.step)):
            self.save_unless_held(must=False)

    def _give_up(self, lost: PeerLost, doing: str) -> None:
        """End this process under plain torchrun, for the launcher to start all of them again. Raises SystemExit."""
        view_group, state, context = self._session.view_group, self._state, self._context
        gone, rank = seen_missing(view_group.view), view_group.rank
        others = {} if gone else view_group.what_others_do(doing, within_s=_ASKED_S)
        self._tell_lost(lost, missing=list(gone))
        context.console.warn(
            f"rank {rank} at step {state.step}: {lost}\n"
            f"  missing  {sentence(view_group.view, gone, rank)}\n"
            # chr(10): no backslash may stand in an f-string before Python 3.12
            f"{''.join(f'  rank {other} was {does}{chr(10)}' for other, does in sorted(others.items()))}"
            f"  state    {'torn by an update' if state.updating else 'clean'}, with {state.step} steps applied\n"
            "  next     nothing to do: this worker ends, and its launcher starts all of them again from the newest save"
        )
        if state.finished and state.is_whole:
            self.departure.save_without_others()  # the last state of the run, which may not be started again
            self._session.tell_finished()
            raise SystemExit(AGAIN) from lost
        saver = self._session.restorer.saver
        if saver is not None and state.at_boundary and self._saves_quickly(saver):
            with suppress(Exception):  # what is committed stays; the restart goes on from there
                self.save_unless_held(must=False)
        raise SystemExit(AGAIN) from lost

    def _saves_quickly(self, saver: Saver) -> bool:
        """Return whether a save is likely to be done before the launcher, which ends all workers, kills this one."""
        grace_s = self._context.launch.grace_s
        likely_s = saver.likely_s(self._state.step)
        return (likely_s or 0.0) < _QUICK * (GRACE_S if grace_s is None else grace_s)

    def _tell_lost(self, lost: PeerLost, missing: Sequence[int] = ()) -> None:
        self._context.events.emit(
            schema.PeerLost(
                step=self._state.step,
                phase=lost.phase,
                error=str(lost),
                missing=list(missing),
                **self._context.stopwatch.lap(),
            )
        )
