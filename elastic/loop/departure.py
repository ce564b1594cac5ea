"""How a worker leaves: not before what it holds is safe.

    all leave           the coordinator saves, all wait for it; if it is lost, the next view's coordinator saves
    some leave          they wait until the others have gone on without them; where nobody can, the hub asks one of
                        them to save first, or has it take part in one more view (membership/leaving.py)
    one waits for a     view that does not come, and is told to leave: as above
    view
    plain torchrun      a survivor of a lost coordinator takes its claim and saves

Promise  a worker that says that it has left, and ends with 0, has handed over what it holds, or has seen it committed;
         one that could not ends with NOT_SAVED, and says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NoReturn, Protocol

import checkpoint
from elastic.errors import PeerLost
from elastic.events import schema
from elastic.group.fingerprint import Kind
from elastic.loop.session import Session
from elastic.membership.live import Answer
from elastic.membership.missing import missing
from elastic.membership.progress import Phase
from elastic.preemption.signals import SignalNotices

NOT_SAVED = 1
_ANSWER_S = 120.0  # the hub answers sooner
_OTHERS_S = 10.0  # torchrun kills 30 s after SIGTERM
_POLL_S = 0.2
_PATIENTLY = "the save on leaving"


class Commit(Protocol):
    """See Recovery.commit."""

    def __call__(self, *, must: bool, patiently: str | None) -> None: ...


class Departure:
    """Of one worker, for as long as its session is open.

    commit, wait_for_all  see Recovery
    """

    def __init__(
        self,
        session: Session,
        notices: SignalNotices,
        *,
        commit: Commit,
        wait_for_all: Callable[[Kind, str | None], str | None],
    ) -> None:
        self._session = session
        self._context = session.context
        self._state = session.state
        self._commit = commit
        self._wait_for_all = wait_for_all
        self._notices = notices
        self._noticed = False
        self._needed = False
        self._had_to_save = False

    @property
    def notice(self) -> str | None:
        """Why this worker should leave, once somebody has said so."""
        live = self._context.live
        return self._notices.notice or (live.leave if live is not None else None)

    def tell_notice(self) -> None:
        """Records it, once."""
        if self.notice is not None and not self._noticed:
            self._noticed = True
            self._context.events.emit(schema.Notice(signal=self.notice))

    def saved_by_all(self) -> None:
        """The coordinator has saved, and all know it. Raises PeerLost, and SystemExit on one that could not save."""
        if self._session.restorer.saver is not None:
            self._save()
        self._wait_for_all(Kind.LEAVE, None)

    def leave_all(self) -> NoReturn:
        """What all of the view hold is saved, and all know it. Raises SystemExit(0)."""
        live = self._context.live
        if live is not None:
            live.leaving(step=self._state.step, saved=True)
        self._has_left("all is saved, and the same command goes on from here")

    def save_without_agent(self) -> None:
        """All leave, with no hub to ask: they have their peers' word, or see to it themselves. Raises SystemExit."""
        try:
            self._state.stop_wish = self._wait_for_all(Kind.SAVE, self._state.stop_wish)
            self.saved_by_all()
        except PeerLost:
            self.save_without_others()

    def save_without_others(self) -> None:
        """With no hub and no group: whoever comes first of those who are left. Raises SystemExit."""
        if self._session.restorer.saver is None:
            self._wait_for_others_to_save()
        self._save()

    def leave_others(self) -> None:
        """This worker leaves at a boundary, and the others go on. Raises SystemExit; returns where the next view needs
        what this worker holds.

        One that was needed may since be waited for by newcomers, who know nothing of this boundary: it leaves them all
        of a sudden.
        """
        if self._goes(lost=self._needed):
            self._has_left("it has saved what nobody else held" if self._had_to_save else "the others go on")
        self._needed = True

    def leave_where_it_waits(self) -> None:
        """As `leave_others`, for a worker that waits for a view."""
        if self._goes():
            self._has_left("it waited for a view, and none came")

    def break_off(self) -> None:
        """The script of this worker left the loop, and others' did not."""
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
        """What nobody else holds, before all go. Raises SystemExit. patiently: it is tried again for a while"""
        assert self._context.live is not None
        self._had_to_save = True
        self._session.restorer.learn_claim(self._context.live.claim)
        self._save(patiently=patiently)
        self._context.live.saved(step=self._state.step)

    def _goes(self, *, lost: bool = False, joins: bool = True) -> bool:
        """Whether this worker may go; else it is in the next view. Raises SystemExit.

        lost, joins  see Live.leaving
        """
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
        """Until those who come first, by their ranks, have saved or are gone; or too long."""
        view, rank = self._session.view_group.view, self._session.view_group.rank
        deadline = time.monotonic() + _OTHERS_S
        while time.monotonic() < deadline and not self._session.restorer.is_committed(self._state.step):
            if set(range(rank)) <= missing(view).keys():
                return
            time.sleep(_POLL_S)

    def _save(self, *, patiently: bool = True) -> None:
        """What this worker holds, unless it is committed. Raises SystemExit where that fails."""
        restorer, step = self._session.restorer, self._state.step
        if restorer.saver is None and restorer.is_committed(step):
            return
        try:
            restorer.take_over_saving()
            self._commit(must=True, patiently=_PATIENTLY if patiently else None)
        except checkpoint.CheckpointError as failure:
            self._not_saved(str(failure))

    def _not_saved(self, why: str) -> NoReturn:
        step, reason = self._state.step, why.replace("\n", "\n    ")
        self._context.console.warn(
            f"this worker leaves with {step} steps applied, and what it holds is not saved: {reason}\n"
            "  state  what was committed before is whole; the steps since are lost, unless another worker saves them\n"
            "  next   repair what stands in the way, then start the same command again: it goes on from the newest "
            "checkpoint"
        )
        raise SystemExit(NOT_SAVED)

    def _has_left(self, how: str) -> NoReturn:
        context, step = self._context, self._state.step
        self.tell_notice()
        if not self._noticed:
            context.events.emit(schema.Notice(signal=None))
        context.events.emit(schema.Left(step=step, **context.stopwatch.lap()))
        context.console.say(f"left at step {step} on {self.notice or 'a notice to another worker'}; {how}")
        raise SystemExit(0)
