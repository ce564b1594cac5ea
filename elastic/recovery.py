"""A collective failed, or workers leave and join: how does this worker come into the next view, or to its end?

    PeerLost  ->  under `elastic run`: the next view, same process, same objects; a peer that is ahead gives its state
                  under plain torchrun: a clean state is saved if that is quick, and the process ends with EXIT_RESTART
    no view comes any more (RunEnded)  ->  the process ends

How a worker leaves is parting.py's, which rests on this. `agree` is how workers ask each other something between two
steps, whatever happens to them meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from elastic.course import Course
from elastic.errors import PeerLost, Stranded
from elastic.group.fingerprint import Kind, announce
from elastic.membership.endings import AGAIN
from elastic.membership.live import AskedToSave, RunEnded, ToldToLeave
from elastic.membership.missing import seen_missing, sentence
from elastic.membership.progress import SAVING, WAITING
from elastic.membership.rules import BOUNDARY
from elastic.observe.console import Console
from elastic.observe.observer import Observer
from elastic.parting import Parting
from elastic.preemption.signals import SignalNotices
from elastic.session import Session

if TYPE_CHECKING:
    from elastic.run import Run

EXIT_RESTART = AGAIN
"""The exit status of a worker whose peers are gone: temporary, start it again."""

_QUICK_SAVE_S = 10.0  # torchrun sends SIGKILL 30 s after SIGTERM
_ASKED_S = 1.0
_REGROUPED = "regroup"


class Recovery:
    """Of one worker, for as long as its session is open."""

    def __init__(
        self,
        run: Run,
        session: Session,
        course: Course,
        notices: SignalNotices,
        observer: Observer,
        console: Console,
    ) -> None:
        self._run = run
        self._session = session
        self._course = course
        self._observer = observer
        self._console = console
        self.parting = Parting(
            run, session, course, notices, console, commit=self.commit, wait_for_all=self.wait_for_all
        )

    # between two steps

    def agree(self, name: str, ask: Callable[[], Any], doing: str) -> Any:
        """What the workers agree on under this name before the next update: asked once, and known from then on."""
        while name not in self._course.agreements:
            try:
                self._course.agreements[name] = ask()
            except PeerLost as lost:
                self.recover(lost, doing)
        return self._course.agreements[name]

    def meet(self, kind: Kind) -> None:
        """All workers come to this together. Others may be long in coming: rank 0 may save.

        Raises PeerLost, CollectiveMismatch.
        """
        self._run._phase(WAITING)
        announce(self._session.group, kind, step=self._course.step).check()

    def wait_for_all(self, kind: Kind, word: str | None) -> str | None:
        """See Place.told_by_all. Raises as `meet`."""
        self.meet(kind)
        told = self._session.place.told_by_all(word)
        self._run._goes_on()
        return told

    def told_by_all(self, kind: Kind, word: str | None) -> str | None:
        def ask() -> str | None:
            return self.wait_for_all(kind, word)

        name = kind.name.lower()
        told: str | None = self.agree(name, ask, f"at the boundary after step {self._course.step - 1}: {name}")
        return told

    def save(self) -> None:
        """All workers call it; the coordinator writes."""
        self.agree_to_stop()
        self._session.origin.save_begun_s = time.monotonic()
        self.commit(must=False)

    def agree_to_stop(self) -> None:
        """A stop that someone has asked for is saved with the state."""
        self._course.stop_wish = self.told_by_all(Kind.SAVE, self._course.stop_wish)

    def commit(self, *, must: bool, patiently: str | None = None) -> None:
        """On the coordinator, unless storage holds this very state.

        patiently  what it is called, where it is tried again: nobody will save later
        """
        saver, course = self._session.origin.saver, self._course
        if saver is None:
            return
        self._run._phase(SAVING, self._session.origin.storage_s)
        if saver.holds(course.step, course.stopped):
            return
        self._observer.at("save", self._run)
        if patiently is not None:
            saver.patiently(patiently, lambda: saver.save(course.position, must=must))
        else:
            saver.save(course.position, must=must)
        self._observer.at("saved", self._run)

    def all_break(self) -> bool:
        """Whether all workers leave the loop by `break`, at this step. Known once each has come to something."""
        while True:
            self._run._phase(WAITING)
            try:
                return announce(self._session.group, Kind.BREAK, step=self._course.step).all_meet()
            except PeerLost as lost:
                self.recover(lost, f"waiting for others to leave the loop after step {self._course.step - 1}")

    # leaving

    def leave(self) -> None:
        """All leave, in order. Raises SystemExit."""
        if self._session.live is None:
            self.parting.save_without_agent()
        else:
            self.agree_to_stop()
            self.agree("leave", self.parting.saved_by_all, "waiting for the save on leaving")
        self.part()
        self.parting.leave_all()

    def part(self) -> None:
        """Wait for the others, so that nobody's last collective fails because we were faster."""
        self._session.group.part()
        with suppress(PeerLost):
            self.wait_for_all(Kind.PART, None)

    def regroup(self, *, leaves: bool) -> None:
        """Some leave or join at this boundary, once; the others go on in the next view. Nothing is redone."""
        while _REGROUPED not in self._course.agreements:
            self.agree("to regroup", lambda: self.meet(Kind.REGROUP), f"regrouping after step {self._course.step - 1}")
            if _REGROUPED in self._course.agreements:
                return
            if leaves:
                self.parting.leave_others()
                self.next_view(at=BOUNDARY, lost=False)  # which waits for what this worker holds
            else:
                self._course.agreements[_REGROUPED] = True  # who comes to this boundary later finds it done
                self.next_view(at=BOUNDARY, lost=False)

    # losing

    def recover(self, lost: PeerLost, doing: str) -> None:
        """A collective failed while this worker was `doing` something. Returns in the next view, or ends this process.

        In the next view all workers hold the same state: this one may have got it from those ahead of it, and then
        the step has risen.
        """
        session = self._session
        lost.step = self._course.step
        session.exchange.buffers.restore()
        session.progress.step_broken()
        if session.live is None:
            self._give_up(lost, doing)
        self._tell_lost(lost)
        self.next_view(at=doing, lost=True)

    def next_view(self, *, at: str, lost: bool) -> None:
        """The next one. Returns as `recover` does."""
        session, course = self._session, self._course
        self._run._phase(WAITING)
        while True:
            standing = course.standing(rewinds=session.survives.applied.known())
            try:
                told, whole = course.word(session.origin.claim_document()), course.is_whole
                word = session.regroup(standing, told, at=at, lost=lost, whole=whole)
                break
            except PeerLost as again:
                lost = True
                self._tell_lost(again)
            except Stranded as stranded:
                self._console.warn(str(stranded))
                raise SystemExit(EXIT_RESTART) from stranded
            except AskedToSave:
                self.parting.save_for_all(patiently=False)  # the run has failed, maybe of the storage
            except ToldToLeave:
                self.parting.leave_where_it_waits()
            except RunEnded as ended:
                session.tell_end(ended)
                raise SystemExit(EXIT_RESTART) from ended
        if word is not None:
            course.take(word)
        session.read_from(course.step)
        self._run._goes_on()

    def _give_up(self, lost: PeerLost, doing: str) -> None:
        """Under plain torchrun: ends this process, for the launcher to start all of them again. Raises SystemExit."""
        place, course, rank = self._session.place, self._course, self._run.rank
        gone = seen_missing(place.view)
        others = {} if gone else place.what_others_do(doing, within_s=_ASKED_S)
        self._tell_lost(lost, missing=list(gone))
        self._console.warn(
            f"rank {rank} at step {course.step}: {lost}\n"
            f"  missing  {sentence(place.view, gone, rank)}\n"
            f"{''.join(f'  rank {other} was {does}{chr(10)}' for other, does in sorted(others.items()))}"
            f"  state    {'torn by an update' if course.updating else 'clean'}, with {course.step} steps applied\n"
            "  next     nothing to do: this worker ends, and its launcher starts all of them again from the newest save"
        )
        if course.finished and course.is_whole:
            self.parting.save_without_others()  # the last state of the run, which may not be started again
            self._run._tell_finished()
            raise SystemExit(EXIT_RESTART) from lost
        saver = self._session.origin.saver
        if saver is not None and course.at_boundary and saver.took_s < _QUICK_SAVE_S:
            with suppress(Exception):  # what is committed stays; the restart goes on from there
                self.commit(must=False)
        raise SystemExit(EXIT_RESTART) from lost

    def _tell_lost(self, lost: PeerLost, missing: Sequence[int] = ()) -> None:
        self._session.events.emit(
            "peer_lost",
            step=self._course.step,
            phase=lost.phase,
            error=str(lost),
            missing=list(missing),
            **self._session.stopwatch.lap(),
        )
