"""Replaces a worker that has ended, at once or later, or ends the run.

Why it ended, and whether that is a bug that would come again, is endings.py's to say. Here is what becomes of the
answer: slots that get another worker, and a run that goes on without one that cannot join.
"""

from __future__ import annotations

from elastic.events.words import WITH_ITS_REPLICA
from elastic.membership.exit_statuses import CUT_SHORT
from elastic.membership.hub.nodes import Nodes
from elastic.membership.hub.orders import Outbox
from elastic.membership.hub.run_end import RunEnd
from elastic.membership.hub.workers import Worker, Workers, WorkerStatus
from elastic.membership.messages.messages import Exited, Start, Status
from elastic.membership.rules.endings import KILLED, LEAVES, Bug, Ended, Endings, ended, what_failed
from elastic.membership.rules.kills import Replace, Slot


class Replacements:
    """Starts workers of one run in place of those that ended."""

    def __init__(self, endings: Endings, nodes: Nodes, workers: Workers, end: RunEnd, out: Outbox) -> None:
        self._endings = endings
        self._nodes = nodes
        self._workers = workers
        self._end = end
        self._out = out
        self._later: dict[Slot, float] = {}  # the first slots of replicas that are started then
        self.ended_after: list[tuple[Worker, Exited]] = []  # the run was finished, and not at their script's end
        self._at_its_end = False  # a script has come to it

    @property
    def are_due(self) -> bool:
        """Return whether some slot gets another worker, now or later."""
        return bool(self._later)

    def ended(self, now_s: float, worker: Worker, exited: Exited) -> None:
        """Decide what follows from a worker's end; worker: is not known any more."""
        if exited.code == CUT_SHORT:  # it has put on record what is lost with it
            why = "told to leave, it came to no boundary before its machine was to go"
            self._workers.note_gone(worker, why, exited)
            return
        if exited.with_replica:  # what follows, follows from the end of the first
            self._workers.note_gone(worker, WITH_ITS_REPLICA, exited)
            return
        what = what_failed(exited, worker.failed)
        if exited.expected or worker.status == WorkerStatus.LEAVING or exited.signal in LEAVES:
            self._end.ended_as_told(worker, exited, what)
            if exited.code != 0 and worker.id in self._workers.view:
                self._workers.note_gone(worker, what, exited)
            return
        self._workers.note_gone(worker, what, exited)
        if exited.code == 0 and not worker.failed:
            self._at_its_end = True
            return
        if self._end.finished:
            self.ended_after.append((worker, exited))
        if worker.status == WorkerStatus.FINISHED:
            self._end.ended_after(worker, exited, what)
        elif worker.is_in_a_view or not self._end.finished:
            self.is_lost(now_s, worker, exited)

    @property
    def are_all_killed(self) -> bool:
        """Return whether all were killed that were in a run that is finished."""
        killed = (exited.signal == KILLED for _, exited in self.ended_after)
        return bool(self.ended_after) and self._end.loss is None and not self._at_its_end and all(killed)

    def is_lost(self, now_s: float, worker: Worker, exited: Exited) -> None:
        """Replace a worker that was not to end, unless that is a bug; worker: is not known any more."""
        one = ended(exited, worker.failed, slot=self._slot(worker), lived_s=now_s - worker.started_s)
        follows = self._endings.follows(now_s, one)
        if isinstance(follows, Replace):
            self._replace(now_s, worker, follows.after_s)
        else:
            self._bug(now_s, worker, one, follows)

    def start(self, slot: Slot) -> None:
        """Order another replica from this slot on, if the run needs one."""
        node, first = slot
        if node in self._nodes and not self._end.finished and self._end.why is None:
            for local_rank in range(first, first + self._workers.replica_size):
                self._nodes.awaits((node, local_rank))
            self._out.tell(node, Start(local_rank=first))

    def start_due(self, now_s: float) -> None:
        """Order the replicas whose time has come."""
        for slot in [slot for slot, at_s in self._later.items() if now_s >= at_s]:
            del self._later[slot]
            self.start(slot)

    def forget(self, node: str) -> None:
        """Start nothing later on a node that is gone."""
        self._later = {slot: at_s for slot, at_s in self._later.items() if slot[0] != node}

    def _replace(self, now_s: float, worker: Worker, after_s: float) -> None:
        """Start another worker in this one's place, with all of its replica, at once or later."""
        if after_s == 0:
            self.start(self._slot(worker))
            return
        self._later[self._slot(worker)] = now_s + after_s
        text = f"another worker takes the place of {worker.id} in {after_s:.0f} s: it was killed as the last ones there"
        self._out.tell(worker.node, Status(text=text))

    def _slot(self, worker: Worker) -> Slot:
        """Return the first slot of the worker's replica: what happens to one of its members happens to all."""
        return worker.node, worker.local_rank - worker.local_rank % self._workers.replica_size

    def _bug(self, now_s: float, worker: Worker, ended: Ended, bug: Bug) -> None:
        """End the run, or go on without this worker, as a restart does not help."""
        trace = worker.failed.trace if worker.failed else ""
        farthest = max((member.step for member in self._workers.members()), default=0)
        cannot_join = bug.of_place or not worker.was_member or (ended.step or 0) < farthest
        if cannot_join and self._workers.generation > 0 and (len(self._workers) or self._nodes.awaits_workers):
            why = f"{worker.id} cannot join ({bug}); the run goes on without it"
            if bug.of_place:
                why = f"{worker.id} was {bug.why}, and gets no other worker; the run goes on without it"
            self._out.tell(worker.node, Status(text=why))
        else:
            self._end.begins(now_s, f"{bug.in_a_line if trace else bug}\n{trace}".rstrip(), repeated=True)
