"""A worker's end of the channel to its agent: here it says where it stands, and hears which view it is in.

    ready  ->  view 1  ->  train  ->  view_is_over (a peer was lost, or all regroup)  ->  view 2  ->  ...

A thread reads the channel. So the news of a broken view aborts the group at once, whatever the training thread is
doing; and the end of the channel (the agent was killed) ends the worker, at the next boundary, or where it is if none
comes in time. What the messages mean is said in docs/internals/protocol.md.
"""

from __future__ import annotations

import base64
import faulthandler
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable
from enum import Enum, auto
from typing import Any

from elastic.errors import ConfigError, ElasticError, RendezvousTimeout
from elastic.membership.messages.messages import (
    TO_WORKER,
    Broken,
    Claimed,
    End,
    Entered,
    Figures,
    Finished,
    HasRead,
    Hint,
    HubAt,
    Leave,
    Leaving,
    MovedOn,
    NewView,
    OnBoard,
    OtherIdentity,
    Past,
    Put,
    Ready,
    Regroup,
    Released,
    RunStatus,
    Save,
    Saved,
    TakeClaim,
    ToItsAgent,
    ToWorker,
    ViewIsOver,
    Witness,
    as_message,
    parse,
)
from elastic.membership.messages.wire import LINE_MAX, LONG_LINE_MAX, Lines, Message, NotAMessage, WireError, encode
from elastic.membership.messages.worker_messages import ME
from elastic.membership.view import View
from elastic.membership.worker.board import Board
from elastic_checkpoint import linux

AGENT_ENDED = "the end of its agent"
ORPHAN_S = 30.0  # after its agent's death a worker may finish a step and save for so long
_LINE_MAX = LINE_MAX - (1 << 12)  # bytes; agents add names to what is said
_READ_BYTES = 1 << 16
_LOOK_S = 1.0
_AGAIN_S = 5.0  # what was said is said again after so long, and after twice as long each time
_LEAVE_S = 5.0  # one that was told to leave waits so long for the others, who may need it to go on in order


class RunEnded(ElasticError):
    """The run ends with an error that some worker met, or because too few nodes are left.

    repeated  because one failure came again and again
    """

    def __init__(self, message: str, *, repeated: bool = False) -> None:
        super().__init__(message)
        self.repeated = repeated


class AgentGone(RunEnded):
    """The run may go on elsewhere, and without this worker's agent nobody can tell it so."""

    def __init__(self) -> None:
        super().__init__("the agent of this worker is gone, and nobody else can place it in a view")


class LeaveRequested(ElasticError):
    """This worker was told to leave while it waited for a view that did not come."""


class AskedToSave(Exception):
    """No view comes before this worker has saved what it holds, or tried to where the run waits for nodes."""

    def __init__(self, *, waits: bool) -> None:
        super().__init__("asked to save")
        self.waits = waits


class AskedToClaim(Exception):
    """No view comes before this worker has asked the storage whether the run may go on here, and said so."""

    def __init__(self, words: TakeClaim) -> None:
        super().__init__("asked to claim")
        self.words = words


class Answer(Enum):
    """The answers to one that says that it is leaving.

    GO    what it holds is safe   SAVE  nobody else holds it: save it, say so, and ask again
    VIEW  it is in the next view  LOST  nobody could see to what it holds   NONE  none came in time
    """

    GO, SAVE, VIEW, LOST, NONE = auto(), auto(), auto(), auto(), auto()


class IdentityDiffers(Exception):
    """The run that this worker wants to join has another identity; carries it."""

    def __init__(self, identity: Any) -> None:
        super().__init__("another identity")
        self.identity = identity


class RunIsPast(Exception):
    """The run that this worker is ready for is finished, and the others are in a later one of the script's."""


class Live:
    """The channel to the agent. Open from the start of the process to its end; see the module's docstring.

    leave     why this worker should leave, once somebody says so
    leave_by_s  until when its node is there, by time.monotonic(), as far as somebody says
    claim     the run's newest, as the hub knew it when it last asked this worker to save
    on_broken called in the channel's thread when the present view is broken
    on_leave  called there with each word that this worker should leave
    liveness  of the agent that has the hub, as of the newest view, or of the hub's move since: the coordinator hears it
    on_hub_moved  called there on the coordinator, when the hub has moved within a view
    on_moved_on   called there when the run has gone on without this worker, with the reason: it is to end at once
    """

    def __init__(self, channel: int) -> None:
        self._socket = socket.socket(fileno=os.dup(channel))
        self._agent = os.getppid()
        self._send_lock = threading.Lock()
        self._changed = threading.Condition()
        self._view: NewView | None = None
        self._generation = 0
        self._board: dict[tuple[int, str], bytes] = {}
        self._waits_for_view: Ready | ViewIsOver | None = None  # as this worker has last said so
        self._broken = 0
        self._regroup = 0
        self._asked = 0
        self._waits = False
        self._claim: TakeClaim | None = None
        self._released: Released | None = None
        self._end: End | None = None
        self._identity: tuple[Any] | None = None  # the run's, where it is another
        self._runs: list[str] = []  # of this process, by their URLs
        self._in_run = self._past = False
        self._gone = False
        self.leave: str | None = None
        self.leave_by_s: float | None = None
        self._hints: list[tuple[str, float | None]] = []
        self.claim: Message | None = None
        self.on_broken: Callable[[], None] | None = None
        self.on_leave: Callable[[], None] | None = None
        self.liveness: Message | None = None
        self.on_hub_moved: Callable[[], None] | None = None
        self.on_moved_on: Callable[[str], None] | None = None
        self._thread = threading.Thread(target=self._listen, name="elastic-channel", daemon=True)
        self._thread.start()

    def begin_run(self, url: str) -> None:
        """Begin the script's first run, or its next. Raises ConfigError where the one before is still open."""
        with self._changed:
            if self._in_run:
                raise ConfigError(
                    f"a Run was entered inside another one, {self._runs[-1]}, and under `elastic run` a worker is in "
                    "one at a time\n"
                    "  state  nothing of it was begun\n"
                    "  next   leave the with-block of the first, and then enter the next: one after the other they "
                    "work"
                )
            times = 1 + sum(one == url or one.startswith(f"{url}#") for one in self._runs)
            self._runs.append(f"{url}#{times}" if times > 1 else url)
            self._in_run, self._past, self._asked = True, False, 0
            # what was said and heard of the run before is no concern of this one
            self._claim = self._released = self._identity = self.claim = None

    def end_run(self) -> None:
        """Note that the script is out of its run, and may begin the next."""
        self._in_run = False
        self.on_broken = self.on_leave = self.on_hub_moved = self.on_moved_on = (
            None  # what the next one sets comes first
        )

    # saying

    def ready(self, *, shares: int, identity: Any, accepted: bool = False, newest: Message | None = None) -> None:
        """Say that this worker is ready to join; newest: the newest claim that it sees in the run's storage."""
        runs = list(self._runs)
        ready = Ready(worker=ME, shares=shares, identity=identity, accepted=accepted, newest=newest, runs=runs)
        self._waits_for_view = ready
        self._say(ready)

    def entered(self) -> None:
        """Say that all workers of the present view have met."""
        self._say(Entered(worker=ME, generation=self._generation))

    def witness(self, claim: Message, *, agreed: bool) -> None:
        """Say what messages.Witness does."""
        self._say(Witness(worker=ME, generation=self._generation, claim=claim, agreed=agreed))

    def has_read(self, claim: Message) -> None:
        """Say what messages.HasRead does."""
        self._say(HasRead(worker=ME, claim=claim))

    def claimed(self, generation: int, claim: Message | None, *, why: str = "", moved_on: bool = False) -> None:
        """Answer AskedToClaim; generation: of the view that it is for."""
        self._say(Claimed(worker=ME, generation=generation, claim=claim, why=why, moved_on=moved_on))

    def view_is_over(self, *, step: int, at: str, lost: bool, whole: bool, torn: bool) -> None:
        """Say that this worker is done with the present view.

        lost         because a collective failed, so the others cannot go on either
        whole, torn  what this worker holds, see leaving.Holding
        """
        generation = self._generation
        over = ViewIsOver(worker=ME, generation=generation, step=step, at=at, lost=lost, whole=whole, torn=torn)
        self._waits_for_view = over
        self._say(over)

    def leaving(
        self, *, step: int, saved: bool, whole: bool = True, torn: bool = False, joins: bool = True, lost: bool = False
    ) -> None:
        """Say that this worker leaves in order, at a boundary that all agreed on.

        lost                without any, so that the others cannot go on
        saved               this worker has seen what it holds committed
        whole, torn, joins  see leaving.Holding
        """
        self._say(
            Leaving(
                worker=ME,
                generation=self._generation,
                step=step,
                lost=lost,
                saved=saved,
                whole=whole,
                torn=torn,
                joins=joins,
            )
        )

    def saved(self, *, step: int) -> None:
        """Say that what this worker was asked to save is committed."""
        with self._changed:
            self._asked = 0
        self._say(Saved(worker=ME, generation=self._generation, step=step))

    def has_tried_to_save(self) -> None:
        """Note that what it was asked to save while the run waits is not committed: it waits on."""
        with self._changed:
            if self._waits:  # else all are to go by now, and it is asked once more, which the hub waits for
                self._asked = 0

    def finished(self, *, step: int) -> None:
        """Say that this worker has come to the run's end."""
        self._say(Finished(worker=ME, step=step))

    def status(self, status: Message) -> None:
        """Send a status for the agent's terminal; leave it out where it would have to wait for the agent to read."""
        if select.select([], [self._socket], [], 0)[1]:
            self._say(RunStatus(worker=ME, status=status))

    def figures(self, figures: Message) -> None:
        """Send figures for the node's metrics. Left out in the same case: the next ones hold them, too."""
        if select.select([], [self._socket], [], 0)[1]:
            self._say(Figures(worker=ME, figures=figures))

    def put(self, generation: int, key: str, value: bytes) -> None:
        """Set a key on the board of that view."""
        self._say(Put(worker=ME, generation=generation, key=key, value=base64.b64encode(value).decode()))

    @property
    def agent_is_gone(self) -> bool:
        """Return whether this worker's agent was killed, or failed."""
        # The kernel tells of its end as the agent's thread ends that has started this process; it has another parent
        # only when all of the agent's threads have ended.
        return os.getppid() != self._agent or linux.exit_status(self._agent) is not None

    def request_leave(self, why: str, by_s: float | None = None) -> None:
        """Have this worker leave at a signal; the agent's word comes over the channel. by_s: see `leave_by_s`."""
        with self._changed:
            self._leaves(why, by_s)
            self._changed.notify_all()

    # hearing

    def wait_for_view(self, *, within_s: float) -> tuple[View, NewView]:
        """Wait for a view that is newer than the present one.

        Raises RunEnded, RunIsPast, LeaveRequested, AskedToSave, AskedToClaim, IdentityDiffers, RendezvousTimeout.
        """
        began_s = time.monotonic()
        deadline = began_s + within_s
        again_s = _AGAIN_S
        with self._changed:
            while True:
                if self._end is not None:
                    raise RunEnded(self._end.why, repeated=self._end.repeated)
                if self._gone:
                    # The run may go on elsewhere without us: nothing that we hold may be written any more.
                    raise AgentGone
                if self._past:
                    raise RunIsPast
                if self._asked == self._generation > 0:
                    raise AskedToSave(waits=self._waits)
                if self._claim is not None:
                    words, self._claim = self._claim, None
                    if self._view is None or self._view.generation < words.generation:
                        raise AskedToClaim(words)
                if self._identity is not None:
                    (identity,), self._identity = self._identity, None
                    raise IdentityDiffers(identity)
                if self._view is not None and self._view.generation > self._generation:
                    view = self._view
                    self._generation, self._waits_for_view = view.generation, None
                    self._board = {at: value for at, value in self._board.items() if at[0] >= self._generation}
                    members = tuple(view.workers)
                    return View(generation=self._generation, workers=members, replica_size=view.replica_size), view
                if self.leave is not None and time.monotonic() - began_s > _LEAVE_S:
                    raise LeaveRequested(self.leave)
                if self._changed.wait(_LOOK_S):
                    continue
                if time.monotonic() - began_s >= again_s:
                    again_s *= 2
                    self._say_again()
                if time.monotonic() >= deadline:
                    raise RendezvousTimeout(
                        f"no view came within {within_s:.0f} s\n"
                        "  next  look at the log of `elastic run` for who is missing",
                        missing=[],
                    )

    def _say_again(self) -> None:
        """Repeat the word that the hub waits for: it must not be lost, and twice it is once."""
        said = self._waits_for_view
        if said is not None and select.select([], [self._socket], [], 0)[1]:
            self._say(said)

    def board(self) -> Board:
        """Return what the workers of the present view tell each other while they form a group."""
        return Board(self, self._generation)

    def take_hint(self) -> tuple[str, float | None] | None:
        """Return why this worker's node may be taken soon, and by when if known; None: no hint has come since."""
        with self._changed:
            return self._hints.pop(0) if self._hints else None

    def wants_regroup(self) -> bool:
        """Return whether the present view is to be left at a boundary, as for somebody who waits to join."""
        return self._regroup >= self._generation > 0

    def is_broken(self) -> bool:
        """Return whether the present view is broken: somebody is gone, or has lost a peer."""
        return self._broken >= self._generation

    def answer(self, *, within_s: float) -> Answer:
        """Wait for the answer to `leaving`, or to `saved` after it."""
        deadline = time.monotonic() + within_s
        with self._changed:
            while True:
                if self._released is not None:
                    return Answer.GO if self._released.safe else Answer.LOST
                if self._gone or self._end is not None:
                    return Answer.LOST
                if self._asked == self._generation > 0:
                    return Answer.SAVE
                if self._view is not None and self._view.generation > self._generation:
                    return Answer.VIEW
                if not self._changed.wait(max(0.0, deadline - time.monotonic())) and time.monotonic() >= deadline:
                    return Answer.NONE

    def look(self, generation: int, keys: list[str]) -> bool:
        """Return whether all keys are on the board. Raises ConnectionError once that view is broken."""
        with self._changed:
            return self._there(generation, keys)

    def wait_for(self, generation: int, keys: list[str], within_s: float) -> None:
        """Wait until all keys are on the board. Raises ConnectionError (broken view) and TimeoutError."""
        deadline = time.monotonic() + within_s
        with self._changed:
            while not self._there(generation, keys):
                if not self._changed.wait(max(0.0, deadline - time.monotonic())) and time.monotonic() >= deadline:
                    raise TimeoutError(f"{', '.join(keys)} did not come within {within_s:.0f} s")

    def read_board(self, generation: int, key: str) -> bytes:
        with self._changed:
            return self._board[generation, key]

    def _there(self, generation: int, keys: list[str]) -> bool:
        if self._broken >= generation or self._gone or self._end is not None:
            raise ConnectionError("the view is broken")
        return all((generation, key) in self._board for key in keys)

    def _say(self, said: ToItsAgent) -> None:
        """Send a word; if the channel has ended, its thread notices. Raises WireError."""
        line = line_of(said)
        try:
            with self._send_lock:
                self._socket.sendall(line)
        except OSError:
            return

    def _listen(self) -> None:
        """Read the channel until it ends; then have this worker leave, and end it where it does not."""
        lines = Lines(LONG_LINE_MAX)
        while True:
            try:
                if not (arrived := self._socket.recv(_READ_BYTES)):
                    break
                said = [parse(TO_WORKER, message) for message in lines.feed(arrived)]
            except (OSError, NotAMessage):
                break
            for one in said:
                self._heard(one)
        with self._changed:
            self._gone = True
            self._leaves(AGENT_ENDED, time.monotonic() + ORPHAN_S)
            self._changed.notify_all()
        sys.stderr.write("elastic: the agent of this worker is gone; it leaves\n")
        faulthandler.dump_traceback_later(ORPHAN_S, exit=True)  # a thread of C: it ends what holds Python's lock, too

    def _leaves(self, why: str, by_s: float | None) -> None:
        """Note that this worker is to leave: the first reason stays, and the earliest time."""
        self.leave = self.leave or why
        if by_s is not None:
            self.leave_by_s = by_s if self.leave_by_s is None else min(by_s, self.leave_by_s)

    def _heard(self, said: ToWorker) -> None:
        """Take in what was said, and call whom it concerns."""
        broken, moved, moved_on = False, False, None
        with self._changed:
            match said:
                case NewView():
                    self._view, self.liveness = said, said.liveness
                case OnBoard(generation=generation, entries=entries):
                    self._board.update(((generation, key), base64.b64decode(value)) for key, value in entries.items())
                case Broken(generation=generation):
                    self._broken = max(self._broken, generation)
                    broken = self._broken >= self._generation
                case Regroup(generation=generation):
                    self._regroup = generation
                case Save(generation=generation, claim=claim, waits=waits):
                    self._asked, self._waits, self.claim = generation, waits, claim or self.claim
                case TakeClaim():
                    self._claim = said
                case HubAt(liveness=liveness):
                    self.liveness, moved = liveness, True
                case OtherIdentity(identity=identity):
                    self._identity = (identity,)
                case Past():
                    self._past = True
                case Released():
                    self._released = said
                case MovedOn(why=why):
                    moved_on, broken = why, True
                case Leave(why=why, left_s=left_s):
                    self._leaves(f"a notice to its node: {why}" if why else "a notice to its node", _by_s(left_s))
                case Hint(why=why, left_s=left_s):
                    self._hints.append((why, _by_s(left_s)))
                case End():
                    self._end = said
                    broken = True
            self._changed.notify_all()
        if broken and self.on_broken is not None:
            self.on_broken()
        if isinstance(said, Leave) and self.on_leave is not None:
            self.on_leave()
        if moved and self.on_hub_moved is not None:
            self.on_hub_moved()
        if moved_on is not None and self.on_moved_on is not None:
            self.on_moved_on(moved_on)


def _by_s(left_s: float | None) -> float | None:
    return None if left_s is None else time.monotonic() + left_s


def line_of(said: ToItsAgent) -> bytes:
    """Return the line to send. Raises WireError for one so long that the agent would end this worker for it."""
    message = as_message(said)
    line, word = encode(message), message["say"]
    if len(line) > _LINE_MAX:
        raise WireError(
            f"the word {word!r} of this worker takes {len(line):,} bytes, and its agent takes {_LINE_MAX:,} at most\n"
            "  state  nothing was said, and nothing of the run has changed\n"
            "  next   the run's identity lists the options of every group of every optimizer: have fewer groups;\n"
            "         parameters with equal options can share one"
        )
    return line


_live: Live | None = None


def live(channel: int | None) -> Live | None:
    """Return the channel to this process's agent, opened on first use; None where no agent of ours started it."""
    global _live
    if _live is None and channel is not None:
        _live = Live(channel)
    return _live
