"""A collective failed, or workers leave and join: how does this worker come into the next view, or to its end?

    PeerLost  ->  under `elastic run`: the next view, same process, same objects; a peer that is ahead gives its state
                  under plain torchrun: a clean state is saved if that is quick, and the process ends with EXIT_RESTART
    no view comes any more (RunEnded)  ->  whoever is to save does so, if its state is whole, and the process ends

`agree` is how workers ask each other something between two steps, whatever happens to them meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import checkpoint
from elastic.course import Course
from elastic.errors import PeerLost, Stranded
from elastic.membership.hub import AGAIN
from elastic.membership.live import RunEnded, ToldToLeave
from elastic.membership.missing import seen_missing, sentence
from elastic.membership.progress import SAVING, WAITING
from elastic.membership.rules import BOUNDARY
from elastic.observe.console import Console
from elastic.observe.observer import Observer
from elastic.preemption.signals import SignalNotices
from elastic.session import Session

if TYPE_CHECKING:
    from elastic.run import Run

EXIT_RESTART = AGAIN
"""The exit status of a worker whose peers are gone: temporary, start it again."""

_QUICK_SAVE_S = 10.0  # torchrun sends SIGKILL 30 s after SIGTERM
_ALL_BREAK_S = 60.0
_ASKED_S = 1.0
_RELEASED_S = 60.0
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
        self._notices = notices
        self._observer = observer
        self._console = console
        self._noticed = False

    @property
    def notice(self) -> str | None:
        """Why this worker should leave, once somebody has said so."""
        live = self._session.live
        return self._notices.notice or (live.leave if live is not None else None)

    def tell_notice(self) -> None:
        """Records it, once."""
        if self.notice is not None and not self._noticed:
            self._noticed = True
            self._session.events.emit("notice", signal=self.notice)

    # between two steps

    def agree(self, name: str, ask: Callable[[], Any], doing: str) -> Any:
        """What the workers agree on under this name before the next update: asked once, and known from then on."""
        while name not in self._course.agreements:
            try:
                self._course.agreements[name] = ask()
            except PeerLost as lost:
                self.recover(lost, doing)
        return self._course.agreements[name]

    def wait_for_all(self, word: str | None) -> str | None:
        """See Place.told_by_all. Others may be long in coming: rank 0 may save."""
        self._run._phase(WAITING)
        told = self._session.place.told_by_all(word)
        self._run._goes_on()
        return told

    def told_by_all(self, name: str, word: str | None) -> str | None:
        def ask() -> str | None:
            return self.wait_for_all(word)

        told: str | None = self.agree(name, ask, f"at the boundary after step {self._course.step - 1}: {name}")
        return told

    def save(self, *, must: bool) -> None:
        """All workers call it; the coordinator writes. A stop that someone has asked for is saved with the state."""
        self._course.stop_wish = self.told_by_all("save", self._course.stop_wish)
        self._session.origin.save_begun_s = time.monotonic()
        self.commit(must=must)

    def commit(self, *, must: bool, last: bool = False) -> None:
        """On the coordinator, unless storage holds this very state.

        last  the run ends with it
        """
        saver, course = self._session.origin.saver, self._course
        if saver is None or saver.holds(course.step, course.stopped):
            return
        self._run._phase(SAVING)
        self._observer.at("save", self._run)
        if last:
            saver.patiently("the last save", lambda: saver.save(course.position, must=True))
        else:
            saver.save(course.position, must=must)
        self._observer.at("saved", self._run)

    def all_break(self) -> bool:
        """Whether all workers leave the loop by `break`, at this step."""
        while True:
            self._run._phase(WAITING)
            try:
                return self._session.place.all_at(f"break/{self._course.step}", within_s=_ALL_BREAK_S)
            except PeerLost as lost:
                self.recover(lost, f"waiting for others to leave the loop after step {self._course.step - 1}")

    # leaving

    def leave(self) -> None:
        """All leave, in order. Raises SystemExit(0)."""
        self.save(must=True)
        self.part()
        if self._session.live is not None:
            self._session.live.leaving(step=self._course.step)
        self._has_left("all is saved, and the same command goes on from here")

    def leave_alone(self) -> None:
        """This worker left the loop and others did not."""
        step, live = self._course.step, self._session.live
        others = "the others go on once their launcher has restarted them"
        if live is not None:
            self._run._phase(WAITING)
            live.leaving(step=step, lost=True)
            live.wait_released(within_s=_RELEASED_S)
            others = "they go on without it"
        self._console.warn(
            f"rank {self._run.rank} left the loop at step {step} and others did not: it leaves the run, and {others}; "
            "run.stop(reason) ends a run for all"
        )

    def part(self) -> None:
        """Wait for the others, so that nobody's last collective fails because we were faster."""
        self._session.group.part()
        with suppress(PeerLost):
            self.wait_for_all(None)

    def regroup(self, *, leaves: bool) -> None:
        """Some leave or join at this boundary, once; the others go on in the next view. Nothing is redone."""
        live = self._session.live
        assert live is not None
        if _REGROUPED in self._course.agreements:
            return
        if leaves:
            self._run._phase(WAITING)
            live.leaving(step=self._course.step)
            live.wait_released(within_s=_RELEASED_S)
            self._has_left("the others go on")
        self._course.agreements[_REGROUPED] = True  # who comes to this boundary later finds it done
        self._next_view(at=BOUNDARY, lost=False)

    def _has_left(self, how: str) -> None:
        events = self._session.events
        self.tell_notice()
        if not self._noticed:
            events.emit("notice", signal=None)
        events.emit("left", step=self._course.step, **self._session.stopwatch.lap())
        self._console.say(f"left at step {self._course.step} on {self.notice or 'a notice to another worker'}; {how}")
        raise SystemExit(0)

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
        self._next_view(at=doing, lost=True)

    def _next_view(self, *, at: str, lost: bool) -> None:
        session, course = self._session, self._course
        self._run._phase(WAITING)
        while True:
            standing = course.standing(rewinds=session.survives.applied.known())
            try:
                told, saves = course.word(session.origin.claim_document()), course.is_whole
                word = session.regroup(standing, told, at=at, lost=lost, saves=saves)
                break
            except PeerLost as again:
                lost = True
                self._tell_lost(again)
            except Stranded as stranded:
                self._console.warn(str(stranded))
                raise SystemExit(EXIT_RESTART) from stranded
            except RunEnded as ended:
                self._ended(ended)
        if word is not None:
            course.take(word)
        session.read_from(course.step)
        self._run._goes_on()

    def _ended(self, ended: RunEnded) -> None:
        """No view comes any more: the run ends with an error that its launcher shows, or this worker was told to leave.
        Raises SystemExit."""
        origin, course = self._session.origin, self._course
        self._session.tell_end(ended)
        may = origin.saver is not None if ended.save is None else ended.save
        if may and course.is_whole:
            with suppress(checkpoint.CheckpointError):
                origin.take_the_pen()
                self.commit(must=True)
        if isinstance(ended, ToldToLeave):
            self._has_left("it waited for a view, and none came")
        raise SystemExit(EXIT_RESTART) from ended

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
