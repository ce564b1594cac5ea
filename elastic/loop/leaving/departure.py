"""How a worker leaves: not before what it holds is safe.

    all leave           the coordinator saves, all wait for it; if it is lost, the next view's coordinator saves
    some leave          they wait until the others have gone on without them; where nobody can, the hub asks one of
                        them to save first, or has it take part in one more view (membership/rules/leaving.py)
    one waits for a     view that does not come, and is told to leave: as above
    view
    plain torchrun      a survivor of a lost coordinator takes its claim and saves

Promise  a worker that says that it has left, and ends with 0 (130 on Ctrl-C, where no launcher reaps it), has handed
         over what it holds, or has seen it committed; one that could not ends with NOT_SAVED, and says so.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import NoReturn, Protocol

import elastic_checkpoint
from elastic.errors import PeerLost
from elastic.events import schema, words
from elastic.events.event import ABSENT
from elastic.group.fingerprint import Kind
from elastic.loop.disagreement import PeerWrong
from elastic.loop.session import Session
from elastic.loop.storage.saver import Saver
from elastic.membership import environment
from elastic.membership.exit_statuses import INTERRUPTED, NOT_SAVED
from elastic.membership.progress import Phase
from elastic.membership.worker.live import AGENT_ENDED, AgentGone, Answer, RunEnded
from elastic.membership.worker.missing import missing
from elastic.preemption.process_notices import ProcessNotices

_ANSWER_S = 120.0  # the hub answers sooner
_OTHERS_S = 10.0  # at most half of the time that is left: torchrun kills 30 s after SIGTERM
_POLL_S = 0.2
_RESCUE_S = 5.0  # a rescue copy is begun if this is left
_PATIENTLY = "the save on leaving"


class SaveUnlessHeld(Protocol):
    """The type of Recovery.save_unless_held."""

    def __call__(self, *, must: bool, patiently: str | None, by_s: float | None) -> None: ...


class Departure:
    """How one worker leaves, for as long as its session is open.

    save_unless_held, wait_for_all  see Recovery
    is_settled            what it holds is being saved, by this worker or another one, or it has left
    """

    def __init__(
        self,
        session: Session,
        notices: ProcessNotices,
        *,
        save_unless_held: SaveUnlessHeld,
        wait_for_all: Callable[[Kind, str | None], str | None],
    ) -> None:
        self._session = session
        self._context = session.context
        self._state = session.state
        self._save_unless_held = save_unless_held
        self._wait_for_all = wait_for_all
        self._notices = notices
        self._why: str | None = None  # as it was said first
        self._noticed = self._hint = False
        self._needed = False
        self._had_to_save = self._said_late = False
        self.is_settled = False

    @property
    def notice(self) -> str | None:
        """Return why this worker should leave; None until somebody has said so."""
        live, own = self._context.live, self._notices.leave
        why = own.why if own is not None else live.leave if live is not None else None
        if self._why is None and why is not None:
            # The kernel sends SIGTERM when the agent dies (launch/processes/worker.py): nobody has told us to leave.
            orphaned = own is not None and why == signal.SIGTERM.name and live is not None and live.agent_is_gone
            self._why = AGENT_ENDED if orphaned else why
        return self._why

    @property
    def by_s(self) -> float | None:
        """Return until when this node is there, by time.monotonic(); None: nobody says."""
        live, own = self._context.live, self._notices.leave
        said = [own.by_s if own is not None else None, live.leave_by_s if live is not None else None]
        return min((by_s for by_s in said if by_s is not None), default=None)

    def tell_notice(self) -> None:
        """Record the notice, once, and warn where a save may come too late for it."""
        if self.notice is not None and not self._noticed:
            if self.notice == AGENT_ENDED:
                self._tell_agent_lost()
            else:
                self._noticed = True
                self._context.events.emit(schema.Notice(signal=self.notice, left_s=_left_s(self.by_s)))
            self._look_at_time(self._session.restorer.saver)

    def tell_end(self, ended: RunEnded) -> None:
        """Record why no view comes any more."""
        why = str(ended)
        if isinstance(ended, AgentGone):
            self._tell_agent_lost()
        else:
            self._context.events.emit(schema.RepeatedFailure(why=why) if ended.repeated else schema.Ended(why=why))

    def _tell_agent_lost(self) -> None:
        if not self._noticed:
            self._noticed = True
            self._context.events.emit(schema.AgentLost(step=self._state.step))

    def look_for_hints(self) -> bool:
        """Record each hint once; return whether this node may be taken soon, and nothing was saved since that."""
        live = self._context.live
        while (own := self._notices.take_hint()) is not None:
            self._hinted(own.why, own.by_s)
        while live is not None and (said := live.take_hint()) is not None:
            self._hinted(*said)
        return self._hint

    def saved_on_hint(self) -> None:
        """Take all hints that were found for answered."""
        self._hint = False

    def _hinted(self, why: str, by_s: float | None) -> None:
        """Record a hint, and say it to people where no agent has."""
        self._hint = True
        self._context.events.emit(schema.Hint(step=self._state.step, why=why, left_s=_left_s(by_s)))
        if self._context.live is None:  # else its agent has said so
            self._context.console.warn(f"{why}: the run saves at the next step")

    def saved_by_all(self) -> None:
        """Have the coordinator save, and wait until all know it. Raises PeerLost; SystemExit where that save fails."""
        self.is_settled = True  # no deadline ends this worker from here on
        if self._session.restorer.saver is not None:
            self._save()
        self._wait_for_all(Kind.LEAVE, None)

    def agreed_to_save(self) -> str | None:
        """Compare what all hold; return why any has asked the run to stop. Raises PeerLost, CollectiveMismatch."""
        stop = self._wait_for_all(Kind.SAVE, self._state.stop_request)
        self._session.gradient_sync.replicas.before_save(self._state.step)
        self._session.restorer.agreed()  # where each step is saved no other one is exchanged before
        return stop

    def tell_all_is_saved(self) -> None:
        """Tell the agent that all is saved and all know it, so that nobody waits for this worker any more."""
        if self._context.live is not None:
            self._context.live.leaving(step=self._state.step, saved=True)

    def leave_with_all(self) -> NoReturn:
        """End this worker, which has told that all is saved. Raises SystemExit."""
        # Where it has an agent, that says so.
        goes_on = "" if self._context.live is not None else ", and the same command goes on from here"
        self._has_left(f"all is saved{goes_on}")

    def save_without_agent(self) -> None:
        """Save as all leave, with no hub to ask: by their peers' word, or each sees to it itself. Raises SystemExit."""
        try:
            self._state.stop_request = self.agreed_to_save()
            self.saved_by_all()
        except PeerWrong as lost:
            if not self._session.state_is_agreed_on:
                self._context.console.warn(f"{lost}; what was applied since the newest save may hold what it gave")
                raise SystemExit(NOT_SAVED) from lost
            self.save_without_others()
        except PeerLost:
            self.save_without_others()

    def save_without_others(self) -> None:
        """Save with no hub and no group: whoever comes first of those who are left. Raises SystemExit."""
        self.is_settled = True
        saver, state = self._session.restorer.saver, self._state
        if saver is None:
            self._wait_for_others_to_save()
        elif saver.holds(state.step, state.stopped):
            return
        elif self._session.mates is not None and self._session.restorer.is_committed(state.step):
            return  # without a vote: others of its replica know, and may be gone
        self._save()

    def leave_while_others_go_on(self) -> None:
        """Leave at a boundary while the others go on; return where the next view needs what this worker holds.

        Newcomers may wait by now for one that was needed, and know nothing of this boundary: it leaves them all without
        waiting for any. Raises SystemExit.
        """
        if self._goes(lost=self._needed):
            self._has_left("it has saved what nobody else held" if self._had_to_save else "the others go on")
        self._needed = True

    def leave_where_it_waits(self) -> None:
        """Leave as `leave_while_others_go_on` does, while this worker waits for a view."""
        if self._goes():
            self._has_left("it waited for a view, and none came")

    def break_off(self) -> None:
        """Leave the run: the script of this worker left the loop, and others' did not."""
        step, session = self._state.step, self._session
        others = "the others go on once their launcher has restarted them"
        if session.context.live is not None:
            self._goes(lost=True, joins=False)
            others = "they go on without it"
        elif session.restorer.saver is not None:
            self._save()
        self._context.console.warn(
            f"rank {session.view_group.rank} left the loop at step {step} and others did not: it leaves the run, and "
            f"{others}; run.stop(reason) ends a run for all"
        )

    def save_for_all(self, *, patiently: bool = True) -> None:
        """Save what nobody else holds, before all go. Raises SystemExit. patiently: it is tried again for a while."""
        assert self._context.live is not None
        self._had_to_save = True
        self._session.restorer.learn_claim(self._context.live.claim)
        self._save(patiently=patiently)
        self._context.live.saved(step=self._state.step)

    def save_for_the_wait(self) -> None:
        """Save though nobody leaves yet: the run waits for nodes, and what this worker holds may be nowhere else."""
        live, step = self._context.live, self._state.step
        assert live is not None
        restorer = self._session.restorer
        restorer.learn_claim(live.claim)
        try:
            if not self._is_committed():
                restorer.take_over_saving()
                self._save_unless_held(must=True, patiently=None, by_s=None)
        except elastic_checkpoint.CheckpointError as failure:
            live.has_tried_to_save()
            reason = str(failure).replace("\n", "\n    ")
            self._context.console.warn(
                f"the run waits for nodes with {step} steps applied, and what it holds is not saved: {reason}\n"
                "  state  this worker holds it, and goes on from it when enough nodes are there\n"
                "  next   repair what stands in the way; until then this worker's end is a loss of the steps since the "
                "newest checkpoint"
            )
        else:
            live.saved(step=step)

    def _goes(self, *, lost: bool = False, joins: bool = True) -> bool:
        """Return True to go, False to join the next view. Raises SystemExit. lost, joins: see Live.leaving."""
        live, state = self._context.live, self._state
        assert live is not None
        self._session.phases.enter(Phase.WAITING)
        whole, torn = state.is_whole, state.updating
        live.leaving(step=state.step, saved=False, whole=whole, torn=torn, joins=joins, lost=lost)
        while True:
            match live.answer(within_s=_ANSWER_S):
                case Answer.GO:
                    return True
                case Answer.VIEW:
                    return False
                case Answer.SAVE:
                    self.save_for_all()
                case Answer.NONE if whole:
                    self.save_for_all()  # others may hold it, too, and are busy
                    return True
                case _:
                    self._not_saved("nobody who goes on holds it" if whole else "it is not a boundary's state")

    def _wait_for_others_to_save(self) -> None:
        """Wait until those who come first, by their ranks, have saved or are gone; or too long."""
        view, rank = self._session.view_group.view, self._session.view_group.rank
        left_s = _left_s(self.by_s)
        deadline = time.monotonic() + (_OTHERS_S if left_s is ABSENT else min(_OTHERS_S, left_s / 2))
        while time.monotonic() < deadline and not self._session.restorer.is_committed(self._state.step):
            if set(range(rank)) <= missing(view).keys():  # all who come before this one are gone
                return
            time.sleep(_POLL_S)

    def _save(self, *, patiently: bool = True) -> None:
        """Save what this worker holds, unless it is committed. Raises SystemExit where that fails."""
        restorer = self._session.restorer
        if self._is_committed():
            return
        try:
            restorer.take_over_saving()
            self._look_at_time(restorer.saver)
            self._save_unless_held(must=True, patiently=_PATIENTLY if patiently else None, by_s=self.by_s)
        except elastic_checkpoint.CheckpointError as failure:
            left_s, saver = _left_s(self.by_s), restorer.saver
            has_time = left_s is ABSENT or left_s > _RESCUE_S
            self._not_saved(str(failure), saver.rescue(self._state.position) if saver and has_time else None)

    def _is_committed(self) -> bool:
        """Return whether a peer that saved, and went, has committed what this worker holds, or a later step."""
        restorer = self._session.restorer
        lacks = restorer.saver is not None or not restorer.is_committed(self._state.step)
        return not self._session.any_mate(lacks)  # each has looked alone

    def _look_at_time(self, saver: Saver | None) -> None:
        """Warn, once, that the save may come too late: with the notice, or before it begins."""
        left_s = _left_s(self.by_s)
        if saver is None or left_s is ABSENT or self._said_late:
            return
        likely_s = saver.likely_s(self._state.step, left_s=left_s)
        if likely_s is not None and likely_s > left_s:
            self._said_late = True
            self._context.console.warn(
                f"a save on leaving may not be done in time: by the last one it takes "
                f"{words.seconds(likely_s)}, what is being written included, and this node is there for "
                f"{words.seconds(left_s)} more\n"
                f"  state  {saver.newest} stays; where nobody else holds what came since, and the save is cut off, the "
                "run goes on from there\n"
                "  next   faster storage, or a shorter save_every, so that less is lost"
            )

    def _not_saved(self, why: str, rescued: str | None = None) -> NoReturn:
        """Warn that what this worker holds is not saved, and end it; rescued: see Saver.rescue. Raises SystemExit."""
        step, reason = self._state.step, why.replace("\n", "\n    ")
        lost = "lost, unless another worker saves them" if rescued is None else f"not lost: {rescued.rstrip()}"
        self._context.console.warn(
            f"this worker leaves with {step} steps applied, and what it holds is not saved: {reason}\n"
            f"  state  what was committed before is whole; the steps since are {lost}\n"
            "  next   repair what stands in the way, then start the same command again: it goes on from the newest "
            "checkpoint"
        )
        raise SystemExit(NOT_SAVED)

    def _has_left(self, how: str) -> NoReturn:
        """Record that this worker has left, and end it. Raises SystemExit."""
        context, step = self._context, self._state.step
        self.is_settled = True
        self.tell_notice()
        if not self._noticed:
            context.events.emit(schema.Notice(signal=None))
        context.events.emit(schema.Left(step=step, **context.stopwatch.lap()))
        context.console.say(f"left at step {step} on {self.notice or 'a notice to another worker'}; {how}")
        raise SystemExit(self._left_status())

    def _left_status(self) -> int:
        """Return the exit status of a worker that has left: 0, or on Ctrl-C maybe another."""
        # Ctrl-C ends as it does everywhere, so that what a shell would do with a result is not done with half of one.
        # Whoever reaps a launcher's worker takes any other status than 0 for a failure: there the launcher ends so.
        interrupted = self.notice == signal.SIGINT.name and not environment.is_launchers_child()
        return INTERRUPTED if interrupted else 0


def _left_s(by_s: float | None) -> float:
    """Return the seconds until `by_s`; ABSENT: nobody says when."""
    return ABSENT if by_s is None else round(max(0.0, by_s - time.monotonic()), 3)
