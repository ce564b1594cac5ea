"""The agent of a node: starts its workers, passes on what they and the hub say to each other, and reaps them.

    workers' channels ┐
    deaths            │
    signals, notices  ├─ one loop in one thread ─ hub (here, or over TCP)
    a timer           │
    the fork server  ┘

Promises  a worker's death is reported at once, after everything that it had said before: one that is killed or crashes
          before the kernel is done with it (workers/death_watch.py), else at SIGCHLD.
          The workers of one replica are started together; where one of them ends otherwise than in order, the others
          are killed at once.
          A worker that is stuck, as the hub finds, shows the stacks of its threads, is killed and reported as hung; one
          that somebody has stopped is killed.
          SIGTERM, SIGUSR1, Ctrl-C, and a cloud's notice make this node's workers leave in order, and then the agent
          exits with 0, or as --leave-status says. A second Ctrl-C ends everything at once, with 130. A cloud's hint
          makes the run save, and nobody leaves.
          A node that finds the run full has no workers while it waits; with 75 it ends if no place comes free.
          No process that was started here, by whomever, outlives the agent. (That of an agent that is killed
          outright is the kernel's and the workers' doing, see processes/worker.py.)
Leaves    every decision on views, replacements and the run's end to membership/hub/hub.py; what one worker is to
          workers/node_worker.py, the watch for hangs to workers/watch.py, how long a node that leaves has to
          node/node_end.py, clouds' hints to node/notices.py, and the exit status to node/node_end.py.
"""

from __future__ import annotations

import contextlib
import selectors
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from elastic.launch.hub.link import HubLink
from elastic.launch.node.kubeflow import TrainJobStatus
from elastic.launch.node.node_end import NodeDeparture, NodeEnd
from elastic.launch.node.notices import Hints, NodeNotices, NoticeHook
from elastic.launch.node_rules import NodeRules
from elastic.launch.processes import children
from elastic.launch.workers.death_watch import DeathWatch, Dying
from elastic.launch.workers.group_store import GroupStore
from elastic.launch.workers.logs import Logs, ShownFailures
from elastic.launch.workers.node_worker import TERM_S, NodeWorker
from elastic.launch.workers.replica_world import ReplicaWorld
from elastic.launch.workers.start_times import IMPORTED, IN_RUN, STARTED, StartTimes
from elastic.launch.workers.starter import Starter
from elastic.launch.workers.watch import WorkerWatch
from elastic.membership.exit_statuses import CUT_SHORT
from elastic.membership.messages.messages import (
    TO_AGENT,
    TO_ITS_AGENT,
    Exited,
    Failed,
    Figures,
    Finished,
    GroupForms,
    KillHung,
    Leaving,
    MovedOn,
    Ready,
    RunIsOver,
    RunStatus,
    Start,
    Started,
    Status,
    StopAll,
    Unstarted,
    World,
    as_message,
    parse,
)
from elastic.membership.messages.wire import Message, WireError
from elastic.membership.rules.endings import KILLED
from elastic.membership.signal_pipe import SignalPipe
from elastic.preemption.notice import Kind, Notice
from elastic.preemption.signals import LEAVE_SIGNALS, Interrupts
from elastic.status.terminal import StatusTerminal
from elastic_checkpoint.net import event_loop

if TYPE_CHECKING:
    from elastic.launch.node.metrics import NodeMetrics  # whose HTTP takes a moment to load, and few ask for it

_TICK_S = 0.1
_STOPS_S = 30.0  # torchrun's default, for workers that are to start again
_LAST_WORD_S = 1.0  # for a worker without which the run has gone on, to put that on record


class Agent:
    """The agent of a node; `run` returns its exit status. The starter's loop and children are the agent's own."""

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
        metrics: NodeMetrics | None = None,
        group_store: GroupStore | None = None,
        end_stores: Callable[[], None] = lambda: None,
    ) -> None:
        """Take the node's parts; starter: may be at work already; end_stores: ends the rendezvous' stores here."""
        self._end_stores = end_stores
        self._rules = rules
        self._timing = timing
        self._metrics = metrics
        self._hub = hub
        self._logs = logs
        self._say = say
        self._loop = starter.loop
        self._workers: dict[str, NodeWorker] = {}  # by token
        self._ids: dict[str, NodeWorker] = {}
        self._starts: Counter[int] = Counter()  # of replicas, by their first slot
        self._group_store = group_store
        self._world: World | None = None
        self._unplaced: list[int] = []  # slots whose workers start as soon as there is a world
        self._in_group = False  # torch.distributed's default one has formed
        self._notices = notices
        self._hook = hook
        self._departure = NodeDeparture(rules.leave_s)
        self._hints = Hints()
        self._end = NodeEnd()
        self._written_by_s: float | None = None
        self._interrupts = Interrupts()
        self._deaths = DeathWatch(self._loop, self._dies)
        self._dying = Dying(rules.replica_size)
        self._watch = WorkerWatch(rules.hang_s, say=say, tell=hub.tell)
        self._failures = ShownFailures(say)
        self._hostname = socket.gethostname()
        self._terminal = StatusTerminal(sys.stderr.fileno()) if rules.status else None
        self._train_job = TrainJobStatus(rules.train_job, say=say) if rules.train_job is not None else None
        self._starter = starter
        starter.started = self._started

    def run(self, early: Callable[[], Sequence[int]] = tuple) -> int:
        """Serve until the node is done, and return the exit status; early: returns the signals that came before."""
        with self._signals():
            try:
                self._signalled(early())
                self._hub.open(
                    self._loop,
                    self._ordered,
                    gone=self._lost_hub,
                    moved_on=self._moved_on,
                    waits=self._waits,
                    not_admitted=self._was_not_admitted,
                    slots=self._slots,
                    catch_up=self._catch_up,
                )
                self._notices.open(self._loop, self._noticed, self._say)
                for local_rank in range(0, self._rules.workers, self._rules.replica_size):
                    self._start(local_rank)
                next_tick_s = time.monotonic() + _TICK_S
                self._hub.settle()
                while not self._is_done(time.monotonic()):
                    event_loop.run_once(self._loop, max(0.0, next_tick_s - time.monotonic()))
                    self._hub.settle()
                    self._loop.end_turn()  # what was decided does not wait for the tick
                    if (now_s := time.monotonic()) >= next_tick_s:
                        self._tick(now_s)
                        next_tick_s = now_s + _TICK_S
                    self._take_leave(now_s)
                departed = self._departure.why if self._departure.begun else None
                return self._end.status(departed, self._rules.leave_status, say=self._say_the_last)
            finally:
                self._clear_away()

    def _is_done(self, now_s: float) -> bool:
        """Return whether the agent may end: no worker, no save that is still written, no hook that is waited for."""
        if self._end.killed:
            return True
        waited_long = self._written_by_s is not None and now_s > self._written_by_s
        is_written = self._is_over and (waited_long or not children.finishing(self._dying.pids))
        return is_written and not self._hook.is_waited_for(now_s, self._departure.by_s)

    @property
    def _is_over(self) -> bool:
        """Return whether no worker is here and none comes, and nobody needs the hub that may be here."""
        return not self._workers and (self._end.has_come or (self._departure.begun and not self._hub.is_needed))

    def _take_leave(self, now_s: float) -> None:
        """Say bye to the hub once a leaving node's last worker has ended; say which save is still waited for."""
        if self._end.killed or self._workers:
            return
        if self._departure.begun and not self._end.has_come:
            self._hub.say_bye_or_hand_over(now_s)
        if self._is_over and self._written_by_s is None and children.finishing(self._dying.pids):
            self._written_by_s = now_s + self._rules.leave_s
            self._say(f"waiting for a save to be committed, {self._rules.leave_s:.0f} s at most")

    def _catch_up(self) -> None:
        """Read everything that the workers have said."""
        for worker in list(self._workers.values()):
            worker.channel.catch_up()

    def _slots(self) -> tuple[int, list[int]]:
        """Return how many workers this node has, 0 if it leaves, and the local ranks of those being started."""
        starting = [worker.local_rank for worker in self._workers.values() if not worker.pid]
        starting += [*self._dying.awaited, *self._unplaced]
        return 0 if self._departure.begun or self._end.run is not None else self._rules.workers, starting

    def _moved_on(self, why: str) -> None:
        """End the workers, as the run has gone on without them; this node comes back with others, as the hub orders."""
        self._say(
            f"{why}: its {len(self._workers)} workers end\n"
            "  state  what they held is not lost: others hold it, or what came of it\n"
            "  next   nothing; this node joins the run again as soon as it reaches the others"
        )
        self._end_useless(MovedOn(why=why))

    def _waits(self, why: str) -> None:
        """End the workers, which have hardly begun, as the run is full; others are ordered once it has a place."""
        self._say(why)
        self._end_useless()

    def _was_not_admitted(self, why: str) -> None:
        """End, as this node has no part in the run, and may come again."""
        self._end.not_admitted = True
        self._say(why)

    def _end_useless(self, last: MovedOn | None = None) -> None:
        """End the workers, which hold nothing that counts; `last` goes to those in the run, to be put on record."""
        self._dying.take_awaited()
        self._unplaced = []
        for token in self._starter.cancel():
            worker = self._workers.pop(token)
            worker.close()
        for worker in self._workers.values():
            worker.expected = worker.useless = True
            if last is not None and worker.ready:
                worker.tell(last)
                worker.kill_in(_LAST_WORD_S)
            else:
                worker.kill()

    def _say_the_last(self, text: str) -> None:
        self._say(self._failures.abridged(text))

    # starting

    def _start(self, local_rank: int) -> None:
        """Start the replica of this slot, unless it waits for dying workers; tell the hub if none starts any more."""
        slots = self._rules.replica_of(local_rank)
        if self._departure.begun or self._end.run is not None or self._end.hub_gone:
            for slot in slots:
                self._hub.tell(as_message(Unstarted(local_rank=slot)))
            return
        if self._dying.is_to_wait(slots):
            return
        if self._group_store is not None and self._world is None:
            self._unplaced.append(local_rank)
            return
        size, restart = len(slots), self._starts[slots[0]]
        self._starts[slots[0]] += 1
        world = ReplicaWorld(self._hostname, size, restart) if size > 1 else None
        for slot in slots:
            streams = self._logs.open(slot, restart)
            worker = NodeWorker(self._loop, slot, streams, world, heard=self._heard, channel_ended=self._channel_ended)
            self._workers[worker.token] = worker
            taken = bool(self._terminal or self._train_job)
            self._starter.start(worker.request(self._rules, restart, status=taken, world=self._world))

    def _placed(self, world: World) -> None:
        """Start the workers that waited for it in this world."""
        is_first = self._world is not None and self._world.group_rank == 0
        if self._group_store is not None and world.group_rank == 0 and not is_first:
            self._group_store.open(self._loop, lambda: self._hub.tell(as_message(GroupForms())))
        self._world = world
        waiting, self._unplaced = self._unplaced, []
        for local_rank in waiting:
            self._start(local_rank)

    def _stop_all(self) -> None:
        """End all workers, as they start again in another world."""
        self._world = None
        self._cancel_starts()
        for worker in self._workers.values():
            worker.terminate(min(_STOPS_S, self._rules.leave_s))

    def _started(self, token: str, pid: int) -> None:
        """Take note of a worker's process, and tell the hub."""
        worker = self._workers[token]
        worker.started(pid, self._hostname)
        self._ids[worker.id] = worker
        self._watch.started(worker)
        if self._timing is not None:
            self._timing.count(STARTED)
        self._hub.tell(as_message(Started(worker=worker.id, local_rank=worker.local_rank)))

    # hearing

    def _heard(self, worker: NodeWorker, message: Message) -> None:
        """Act on a worker's message, and pass on to the hub what is for it."""
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
                for takes in (self._terminal, self._train_job):
                    if takes is not None:
                        takes.show(said.status)
                return
            case Figures():
                if self._metrics is not None:
                    self._metrics.heard(worker.id, said.figures)
                return
            case Ready():
                if not worker.ready:
                    self._deaths.watch(worker.token, worker.mutex)
                worker.ready = True
                self._end.finished &= len(said.runs) < 2
                if self._timing is not None:
                    self._timing.count(IN_RUN)
                if self._departure.begun:
                    worker.is_in_run()  # meanwhile, and leaves in order
                    worker.tell(self._departure.message())
                self._hints.is_ready(worker, self._workers.values())
            case Finished():
                worker.finished = self._end.finished = True
            case Leaving():
                worker.leaves = True
            case Failed():
                if worker.with_replica or self._lost_a_mate(worker):
                    worker.with_replica = True  # its error says no more than that
                    return
                self._end_mates(worker)
                self._failures.show(worker.called, said, worker.streams)
        self._hub.tell(signed)

    def _channel_ended(self, worker: NodeWorker, why: str | None) -> None:
        """Kill a worker whose channel carries no messages."""
        if why is not None:
            self._say(f"{worker.called} is killed: its channel carries no messages: {why}")
            worker.kill()

    def _ordered(self, worker_id: str | None, message: Message) -> None:
        """Pass a hub's order on to its worker, or carry it out if it is for this agent (`worker_id` is None)."""
        if worker_id is not None:
            if worker_id in self._ids:
                self._ids[worker_id].channel.say(message)
            return
        match parse(TO_AGENT, message):  # by either hub, before it came here
            case Start(local_rank=local_rank) if local_rank < self._rules.workers:
                self._start(local_rank)
            case World() as world:
                self._placed(world)
            case GroupForms():
                self._in_group = True
            case StopAll():
                self._stop_all()
            case Status(text=text):
                self._say(text)
            case KillHung() as verdict:
                self._watch.hangs(verdict)
            case RunIsOver() as over:
                self._end.run = over
                self._end_workers(lambda worker: None)

    def _lost_hub(self, why: str) -> None:
        """Leave, as the hub is lost and there is no other."""
        if self._end.run is not None:
            return  # its process has ended before this one, as the run has
        self._end.hub_gone = True
        self._say(
            f"the run's hub is lost, and there is no other: {why}\n"
            f"  state  the {len(self._workers)} workers of this node finish their step, save what they may, and leave\n"
            "  next   see what became of the other nodes; the same command goes on from what is saved"
        )
        self.leave("the loss of the hub")

    # ending

    def leave(self, why: str, by_s: float | None = None) -> None:
        """Have every worker of this node go at its next boundary; one whose script is not at its Run yet is ended.

        by_s  this node is gone then, by time.monotonic()

        A worker that waits for a view goes once it has waited for 5 s (live.py).
        """
        sooner = self._departure.is_sooner(by_s)
        if not self._departure.begun:
            self._departure.begins(why)
            if self._workers:
                self._say(self._departure.sentence(len(self._workers), by_s))
            self._end_workers(lambda worker: worker.tell(self._departure.message()))
        elif sooner:
            for worker in [worker for worker in self._workers.values() if worker.ready]:
                worker.tell(self._departure.message())

    def _noticed(self, notice: Notice) -> None:
        """Act on a notice from a source of this node: leave, hint at it to the workers, or say that it is withdrawn."""
        self._count_notice(notice)
        if notice.withdrawn:
            self._hints.withdrawn(notice)
            goes = "; this node leaves all the same" if notice.kind is Kind.LEAVE else ""
            self._say(f"not said any more: {notice.why}{goes}")
        elif notice.kind is Kind.LEAVE:
            self.leave(notice.why, notice.by_s)
        elif not notice.sooner:
            self._say(f"{notice.sentence(time.monotonic())}: the run saves at the next step, and goes on")
            self._hints.came(notice, self._workers.values())

    def _count_notice(self, notice: Notice) -> None:
        if self._metrics is not None and not (notice.withdrawn or notice.sooner):
            self._metrics.noticed(notice.kind.value, notice.source)

    def _end_workers(self, tell: Callable[[NodeWorker], None]) -> None:
        """End the workers: `tell` those that are in the run, terminate the others, and cancel what was to start."""
        self._departure.workers_end()
        self._cancel_starts()
        for worker in self._workers.values():
            if worker.ready:
                worker.expected = True
                tell(worker)
            else:
                worker.terminate(self._rules.leave_s if self._in_group else TERM_S)

    def _cancel_starts(self) -> None:
        """Start no worker that is not there yet."""
        waiting, self._unplaced = [*self._dying.take_awaited(), *self._unplaced], []
        for token in self._starter.cancel():
            worker = self._workers.pop(token)
            worker.close()
            waiting.append(worker.local_rank)
        for local_rank in waiting:
            self._hub.tell(as_message(Unstarted(local_rank=local_rank)))

    # watching

    def _tick(self, now_s: float) -> None:
        """Look at everything that no event tells of: ended processes, silent ones, deadlines, output."""
        self._reap()
        self._hub.tick(now_s)
        self._starter.tick(now_s)
        for worker in list(self._workers.values()):
            for tail in worker.streams.tails:
                tail.show()
            worker.kill_if_due(now_s)
            worker.look_at_memory(now_s)
        if self._workers and self._departure.are_late(now_s, again_s=TERM_S):
            self._late()
        self._watch.tick(now_s)
        if self._metrics is not None:
            self._metrics.tick(now_s, workers=len(self._workers), leaves=self._departure.begun)
        if self._timing is not None and not self._timing.reported:
            self._look_at_start(self._timing)

    def _look_at_start(self, timing: StartTimes) -> None:
        if self._starter.imported_s is not None:
            timing.mark(IMPORTED, self._starter.imported_s)
        timing.look((token, worker.record()) for token, worker in self._workers.items())

    def _late(self) -> None:
        late = list(self._workers.values())
        names = ", ".join(worker.called for worker in late)
        self._say(f"not ended {self._departure.within}, killed: {names}")
        self._end.ended_otherwise(taken=False)
        for worker in late:
            worker.late = True
            worker.kill()

    # ended workers

    def _reap(self) -> None:
        """Reap what has ended, and start the workers whose slots waited for that."""
        found = [(worker, children.ended(worker.pid)) for worker in self._workers.values() if worker.pid]
        ended_now = [(worker, ended) for worker, ended in found if ended is not None]
        if self._rules.replica_size > 1:  # that one was killed is why another of its replica has failed
            ended_now.sort(key=lambda one: one[1].signal is None)
        for worker, ended in ended_now:
            if worker.token in self._workers:
                if ended.code != 0:
                    worker.kill()  # its children: its group keeps its number until it is reaped
                self._exited(worker, ended, peak_bytes=children.reap(worker.pid))
        for local_rank in self._dying.reap():
            self._start(local_rank)
        self._starter.reap()
        self._hook.reap()
        if not self._starter.forking:  # else the unknown child may be a worker to be
            known = {worker.pid for worker in self._workers.values()} | self._starter.pids() | self._hook.pids()
            children.reap_orphans(known.union(self._dying.pids))

    def _dies(self, token: str) -> None:
        """Tell of a worker's death before its process is gone."""
        worker = self._workers.get(token)
        if worker is None or (ended := children.ending(worker.pid)) is None or ended.code == 0:
            return
        if not worker.memory(None)[1]:  # status 0 above and want of memory are told when all is known of them
            self._dying.begins(worker.local_rank, worker.pid)
            self._exited(worker, ended, peak_bytes=worker.peak_bytes)

    def _exited(self, worker: NodeWorker, ended: children.Ended, *, peak_bytes: int | None) -> None:
        """Tell people and the hub how a worker ended, and let go of it."""
        worker.channel.drain()
        record = worker.record()
        step = record.at_step
        stuck = self._watch.ended(worker, record)
        del self._workers[worker.token], self._ids[worker.id]
        worker.close()
        if self._metrics is not None:
            self._metrics.ended(worker.id, lost=not worker.expected and (ended.code != 0 or stuck is not None))
        killed = ended.signal == KILLED and not (stuck or worker.late or worker.with_replica)
        kernel, out_of_memory = worker.memory(peak_bytes) if killed else (None, False)
        if not (worker.expected or worker.with_replica) and (ended.code != 0 or stuck):
            at = f", at step {step}" if step is not None else ""
            at += ", and its replica with it" if worker.world is not None else ""
            self._say(f"{worker.called} ended: {ended.text}{at}" + (f"\n  kernel  {kernel}" if out_of_memory else ""))
        if (
            worker.expected
            and ended.code not in (0, CUT_SHORT)
            and worker.ready
            and self._end.run is None
            and not (worker.useless or worker.with_replica)
        ):
            self._end.ended_otherwise(taken=killed)
            self._say(f"{worker.called} was told to leave and ended otherwise: {ended.text}")
        exited = Exited(
            worker=worker.id,
            code=ended.code,
            signal=ended.signal,
            hung=stuck is not None and stuck.hung and not worker.with_replica,
            expected=worker.expected,
            step=step,
            t=time.time(),
            stuck_s=None if stuck is None else stuck.quiet_s,
            stopped=stuck is not None and not stuck.hung,
            kernel=kernel,
            out_of_memory=out_of_memory,
            with_replica=worker.with_replica,
        )
        if self._group_store is not None:
            self._group_store.look()  # what follows of an end depends on whether a group has formed before it
        self._hub.tell(as_message(exited))
        if worker.with_replica:
            return
        if ended.code != 0 or (worker.ready and not worker.finished):
            self._end_mates(worker, but_leavers=ended.code == 0 and worker.leaves)

    # replicas of several

    def _mates(self, worker: NodeWorker) -> list[NodeWorker]:
        """Return the other workers of this one's replica that are here."""
        here = self._workers.values() if worker.world is not None else ()
        return [one for one in here if one.world is worker.world and one is not worker]

    def _lost_a_mate(self, worker: NodeWorker) -> bool:
        """Return whether one of its replica has ended out of order, and was not told of yet: its exit was before."""
        ends = [children.ending(mate.pid) for mate in self._mates(worker) if mate.pid]
        return any(end is not None and end.code != 0 for end in ends)

    def _end_mates(self, worker: NodeWorker, *, but_leavers: bool = False) -> None:
        """Kill the others of its replica, which are of no use without it, and tell of their ends at once.

        but_leavers  it has left in order, and some may be about to
        """
        mates = [one for one in self._mates(worker) if not (but_leavers and (one.leaves or one.finished))]
        for token in self._starter.cancel([mate.token for mate in mates]):
            mate = self._workers.pop(token)
            mate.close()
            self._hub.tell(as_message(Unstarted(local_rank=mate.local_rank)))
        for mate in [mate for mate in mates if mate.pid]:
            mate.with_replica = True
            mate.kill()
            self._dying.begins(mate.local_rank, mate.pid)
            self._exited(mate, children.Ended(None, KILLED), peak_bytes=mate.peak_bytes)

    def _clear_away(self) -> None:
        """End all that is left of this node's processes, and close its connections."""
        self._loop.end_turn()
        if self._terminal is not None:
            self._terminal.close()
        if self._train_job is not None:
            self._train_job.close()
        self._starter.close()
        self._end_stores()
        if self._group_store is not None:
            self._group_store.close()
        self._notices.close(self._loop, gone=self._departure.begun and not self._end.killed)
        for worker in self._workers.values():
            worker.kill()
        children.end_all(within_s=0.0 if self._end.killed else TERM_S)
        for worker in list(self._workers.values()):
            worker.close()
        self._deaths.close()
        self._hub.close()
        self._loop.close()

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
        """Leave on a signal to leave; end at once on a second Ctrl-C."""
        for number in numbers:
            now_s = time.monotonic()
            if number == signal.SIGINT and self._interrupts.is_second(now_s):
                self._say("interrupted twice; ending at once, what was committed stays")
                self._end.killed = True
            if number in (*self._rules.leave_on, *LEAVE_SIGNALS, signal.SIGINT):
                grace_s = None if number == signal.SIGINT else self._rules.grace_s
                name, by_s = signal.Signals(number).name, None if grace_s is None else now_s + grace_s
                self.leave(name, by_s)
                notice = Notice(source=name, id=name, why=name, by_s=by_s, node=self._hostname)
                self._count_notice(notice)
                self._hook.call(notice)
        self._reap()
