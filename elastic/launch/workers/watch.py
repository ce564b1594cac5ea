"""Watches the workers of a node for hangs: what each shows is told to the hub, and a stuck one is killed.

Which of them is stuck, where all nodes' workers wait for each other, the hub says (membership/hub/hang_watch.py):
such a worker shows the stacks of its threads, and is killed unless it went on meanwhile. One that somebody
has stopped is this node's own affair, and is killed at once.

A worker that hangs is told apart from those that wait for it: they say that they wait, and have a deadline of their
own. Whether one that is quiet for longer than it may is at fault is membership/stalls.py's to say, with what the other
agents see; one whose process is stopped is this agent's own affair.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from elastic.launch.workers.node_worker import NodeWorker
from elastic.membership.messages.messages import KillHung, Sighted, as_message
from elastic.membership.messages.wire import Message
from elastic.membership.progress import LIMITED, Phase, Record
from elastic.membership.stalls import Sighting
from elastic_checkpoint import linux

_ONLY_SLOW = (
    "\n  next   if it was only slow there: `with run.long_section():` around what takes long between steps, or a "
    "longer --hang-limit for all"
)
_LOOK_S = 0.25
_SIGHTED_S = 0.9  # between two reports of a node where somebody is quiet
_HELD_UP_S = 1.0  # a look that comes so late says that this process was stopped, and likely its workers, too
_DUMP_S = 0.5  # for a stuck worker to print its stacks
_DUMP_HELD_UP_S = 5.0  # so much longer at most, while others have the processor
_STOPPED_LOOKS = 2  # one look may catch a debugger at work
_PATIENCE_MAX = 16.0  # a run of weeks must not lose its sight: what takes longer declares itself (run.long_section)
_REDONE = (Phase.COMPUTING, Phase.READING)  # by whoever takes the step over


@dataclass
class Patience:
    """What the looks at one worker have shown so far.

    sign        its last one
    held_up_s   see held_up
    """

    stopped_looks: int = 0
    sign: int = -1
    held_up_s: float = 0.0

    def stopped(self, state: str) -> bool:
        """Return whether somebody has stopped its process; state: as in /proc/<pid>/stat."""
        self.stopped_looks = self.stopped_looks + 1 if state == "T" else 0
        return self.stopped_looks >= _STOPPED_LOOKS

    def held_up(self, sign: int, held_up_s: float) -> float:
        """Return how long others had the processor since its last sign: no hang; held_up_s: since its start."""
        if sign != self.sign:
            self.sign, self.held_up_s = sign, held_up_s
        return held_up_s - self.held_up_s


def sighting(
    now_s: float, worker: str, record: Record, *, not_before_s: float, held_up_s: float = 0.0, patience: float = 1.0
) -> Sighting:
    """Return what a worker's record shows now.

    not_before_s  phases count from here at the earliest: the watcher itself was held up until then
    held_up_s     for so long since its last sign the worker was
    patience      limits count so many times
    """
    quiet_s = max(0.0, now_s - max(record.since_s, not_before_s) - held_up_s)
    limit_s = record.limit_s * patience
    return Sighting(
        worker=worker,
        phase=record.phase,
        step=record.at_step,
        sign=record.sequence,
        quiet_s=quiet_s,
        limit_s=limit_s,
    )


class Doubts:
    """How many times longer than its limit a worker may take, after others were killed for taking long, or nearly.

    Each kill doubles it, since that worker may only have been slow, and whoever takes the step over is no faster; and
    so does each that went on while its stacks were printed, for that one was only slow. Where
    the step is done sooner than the killed one took, it did hang, and the next one gets no more time than it did. That
    proves nothing where another one took about as long, since the step may be slow for all. Phases are counted apart:
    what a worker does between two steps is its script's own code, which nobody does again, so nothing is proven there.
    """

    def __init__(self) -> None:
        self._times = dict.fromkeys(LIMITED, 1.0)
        self._open: tuple[Phase, int | None, float, float] | None = None  # phase, step, when killed, how long it took

    def killed(self, now_s: float, record: Record, took_s: float, others: Iterable[Record] = ()) -> None:
        """Take note of a killed worker: its phase gets more time.

        took_s  since when the worker with this record had given no sign
        others  of the workers that live on: they wait for one that hangs
        """
        self._double(record.phase)
        if record.phase in _REDONE:
            alone = not any(other.phase in LIMITED and now_s - other.since_s > took_s / 2 for other in others)
            self._open = (record.phase, record.at_step, now_s, took_s) if alone else None

    def acquitted(self, phase: Phase) -> None:
        """Double this phase's time, as a worker that was to be killed in it has gone on."""
        self._double(phase)

    def patience(self, phase: Phase) -> float:
        """Return how many times the limit of this phase counts."""
        return self._times.get(phase, 1.0)

    def look(self, now_s: float, records: Iterable[Record]) -> None:
        """See whether a killed worker did hang, by the records of the workers that there are now."""
        if self._open is None:
            return
        phase, step, killed_s, took_s = self._open
        if now_s - killed_s > took_s:
            self._open = None
        elif any(_past(record, step) for record in records):
            self._open, self._times[phase] = None, 1.0

    def _double(self, phase: Phase) -> None:
        self._times[phase] = min(2 * self._times.get(phase, 1.0), _PATIENCE_MAX)


def _past(record: Record, step: int | None) -> bool:
    return record.at_step is not None and record.at_step > (-1 if step is None else step)


@dataclass(frozen=True)
class Stuck:
    """Why a worker was killed; quiet_s: since when it had given no sign; hung: else somebody had stopped it."""

    quiet_s: float
    hung: bool


@dataclass(frozen=True)
class _Dump:
    """A stuck worker that prints its stacks; then it is killed, unless it went on.

    record     as it was when that began
    held_up_s  by others who had the processor, until then
    """

    stuck: Stuck
    record: Record
    by_s: float
    held_up_s: float


@dataclass
class _Watched:
    worker: NodeWorker
    patience: Patience = field(default_factory=Patience)
    stuck: Stuck | None = None
    dump: _Dump | None = None


class WorkerWatch:
    """The watch over a node's workers; hang_s: how long a step may take without a sign; tell: the hub."""

    def __init__(self, hang_s: float, *, say: Callable[[str], None], tell: Callable[[Message], None]) -> None:
        self._hang_s = hang_s
        self._say = say
        self._tell = tell
        self._watched: dict[str, _Watched] = {}  # by worker
        self._doubts = Doubts()
        self._looked_s = self._held_up_s = time.monotonic()
        self._sighted_s = 0.0

    def started(self, worker: NodeWorker) -> None:
        self._watched[worker.id] = _Watched(worker)

    def ended(self, worker: NodeWorker, record: Record) -> Stuck | None:
        """Return why the worker was killed, if it was because it was stuck; record: its last one."""
        watched = self._watched.pop(worker.id)
        if watched.dump is not None:  # it ended by itself
            self._acquitted(watched, watched.dump, record)
        return watched.stuck

    def tick(self, now_s: float) -> None:
        """Kill those that are still stuck after their stacks were printed, and look at all every _LOOK_S."""
        for watched in self._watched.values():
            if watched.dump is not None and now_s >= watched.dump.by_s:
                self._kill_if_still_hung(now_s, watched, watched.dump)
        if now_s - self._looked_s >= _LOOK_S:
            self._look(now_s)

    def hangs(self, verdict: KillHung) -> None:
        """Have a worker that hangs, as the hub says, print its stacks, before it is killed."""
        watched, now_s = self._watched.get(verdict.worker), time.monotonic()
        if watched is None or watched.stuck is not None:
            return
        worker, record = watched.worker, watched.worker.record()
        if record.sequence != verdict.sign:
            return
        watched.stuck = self._stuck(now_s, worker, record, verdict.why, hung=True)
        watched.dump = _Dump(watched.stuck, record, now_s + _DUMP_S, linux.held_up_s(worker.pid))
        os.kill(worker.pid, signal.SIGUSR2)  # faulthandler prints all threads' stacks, see processes/worker.py

    def _look(self, now_s: float) -> None:
        """Look at all workers, and tell the hub where one is quiet."""
        if now_s - self._looked_s > _HELD_UP_S:
            self._held_up_s = now_s
        self._looked_s = now_s
        living = self._living()
        self._doubts.look(now_s, (one.worker.record() for one in living))
        seen = [one for watched in living if (one := self._sighting(now_s, watched)) is not None]
        quiet = any(one.quiet_s > min(self._hang_s, one.limit_s) / 4 for one in seen)
        if any(one.stuck for one in seen) or (quiet and now_s - self._sighted_s >= _SIGHTED_S):
            self._sighted_s = now_s
            self._tell(as_message(Sighted(workers=seen)))

    def _living(self) -> list[_Watched]:
        return [watched for watched in self._watched.values() if watched.stuck is None]

    def _sighting(self, now_s: float, watched: _Watched) -> Sighting | None:
        """Return what this worker shows; kill it, and return None, if its process is stopped."""
        worker, record = watched.worker, watched.worker.record()
        stat = linux.process_stat(worker.pid)
        if watched.patience.stopped(stat.state if stat is not None else ""):
            watched.stuck = self._stuck(now_s, worker, record, "its process is stopped", hung=False)
            worker.kill()  # somebody stopped it: no doing of its own
            return None
        return sighting(
            now_s,
            worker.id,
            record,
            not_before_s=self._held_up_s,
            held_up_s=watched.patience.held_up(record.sequence, linux.held_up_s(worker.pid)),
            patience=self._doubts.patience(record.phase),
        )

    def _stuck(self, now_s: float, worker: NodeWorker, record: Record, why: str, *, hung: bool) -> Stuck:
        hint = _ONLY_SLOW if hung else ""
        self._say(f"{worker.called} is stuck at step {record.at_step}: {why}; it is killed{hint}")
        return Stuck(now_s - record.since_s if record.since_s else 0.0, hung)

    def _kill_if_still_hung(self, now_s: float, watched: _Watched, dump: _Dump) -> None:
        """Kill a worker that has given no sign since its stacks were asked for."""
        worker = watched.worker
        held_up_s = linux.held_up_s(worker.pid) - dump.held_up_s
        if now_s < dump.by_s + min(held_up_s, _DUMP_HELD_UP_S):
            return  # others had the processor meanwhile
        watched.dump, record = None, worker.record()
        if self._acquitted(watched, dump, record):
            self._say(f"{worker.called} went on while its stacks were printed, and lives")
            return
        others = [other.worker.record() for other in self._living()]
        self._doubts.killed(now_s, record, dump.stuck.quiet_s, others)
        worker.kill()

    def _acquitted(self, watched: _Watched, dump: _Dump, record: Record) -> bool:
        """Return whether it went on while its stacks were printed: it was judged by its sign before."""
        went_on = record.sequence != dump.record.sequence
        if went_on:
            self._doubts.acquitted(dump.record.phase)
            watched.stuck = None
        return went_on
