"""The agent of a node: starts its workers, passes on what they and the hub say to each other, and reaps them.

    workers' channels ┐
    deaths (SIGCHLD)  │
    signals, notices  ├─ one loop in one thread ─ hub (here, or over TCP)
    a timer           │
    the warm process  ┘

Promises  a worker's death is reported at once, after everything that it had said before.
          A worker that is stuck, as the hub finds, shows the stacks of its threads, is killed and reported as hung; one
          that somebody has stopped is killed.
          SIGTERM, SIGUSR1, Ctrl-C, and a cloud's notice make this node's workers leave in order, and then the agent
          exits with 0, or as --leave-status says. A second Ctrl-C ends everything at once, with 130. A cloud's hint
          makes the run save, and nobody leaves.
          A node that finds the run full has no workers while it waits; with 75 it ends if no place comes free.
          No process that was started here, by whomever, outlives the agent. (That of an agent that is killed
          outright is the kernel's and the workers' doing, see worker.py.)
Leaves    every decision on views, replacements and the run's end to membership/hub.py.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from checkpoint import linux
from elastic.events import words
from elastic.launch import children, event_loop
from elastic.launch.hub_link import HubLink
from elastic.launch.logs import Logs, Streams
from elastic.launch.loop_connection import LoopConnection
from elastic.launch.memory import OomKills, oom_kills, sentence, struck
from elastic.launch.node_notices import NodeNotices
from elastic.launch.notice_hook import NoticeHook
from elastic.launch.sightings import Doubts, Patience, sighting
from elastic.launch.start_times import IMPORTED, IN_RUN, STARTED, StartTimes
from elastic.launch.starter import Request, Starter
from elastic.launch.worker import SHARED_STDERR
from elastic.membership.endings import AGAIN, CUT_SHORT, KILLED
from elastic.membership.messages import (
    TO_AGENT,
    TO_ITS_AGENT,
    Exited,
    Failed,
    Finished,
    Hint,
    KillHung,
    Leave,
    MovedOn,
    Ready,
    RunIsOver,
    RunStatus,
    Sighted,
    Start,
    Started,
    Status,
    Unstarted,
    as_message,
    parse,
)
from elastic.membership.progress import BYTES, Phase, Record
from elastic.membership.signal_pipe import SignalPipe
from elastic.membership.stalls import Sighting
from elastic.membership.wire import Message, WireError
from elastic.preemption.notice import Kind, Notice
from elastic.preemption.signals import LEAVE_SIGNALS
from elastic.status.terminal import StatusTerminal

FAILED, INTERRUPTED = 1, 130
NO_PLACE = AGAIN  # it may be tried again: EX_TEMPFAIL, as a worker's
_ONLY_SLOW = (
    "\n  next   if it was only slow there: `with run.long_section():` around what takes long between steps, or a "
    "longer --hang-limit for all"
)
_TICK_S = 0.1
_LOOK_S = 0.25
_SIGHTED_S = 0.9  # between two reports of a node where somebody is quiet
_HELD_UP_S = 1.0  # a look that comes so late says that this process was stopped, and likely its workers, too
_LAST_WORD_S = 1.0  # for a worker without which the run has gone on, to put that on record
_DUMP_S = 0.5  # for a stuck worker to print its stacks
_DUMP_HELD_UP_S = 5.0  # so much longer at most, while others have the processor
_TERM_S = 5.0  # from SIGTERM to SIGKILL
_TWICE_S = 0.5  # launchers forward what the terminal has sent already: two SIGINT within this are one


@dataclass(frozen=True, kw_only=True)
class NodeRules:
    """node     this node's name, unlike any other's
    address  the IPv4 address that workers listen on; None: theirs to find
    job      --rdzv-id, where it tells jobs apart
    hang_s   how long a step may take without a sign, unless experience says otherwise
    leave_s  how long workers may take to leave, or to come to an end when the run is over
    leave_on signals that make this node leave, beside those that always do
    leave_status  the exit status, where it leaves before the run is finished
    grace_s  from such a signal to SIGKILL, as far as somebody has said
    several_nodes  the run may have some
    status   show the run's status on stderr, which is a terminal
    """

    node: str
    address: str | None
    workers: int
    job: str | None
    hang_s: float
    leave_s: float
    leave_on: tuple[signal.Signals, ...]
    leave_status: int = 0
    grace_s: float | None = None
    status: bool = False
    several_nodes: bool = False


@dataclass
class _Worker:
    token: str
    local_rank: int
    channel: LoopConnection
    its_end: socket.socket
    progress: int
    streams: Streams
    pid: int = 0
    id: str = ""
    ready: bool = False
    expected: bool = False
    useless: bool = False  # what it holds does not count: the run has gone on without it, or has no place for it
    stuck: bool = False
    stuck_s: float | None = None
    stuck_at: Phase = Phase.STARTING
    late: bool = False
    hung: bool = False
    verdict: KillHung | None = None  # its stacks are being printed; then it is killed, unless it gave a sign
    dumped_by_s: float = 0.0
    held_up_s: float = 0.0  # by others who had the processor, when that began
    oom_kills: OomKills | None = None  # when it was started
    kill_at_s: float | None = None
    patience: Patience = field(default_factory=Patience)
    hinted: set[tuple[str, str]] = field(default_factory=set)  # what it was told of, see _known_as

    @property
    def called(self) -> str:
        return f"worker {self.id or self.token} (local rank {self.local_rank})"


class Agent:
    """run() returns the exit status. starter: may be at work already; it, its loop and its children are this one's."""

    def __init__(
        self,
        rules: NodeRules,
        hub: HubLink,
        logs: Logs,
        starter: Starter,
        notices: NodeNotices,
        hook: NoticeHook,
        *,
        say: Callable[[str], None],
        timing: StartTimes | None = None,
    ) -> None:
        self._rules = rules
        self._timing = timing
        self._hub = hub
        self._logs = logs
        self._say = say
        self._loop = starter.loop
        self._workers: dict[str, _Worker] = {}  # by token
        self._ids: dict[str, _Worker] = {}
        self._starts: Counter[int] = Counter()
        self._notices = notices
        self._hook = hook
        self._leaving = self._finished = False
        self._left_on = ""
        self._leave_by_s: float | None = None  # this node is gone then
        self._hints: list[Notice] = []  # in force
        self._run_ended: RunIsOver | None = None
        self._hub_gone = self._no_place = False
        self._deadline_s: float | None = None  # for the workers' end
        self._written_by_s: float | None = None
        self._disorder = False
        self._taken = False  # a worker that was told to leave, by a kill from outside
        self._interrupted_s: float | None = None
        self._killed = False
        self._looked_s = self._held_up_s = time.monotonic()
        self._sighted_s = 0.0
        self._doubts = Doubts()
        self._traces: set[str] = set()  # that people have seen
        self._hostname = socket.gethostname()
        self._terminal = StatusTerminal(sys.stderr.fileno()) if rules.status else None
        self._starter = starter
        starter.started = self._started

    def run(self, early: Callable[[], Sequence[int]] = tuple) -> int:
        """early: gives the signals that came before it took them itself"""
        with self._signals():
            try:
                self._signalled(early())
                self._hub.open(
                    self._loop,
                    self._ordered,
                    gone=self._lost_hub,
                    moved_on=self._moved_on,
                    waits=self._waits,
                    no_place=self._found_no_place,
                    places=self._places,
                    catch_up=self._catch_up,
                )
                self._notices.open(self._loop, self._noticed, self._say)
                for local_rank in range(self._rules.workers):
                    self._start(local_rank)
                next_tick_s = time.monotonic() + _TICK_S
                self._hub.settle()
                while not self._is_done(time.monotonic()):
                    event_loop.run_once(self._loop, max(0.0, next_tick_s - time.monotonic()))
                    self._hub.settle()
                    if (now_s := time.monotonic()) >= next_tick_s:
                        self._tick(now_s)
                        next_tick_s = now_s + _TICK_S
                    self._take_leave(now_s)
                return self._status()
            finally:
                self._clear_away()

    def _is_done(self, now_s: float) -> bool:
        if self._killed:
            return True
        waited_long = self._written_by_s is not None and now_s > self._written_by_s
        is_written = self._is_over and (waited_long or not children.finishing())
        return is_written and not self._hook.is_waited_for(now_s, self._leave_by_s)

    @property
    def _is_over(self) -> bool:
        """No worker is here and none comes, nor does anybody need the hub, should it be here."""
        return not self._workers and (self._has_ended or (self._leaving and not self._hub.is_needed))

    @property
    def _has_ended(self) -> bool:
        """For this node, whatever its workers do."""
        return self._run_ended is not None or self._hub_gone or self._no_place

    def _take_leave(self, now_s: float) -> None:
        """Of the hub, once the last worker of a node that leaves has ended; and says what is still waited for."""
        if self._killed or self._workers:
            return
        if self._leaving and not self._has_ended:
            self._hub.say_bye_or_hand_over(now_s)
        if self._is_over and self._written_by_s is None and children.finishing():
            self._written_by_s = now_s + self._rules.leave_s
            self._say(f"waiting for a save to be committed, {self._rules.leave_s:.0f} s at most")

    def _catch_up(self) -> None:
        """With everything that the workers have said."""
        for worker in list(self._workers.values()):
            worker.channel.catch_up()

    def _places(self) -> tuple[int, list[int]]:
        starting = [worker.local_rank for worker in self._workers.values() if not worker.pid]
        return 0 if self._leaving or self._run_ended is not None else self._rules.workers, starting

    def _moved_on(self, why: str) -> None:
        """This node comes back with other workers, which the hub orders then."""
        self._say(
            f"{why}: its {len(self._workers)} workers end\n"
            "  state  what they held is not lost: others hold it, or what came of it\n"
            "  next   nothing; this node joins the run again as soon as it reaches the others"
        )
        self._end_useless(MovedOn(why=why))

    def _waits(self, why: str) -> None:
        """The run is full. This node's workers have hardly begun; others are ordered once it has a place."""
        self._say(why)
        self._end_useless()

    def _found_no_place(self, why: str) -> None:
        self._no_place = True
        self._say(
            f"{why}\n"
            "  state  nothing was started here, and the run goes on without this node\n"
            f"  next   try again later (exit status {NO_PLACE}), allow more nodes with --nnodes=MIN:MAX, or wait "
            "longer with --rdzv-conf join_timeout=SECONDS"
        )

    def _end_useless(self, last: MovedOn | None = None) -> None:
        """Its workers hold nothing that counts. last: what those in the run are told, to put it on record, and end."""
        for token in self._starter.cancel():
            worker = self._workers.pop(token)
            worker.channel.close()
            self._close(worker)
        for worker in self._workers.values():
            worker.expected = worker.useless = True
            if last is not None and worker.ready:
                worker.channel.say(as_message(last))
                worker.kill_at_s = time.monotonic() + _LAST_WORD_S
            else:
                self._kill(worker)

    def _status(self) -> int:
        if self._killed:
            return INTERRUPTED
        if self._run_ended is not None and self._run_ended.failed:
            self._explain(self._run_ended.why)
            return FAILED
        if self._no_place and self._run_ended is None:
            return NO_PLACE
        if self._run_ended is not None and self._run_ended.why:
            self._say(self._run_ended.why)
        unsafe = self._taken and self._run_ended is None  # else the hub says that what it held is not lost
        if self._hub_gone or self._disorder or unsafe:
            return FAILED
        if self._leaving and not self._finished:
            status = self._rules.leave_status
            self._say(f"this node has left ({self._left_on}); the same command goes on with the run (status {status})")
            return status
        return 0

    # starting

    def _start(self, local_rank: int) -> None:
        if self._leaving or self._run_ended is not None or self._hub_gone:
            self._hub.tell(as_message(Unstarted(local_rank=local_rank)))
            return
        rules, token, restart = self._rules, secrets.token_hex(3), self._starts[local_rank]
        self._starts[local_rank] += 1
        ours, its_end = socket.socketpair()
        progress = os.memfd_create("elastic-progress", os.MFD_CLOEXEC)
        os.ftruncate(progress, BYTES)
        streams = self._logs.open(local_rank, restart)
        channel = LoopConnection(
            self._loop, ours, lambda message: self._heard(worker, message), lambda why: self._channel_ended(worker, why)
        )
        worker = _Worker(token, local_rank, channel, its_end, progress, streams)
        self._workers[token] = worker
        env = {
            "LOCAL_RANK": str(local_rank),
            "LOCAL_WORLD_SIZE": str(rules.workers),
            "ELASTIC_TOKEN": token,
            "ELASTIC_NODE": rules.node,
            "ELASTIC_RESTART": str(restart),
            "ELASTIC_HANG_S": str(rules.hang_s),
            "ELASTIC_ORDERED": str(time.time()),
        }
        if self._terminal is not None:
            env["ELASTIC_STATUS"] = "1"
        if rules.several_nodes:
            env["ELASTIC_SEVERAL_NODES"] = "1"
        if rules.address is not None:
            env["ELASTIC_ADDRESS"] = rules.address
        if rules.job is not None:
            env["ELASTIC_JOB"] = rules.job
        if "stderr" not in streams.fds:
            env[SHARED_STDERR] = "1"
        fds = {"ELASTIC_CHANNEL": its_end.fileno(), "ELASTIC_PROGRESS": progress, **streams.fds}
        self._starter.start(Request(token, env, fds))

    def _started(self, token: str, pid: int) -> None:
        worker = self._workers[token]
        worker.pid, worker.id = pid, f"{self._hostname}-{pid}-{token}"
        self._ids[worker.id] = worker
        if self._timing is not None:
            self._timing.count(STARTED)
        worker.oom_kills = oom_kills()
        worker.its_end.close()
        worker.streams.given()
        self._hub.tell(as_message(Started(worker=worker.id, local_rank=worker.local_rank)))

    # hearing

    def _heard(self, worker: _Worker, message: Message) -> None:
        if worker.useless:
            return
        signed = {**message, "worker": worker.id}
        try:
            said = parse(TO_ITS_AGENT, signed)
        except WireError as wrong:
            self._say(f"a message of {worker.called} is dropped: {wrong}")
            return
        match said:
            case RunStatus():
                if self._terminal is not None:
                    self._terminal.show(said.status)
                return
            case Ready():
                worker.ready = True
                if self._timing is not None:
                    self._timing.count(IN_RUN)
                if self._leaving:
                    worker.kill_at_s = None  # it has come to its Run meanwhile, and leaves in order
                    worker.channel.say(as_message(self._leave_message()))
                for notice in self._hints:
                    if not any(_known_as(notice) in other.hinted for other in self._workers.values()):
                        self._pass_on(notice, [worker])  # else somebody here has seen, or sees, to the save
            case Finished():
                self._finished = True
            case Failed():
                self._show(worker, said)
        self._hub.tell(signed)

    def _channel_ended(self, worker: _Worker, why: str | None) -> None:
        if why is not None:
            self._say(f"{worker.called} is killed: its channel carries no messages: {why}")
            self._kill(worker)

    def _ordered(self, worker_id: str | None, message: Message) -> None:
        if worker_id is not None:
            if worker_id in self._ids:
                self._ids[worker_id].channel.say(message)
            return
        match parse(TO_AGENT, message):  # by either hub, before it came here
            case Start(local_rank=local_rank) if local_rank < self._rules.workers:
                self._start(local_rank)
            case Status(text=text):
                self._say(text)
            case KillHung() as verdict:
                self._kill_hung(verdict)
            case RunIsOver() as over:
                self._run_ended = over
                self._end_workers(lambda worker: None)

    def _lost_hub(self, why: str) -> None:
        if self._run_ended is not None:
            return  # its process has ended before this one, as the run has
        self._hub_gone = True
        self._say(
            f"the run's hub is lost, and there is no other: {why}\n"
            f"  state  the {len(self._workers)} workers of this node finish their step, save what they may, and leave\n"
            "  next   see what became of the other nodes; the same command goes on from what is saved"
        )
        self.leave("the loss of the hub")

    # ending

    def leave(self, why: str, by_s: float | None = None) -> None:
        """Every worker of this node goes at its next boundary, or, where it waits for a view, once it has for 5 s
        (live.py). One whose script has not come to its Run yet is ended.

        by_s  this node is gone then, by time.monotonic()
        """
        sooner = by_s is not None and (self._leave_by_s is None or by_s < self._leave_by_s)
        self._leave_by_s = by_s if sooner else self._leave_by_s
        if self._deadline_s is not None and self._leave_by_s is not None:
            self._deadline_s = max(self._deadline_s, self._leave_by_s)
        if not self._leaving:
            self._leaving, self._left_on = True, why
            if self._workers:
                left = "" if by_s is None else f", in {words.seconds(max(0.0, by_s - time.monotonic()))}"
                count = len(self._workers)
                who = "worker of this node leaves" if count == 1 else f"{count} workers of this node leave"
                self._say(f"{why}{left}: the {who}")
            self._end_workers(lambda worker: worker.channel.say(as_message(self._leave_message())))
        elif sooner:
            for worker in [worker for worker in self._workers.values() if worker.ready]:
                worker.channel.say(as_message(self._leave_message()))

    def _leave_message(self) -> Leave:
        return Leave(why=self._left_on, left_s=_left_s(self._leave_by_s))

    def _noticed(self, notice: Notice) -> None:
        """By a source of this node."""
        if notice.withdrawn:
            self._hints = [hint for hint in self._hints if _known_as(hint) != _known_as(notice)]
            goes = "; this node leaves all the same" if notice.kind is Kind.LEAVE else ""
            self._say(f"not said any more: {notice.why}{goes}")
        elif notice.kind is Kind.LEAVE:
            self.leave(notice.why, notice.by_s)
        elif not notice.sooner:
            self._hints.append(notice)
            self._say(f"{notice.sentence(time.monotonic())}: the run saves at the next step, and goes on")
            self._pass_on(notice, [worker for worker in self._workers.values() if worker.ready])

    def _pass_on(self, hint: Notice, workers: Sequence[_Worker]) -> None:
        for worker in workers:
            worker.hinted.add(_known_as(hint))
            worker.channel.say(as_message(Hint(why=hint.why, left_s=_left_s(hint.by_s))))

    def _end_workers(self, tell: Callable[[_Worker], None]) -> None:
        if self._deadline_s is None:  # as long as the machine is there, if that is known to be longer
            self._deadline_s = max(time.monotonic() + self._rules.leave_s, self._leave_by_s or 0.0)
        for token in self._starter.cancel():
            worker = self._workers.pop(token)
            worker.channel.close()
            self._close(worker)
            self._hub.tell(as_message(Unstarted(local_rank=worker.local_rank)))
        for worker in self._workers.values():
            if worker.ready:
                worker.expected = True
                tell(worker)
            else:
                self._terminate(worker)

    def _terminate(self, worker: _Worker) -> None:
        worker.expected = True
        if worker.pid:
            os.kill(worker.pid, signal.SIGTERM)  # not reaped yet, so still this process
            worker.kill_at_s = time.monotonic() + _TERM_S

    def _kill(self, worker: _Worker) -> None:
        if worker.pid:
            children.kill_group(worker.pid)

    # watching

    def _tick(self, now_s: float) -> None:
        self._reap()
        self._hub.tick(now_s)
        self._starter.tick(now_s)
        for worker in list(self._workers.values()):
            for tail in worker.streams.tails:
                tail.show()
            if worker.kill_at_s is not None and now_s >= worker.kill_at_s:
                self._kill(worker)
            if worker.verdict is not None and now_s >= worker.dumped_by_s:
                self._kill_if_still_hung(worker, worker.verdict, now_s)
        if self._deadline_s is not None and now_s > self._deadline_s and self._workers:
            self._late(now_s)
        if now_s - self._looked_s >= _LOOK_S:
            self._look(now_s)
        if self._timing is not None and not self._timing.told:
            self._look_at_start(self._timing)

    def _look_at_start(self, timing: StartTimes) -> None:
        if self._starter.imported_s is not None:
            timing.mark(IMPORTED, self._starter.imported_s)
        timing.look((token, Record.read(worker.progress)) for token, worker in self._workers.items())

    def _late(self, now_s: float) -> None:
        late = list(self._workers.values())
        names = ", ".join(worker.called for worker in late)
        within = f"within {self._rules.leave_s:.0f} s (--shutdown-timeout)"
        if self._leave_by_s is not None:
            within += ", nor while this node was said to be there"
        self._say(f"not ended {within}, killed: {names}")
        self._disorder = True
        self._deadline_s = now_s + _TERM_S
        for worker in late:
            worker.late = True
            self._kill(worker)

    def _look(self, now_s: float) -> None:
        if now_s - self._looked_s > _HELD_UP_S:
            self._held_up_s = now_s
        self._looked_s = now_s
        living = [worker for worker in self._workers.values() if worker.pid and not worker.stuck]
        self._doubts.look(now_s, (Record.read(worker.progress) for worker in living))
        seen: list[Sighting] = []
        for worker in living:
            record = Record.read(worker.progress)
            stat = linux.process_stat(worker.pid)
            if worker.patience.stopped(stat.state if stat is not None else ""):
                self._stuck(worker, now_s, record, "its process is stopped")
                self._kill(worker)  # somebody stopped it: no doing of its own
                continue
            seen.append(
                sighting(
                    now_s,
                    worker.id,
                    record,
                    not_before_s=self._held_up_s,
                    held_up_s=worker.patience.held_up(record.sequence, linux.held_up_s(worker.pid)),
                    patience=self._doubts.patience(record.phase),
                )
            )
        quiet = any(one.quiet_s > min(self._rules.hang_s, one.limit_s) / 4 for one in seen)
        if any(one.stuck for one in seen) or (quiet and now_s - self._sighted_s >= _SIGHTED_S):
            self._sighted_s = now_s
            self._hub.tell(as_message(Sighted(workers=[one.document() for one in seen])))

    def _kill_hung(self, verdict: KillHung) -> None:
        worker, now_s = self._ids.get(verdict.worker), time.monotonic()
        if worker is None or worker.stuck or (record := Record.read(worker.progress)).sequence != verdict.sign:
            return
        self._stuck(worker, now_s, record, verdict.why, _ONLY_SLOW)
        worker.hung, worker.verdict, worker.dumped_by_s = True, verdict, now_s + _DUMP_S
        worker.stuck_at, worker.held_up_s = record.phase, linux.held_up_s(worker.pid)
        os.kill(worker.pid, signal.SIGUSR2)  # faulthandler prints all threads' stacks, see worker.py

    def _kill_if_still_hung(self, worker: _Worker, verdict: KillHung, now_s: float) -> None:
        held_up_s = linux.held_up_s(worker.pid) - worker.held_up_s
        if now_s < worker.dumped_by_s + min(held_up_s, _DUMP_HELD_UP_S):
            return  # others had the processor meanwhile
        worker.verdict, record = None, Record.read(worker.progress)
        if self._acquitted(worker, verdict, record):
            self._say(f"{worker.called} went on while its stacks were printed, and lives")
            return
        others = [Record.read(other.progress) for other in self._workers.values() if other.pid and not other.stuck]
        self._doubts.killed(now_s, record, worker.stuck_s or 0.0, others)
        self._kill(worker)

    def _acquitted(self, worker: _Worker, verdict: KillHung, record: Record) -> bool:
        """Whether it went on while its stacks were printed: the verdict speaks of its sign before."""
        went_on = record.sequence != verdict.sign
        if went_on:
            self._doubts.acquitted(worker.stuck_at)
            worker.stuck = worker.hung = False
            worker.stuck_s = None
        return went_on

    def _stuck(self, worker: _Worker, now_s: float, record: Record, why: str, hint: str = "") -> None:
        worker.stuck, worker.stuck_s = True, now_s - record.since_s if record.since_s else 0.0
        self._say(f"{worker.called} is stuck at step {record.at_step}: {why}; it is killed{hint}")

    # ended workers

    def _reap(self) -> None:
        for worker in list(self._workers.values()):
            if worker.pid and (ended := children.ended(worker.pid)) is not None:
                if ended.code != 0:
                    self._kill(worker)  # its children: its group keeps its number until it is reaped
                self._exited(worker, ended, peak_bytes=children.reap(worker.pid))
        self._starter.reap()
        self._hook.reap()
        if not self._starter.forking:  # else the unknown child may be a worker to be
            known = {worker.pid for worker in self._workers.values()} | self._starter.pids() | self._hook.pids()
            children.reap_orphans(known)

    def _exited(self, worker: _Worker, ended: children.Ended, *, peak_bytes: int) -> None:
        worker.channel.drain()
        record = Record.read(worker.progress)
        step = record.at_step
        if worker.verdict is not None:  # it ended by itself
            self._acquitted(worker, worker.verdict, record)
        del self._workers[worker.token], self._ids[worker.id]
        self._close(worker)
        killed = ended.signal == KILLED and not (worker.stuck or worker.late)
        now = oom_kills() if killed else None
        kernel, out_of_memory = sentence(worker.oom_kills, now, peak_bytes), struck(worker.oom_kills, now)
        if not worker.expected and (ended.code != 0 or worker.stuck):
            at = f", at step {step}" if step is not None else ""
            self._say(f"{worker.called} ended: {ended.text}{at}" + (f"\n  kernel  {kernel}" if out_of_memory else ""))
        if (
            worker.expected
            and ended.code not in (0, CUT_SHORT)
            and worker.ready
            and self._run_ended is None
            and not worker.useless
        ):
            self._taken |= killed
            self._disorder |= not killed
            self._say(f"{worker.called} was told to leave and ended otherwise: {ended.text}")
        exited = Exited(
            worker=worker.id,
            code=ended.code,
            signal=ended.signal,
            hung=worker.hung,
            expected=worker.expected,
            step=step,
            t=time.time(),
            stuck_s=worker.stuck_s,
            stopped=worker.stuck and not worker.hung,
            kernel=kernel if killed else None,
            out_of_memory=out_of_memory,
        )
        self._hub.tell(as_message(exited))

    def _close(self, worker: _Worker) -> None:
        worker.its_end.close()
        worker.streams.close()
        os.close(worker.progress)

    def _clear_away(self) -> None:
        if self._terminal is not None:
            self._terminal.close()
        self._starter.close()
        self._notices.close(self._loop, gone=self._leaving and not self._killed)
        for worker in self._workers.values():
            self._kill(worker)
        children.end_all(within_s=0.0 if self._killed else _TERM_S)
        for worker in list(self._workers.values()):
            worker.channel.close()
            self._close(worker)
        self._hub.close()
        self._loop.close()

    # telling people

    def _show(self, worker: _Worker, failed: Failed) -> None:
        """An exception once, however many workers meet it."""
        at = f" at step {failed.step}" if failed.step is not None else ""
        trace, error = failed.trace, failed.error
        if failed.shown:  # by the worker, in its file or on the console
            if not worker.streams.files.get("stderr") or worker.streams.tails:
                self._traces.add(trace)
        elif trace in self._traces or ("\n" in error and any(error in one for one in self._traces)):
            # the latter is known to all of them, and each tells it from its own place
            self._traces.add(trace)
            self._say(f"{worker.called} failed{at} as shown above: {error.partition(chr(10))[0]}")
        else:
            self._traces.add(trace)
            self._say(f"{worker.called} failed{at}\n{trace.rstrip()}")
        if "stderr" in worker.streams.files:
            self._say(f"{worker.called} failed{at}: {error}\n  log  {worker.streams.files['stderr']}")

    def _explain(self, why: str) -> None:
        """Why the run failed; a trace that people have seen is not repeated."""
        for trace in filter(str.strip, self._traces):
            why = why.replace(trace.rstrip(), "(the exception is shown above)")
        self._say(f"the run failed: {why}")

    # signals

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        pipe = SignalPipe({*self._rules.leave_on, *LEAVE_SIGNALS, signal.SIGINT, signal.SIGCHLD})
        self._loop.register(pipe.fd, selectors.EVENT_READ, lambda: self._signalled(pipe.read()))
        try:
            yield
        finally:
            pipe.restore()
            pipe.close()

    def _signalled(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            now_s = time.monotonic()
            if number == signal.SIGINT:
                if self._interrupted_s is not None and now_s - self._interrupted_s > _TWICE_S:
                    self._say("interrupted twice; ending at once, what was committed stays")
                    self._killed = True
                self._interrupted_s = self._interrupted_s or now_s
            if number in (*self._rules.leave_on, *LEAVE_SIGNALS, signal.SIGINT):
                grace_s = None if number == signal.SIGINT else self._rules.grace_s
                name, by_s = signal.Signals(number).name, None if grace_s is None else now_s + grace_s
                self.leave(name, by_s)
                self._hook.call(Notice(source=name, id=name, why=name, by_s=by_s, node=self._hostname))
        self._reap()


def _known_as(notice: Notice) -> tuple[str, str]:
    return notice.source, notice.id


def _left_s(by_s: float | None) -> float | None:
    return None if by_s is None else max(0.0, by_s - time.monotonic())
