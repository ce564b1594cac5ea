"""Who joins the run, and for whom newcomers wait.

A newcomer is compared with the run first: one that differs is asked whether it accepts that. Those that are ready wait
a while for others that are starting, and members are asked to regroup for them once per view; in which view they then
are is next_view.py's to say.

A script's runs come one after the other, and a worker says which it has been in. Where it is ready for one that others
are past, it is told so; where it is past the present one, it waits until that is over.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import Any

from elastic.membership.hub.nodes import Nodes
from elastic.membership.hub.orders import Outbox
from elastic.membership.hub.run_end import RunEnd, Shortage
from elastic.membership.hub.workers import Worker, Workers, WorkerStatus
from elastic.membership.messages.messages import OtherIdentity, Past, Ready, Regroup
from elastic.membership.succession.going_on import GoingOn


class Joining:
    """Lets workers join one run. gather_s: see Hub."""

    def __init__(
        self,
        nodes: Nodes,
        workers: Workers,
        going_on: GoingOn,
        shortage: Shortage,
        end: RunEnd,
        runs: Runs,
        out: Outbox,
        *,
        gather_s: float,
    ) -> None:
        self._nodes = nodes
        self._workers = workers
        self._going_on = going_on
        self._shortage = shortage
        self._end = end
        self._runs = runs
        self._out = out
        self._gather_s = gather_s
        self._identity: Any = None  # the run's
        self._asked = False  # in the present view
        self._left_over = 0  # newcomers for whom there was no room, as people were told

    def ready(self, now_s: float, said: Ready) -> None:
        """Take in a worker that is ready for a run, unless this was heard before."""
        worker = self._workers[said.worker]
        if worker.knows(said):
            return  # it was said again; or to a question of the hub before this one, which has let it in
        worker.is_ready(now_s, said)
        self._runs.heard(said.runs)
        self._going_on.is_here(worker.node, said.newest)
        if self._end.is_over:  # it was being started when the run ended
            self._out.say(worker, self._end.last_word)
            return
        self._compare(worker)

    def joined_before(self, worker: Worker, said: Ready) -> None:
        """Take in what a worker of the run has said to another hub, when it joined."""
        worker.shares, worker.identity, worker.accepted = said.shares, said.identity, said.accepted
        worker.runs = said.runs
        self._runs.heard(said.runs)
        self._identity = said.identity if self._identity is None else self._identity
        self._going_on.is_here(worker.node, said.newest)

    def newcomers(self, others: Sequence[Worker] = ()) -> list[Worker]:
        """Return those that are ready to join, node by node; a finished run needs none. others: who join, too.

        Of a replica all are ready, or it waits.
        """
        ready = [] if self._end.finished else self._workers.whole(self._ready_for(Place.PRESENT))
        ready += others
        position = {node: index for index, node in enumerate(self._nodes)}
        return sorted(ready, key=lambda worker: (position[worker.node], worker.local_rank))

    def is_next_due(self) -> bool:
        """Return whether somebody is ready for the script's next run, and nobody is in this one, or may be."""
        others = (worker for worker in self._workers if worker.status != WorkerStatus.READY)
        there = self._ready_for(Place.NEXT)
        alone = len(there) == len(self._workers) and not self._nodes.awaits_workers
        return bool(there) and (alone or self._end.finished) and not any(worker.is_in_a_view for worker in others)

    def begins(self) -> None:
        """Begin the script's next run: those that are ready for an earlier one pass it by."""
        for worker in self._ready_for(Place.PAST):
            self._compare(worker)

    def _ready_for(self, place: Place) -> list[Worker]:
        """Return the workers that wait to join the past, the present or the next run."""
        ready = (worker for worker in self._workers if worker.status == WorkerStatus.READY)
        return [worker for worker in ready if self._runs.place(worker.runs) is place]

    def gathered(self, now_s: float, newcomers: Sequence[Worker], patience_s: float) -> bool:
        """Return whether newcomers wait for nobody more: nobody is starting, or they waited long enough."""
        starting = any(worker.status in (WorkerStatus.STARTING, WorkerStatus.DIFFERENT) for worker in self._workers)
        waited_s = now_s - min(worker.since_s for worker in newcomers)
        return not (starting or self._nodes.awaits_workers) or waited_s >= patience_s

    def ask_to_regroup(self, now_s: float, running: Sequence[Worker], newcomers: Sequence[Worker]) -> None:
        """Ask members, once per view, to leave it at a boundary that they agree on."""
        shares = min(worker.shares for worker in running)
        room = shares * self._workers.replica_size > len(self._workers.members())
        self._tell_of_left_over(0 if room else len(newcomers), shares)
        short = self._shortage.is_short({worker.node for worker in running})
        waits = newcomers and room and (short or self.gathered(now_s, newcomers, self._gather_s))
        if not self._asked and (waits or self._going_on.may_be_witnessed(self._workers.generation)):
            self._asked = True
            self._out.say_all(running, Regroup(generation=self._workers.generation))

    def _tell_of_left_over(self, count: int, shares: int) -> None:
        """Tell people that newcomers find no room, once for so many, whoever they are."""
        if count > self._left_over:
            # that may be meant, or machines are paid for and do nothing
            whole = "worker" if self._workers.replica_size == 1 else "replica"
            who = "1 worker waits as a spare" if count == 1 else f"{count} workers wait as spares"
            self._out.tell_people(
                f"{who} until others are lost: a step has virtual_workers={shares} shares, and each {whole} that takes "
                "part needs one; a new run with more of them has room for all"
            )
        self._left_over = max(count, self._left_over)

    def published(self, chosen: Sequence[Worker]) -> None:
        """Note who is in the present view now. The first view of a run says what the run is."""
        self._asked = False
        if self._identity is None:
            self._identity = chosen[0].identity
            for worker in self._ready_for(Place.PRESENT):
                self._compare(worker)

    def _compare(self, worker: Worker) -> None:
        """Ask a worker that differs from the run whether it accepts that; tell one whose run is past."""
        place = self._runs.place(worker.runs)
        if place is Place.PAST:
            worker.status = WorkerStatus.STARTING
            self._out.say(worker, Past())
        if place is not Place.PRESENT:
            return
        if self._identity not in (None, worker.identity) and not worker.accepted:
            worker.status = WorkerStatus.DIFFERENT
            self._out.say(worker, OtherIdentity(identity=self._identity))


class Place(Enum):
    """Where the run stands that a worker is ready for. One that cannot be placed is PRESENT: its identity tells."""

    PRESENT, PAST, NEXT = auto(), auto(), auto()


class Runs:
    """The runs of one script, as its workers tell of them.

    present  of the last view; None: the run that comes has had none
    """

    def __init__(self) -> None:
        self.present: str | None = None
        self._farthest: Sequence[str] = ()  # those of the worker that has been in most of them

    def heard(self, runs: Sequence[str]) -> None:
        """Note which runs a worker has been in, and last the one that it is ready for."""
        if len(runs) > len(self._farthest) and (not self._farthest or self._farthest[-1] in runs):
            self._farthest = tuple(runs)

    def place(self, runs: Sequence[str]) -> Place:
        """Return where the run stands that a worker with these runs is ready for."""
        if self.present is not None and self.present in runs[:-1]:
            return Place.NEXT
        newest = newest_of(runs)
        is_past = newest != self.present and newest in self._farthest[:-1]
        return Place.PAST if is_past else Place.PRESENT


def newest_of(runs: Sequence[str]) -> str:
    """Return the run that a worker with these runs is ready for; "" where it names none."""
    return runs[-1] if runs else ""
