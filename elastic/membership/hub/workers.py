"""What the hub knows of workers: how each stands, and which of them are in the present view."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from elastic.membership.messages.messages import Exited, Failed, Leaving, NewView, Ready, ViewIsOver
from elastic.membership.messages.wire import Message, WireError
from elastic.membership.rules.leaving import Holding
from elastic.membership.rules.next_view import BOUNDARY, Candidate, replicas, whole
from elastic.membership.succession.node_report import number_of

_GONE_MAX = 64  # that a view tells of


class WorkerStatus(Enum):
    """How a worker stands.

    STARTING       its process runs, and has said nothing yet
    DIFFERENT      it was told that the run has another identity than its own
    READY          it waits to join
    MEMBER         it is in the present view, and trains
    BETWEEN_VIEWS  it has left the present view, and waits for the next one
    LEAVING        it waits to be released
    FINISHED       it has seen the run's end
    """

    STARTING, DIFFERENT, READY, MEMBER, BETWEEN_VIEWS, LEAVING, FINISHED = (auto() for _ in range(7))


@dataclass
class Worker:
    id: str
    node: str
    local_rank: int
    status: WorkerStatus = WorkerStatus.STARTING
    since_s: float = 0.0
    started_s: float = 0.0
    shares: int = 0
    identity: Any = None
    runs: Sequence[str] = ()
    accepted: bool = False
    step: int = -1
    at: str | None = None
    whole: bool = True
    torn: bool = False
    joins: bool = True
    was_member: bool = False
    failed: Failed | None = None
    broken_sent: int | None = None  # the generation of the newest view that it was told is broken
    asked_to_save: tuple[int, bool] | None = None  # after which view, and whether for a wait, it was asked to save
    released: bool = False
    safe: bool = False  # released, and what it holds is not lost with it
    within: int = 0  # the generation of the view that it was told of last

    @property
    def in_order(self) -> bool:
        """Return whether nothing is lost with it, if it ends now."""
        return self.safe or self.status == WorkerStatus.FINISHED

    @property
    def is_in_a_view(self) -> bool:
        """Return whether it is in a view, between two, or waits to be released from one."""
        leaves = self.status == WorkerStatus.LEAVING and not self.released
        return leaves or self.status in (WorkerStatus.MEMBER, WorkerStatus.BETWEEN_VIEWS)

    @property
    def has_a_step(self) -> bool:
        """Return whether it has received the state: it may not have when its view broke."""
        return self.step >= 0

    def knows(self, said: Ready) -> bool:
        """Return whether this was heard before; of a worker that is in a view, whatever it accepts."""
        if list(said.runs) != list(self.runs):
            return False
        waits = self.status is WorkerStatus.READY and said.accepted == self.accepted
        return waits or self.status in (WorkerStatus.MEMBER, WorkerStatus.BETWEEN_VIEWS, WorkerStatus.LEAVING)

    def is_ready(self, now_s: float, said: Ready) -> None:
        """Note that it is ready for a run; it may have been in another one before."""
        if list(said.runs) != list(self.runs):
            self.step, self.at, self.whole, self.torn, self.joins = -1, None, True, False, True
            self.was_member = self.released = self.safe = False
        self.shares, self.identity, self.runs, self.accepted = said.shares, said.identity, said.runs, said.accepted
        self.status, self.since_s = WorkerStatus.READY, now_s

    def stands(self, said: ViewIsOver | Leaving) -> None:
        """Note how many steps it has applied, and whether its state is whole or torn."""
        self.step, self.whole, self.torn = said.step, said.whole, said.torn

    def candidate(self) -> Candidate:
        at = self.at if self.status == WorkerStatus.BETWEEN_VIEWS else None
        return Candidate(worker=self.id, node=self.node, shares=self.shares, at=at, local_rank=self.local_rank)


class Workers:
    """The workers that live, as far as is known, and the present view.

    replica_size  how many of a node hold one copy of the state together: by their local ranks, as an agent starts them
                  together, and none of them while it has not told the end of one that had its slot
    generation  of the present view
    view        its workers in rank order, those that are gone among them
    view_nodes  of each of them
    nodes       of all of them
    claim       the number of the present view's
    broken      the present view has to be left, though none of its workers may be gone
    """

    def __init__(self, replica_size: int = 1) -> None:
        self.replica_size = replica_size
        self.generation = 0
        self.view: tuple[str, ...] = ()
        self.view_nodes: dict[str, str] = {}
        self.nodes: frozenset[str] = frozenset()
        self.claim: int | None = None
        self.broken = False
        self._known: dict[str, Worker] = {}
        self._replicas: dict[tuple[str, int], list[Worker]] = {}
        self._gone: list[Message] = []  # since the last view, and why
        self._went: set[str] = set()  # since then, in order
        self._lost: set[str] = set()  # and all who did not

    def __getitem__(self, id: str) -> Worker:
        return self._known[id]

    def __contains__(self, id: str) -> bool:
        return id in self._known

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._known.values())

    def __len__(self) -> int:
        return len(self._known)

    def add(self, worker: Worker) -> None:
        self._known[worker.id] = worker
        self._replicas.setdefault(self._replica_of(worker), []).append(worker)

    def remove(self, id: str) -> Worker:
        worker = self._known.pop(id)
        self.replica(worker).remove(worker)
        if worker.in_order:
            self._went.add(id)
        return worker

    def of(self, node: str) -> list[Worker]:
        """Return the workers of a node."""
        return [worker for worker in self if worker.node == node]

    def is_of(self, node: str, id: str) -> bool:
        """Return whether this worker is known, as that node's. Raises WireError if it is another's."""
        worker = self._known.get(id)
        if worker is not None and worker.node != node:
            raise WireError(f"worker {id} is of {worker.node}, and {node} does not speak for it")
        return worker is not None

    # the present view

    def members(self) -> list[Worker]:
        """Return those of the present view that live, in rank order."""
        return [self._known[id] for id in self.view if id in self._known]

    def coordinator(self) -> Worker | None:
        """Return the coordinator of the present view, if it lives."""
        return self._known.get(self.view[0]) if self.view else None

    def running(self) -> list[Worker]:
        """Return the members that train."""
        return [worker for worker in self.members() if worker.status == WorkerStatus.MEMBER]

    def survivors(self) -> list[Worker]:
        """Return the members that have left the present view, and wait for the next one; of whole replicas alone."""
        return self.whole([worker for worker in self.members() if worker.status == WorkerStatus.BETWEEN_VIEWS])

    def whole(self, workers: Sequence[Worker]) -> list[Worker]:
        """Return those of these workers whose whole replica is among them."""
        return whole(workers, self.replica_size)

    def replica(self, worker: Worker) -> list[Worker]:
        """Return the living workers of this one's replica."""
        return self._replicas[self._replica_of(worker)]

    def _replica_of(self, worker: Worker) -> tuple[str, int]:
        return worker.node, worker.local_rank // self.replica_size

    def holdings(self, workers: Iterable[Worker]) -> list[Holding]:
        """Return what the replicas of these workers hold, by the first of each; of no use in a broken one."""
        found = []
        for members in replicas(workers, self.replica_size):
            living = self.replica(members[0])
            broken = len(living) < self.replica_size
            found.append(
                Holding(
                    worker=members[0].id,
                    step=min(one.step for one in living),
                    whole=not broken and all(one.whole for one in living),
                    torn=any(one.torn for one in living),
                    joins=not broken and all(one.joins for one in living),
                )
            )
        return found

    def to_release(self) -> list[Worker]:
        """Return the members that wait to be released."""
        return [worker for worker in self.members() if worker.status == WorkerStatus.LEAVING and not worker.released]

    def leavers(self) -> list[Worker]:
        """Return those of them that can be answered: of whose replica nobody trains."""
        return [
            one for one in self.to_release() if all(mate.status != WorkerStatus.MEMBER for mate in self.replica(one))
        ]

    def view_is_over(self, said: ViewIsOver) -> bool:
        """Note that a worker has left the view that it was told of last; return whether it was in it.

        That is the present one; or, of a node that was with another hub when that was published, the one before, or
        another side's.
        """
        worker = self._known[said.worker]
        if worker.status != WorkerStatus.MEMBER or said.generation != worker.within:
            return False
        worker.status, worker.at = WorkerStatus.BETWEEN_VIEWS, said.at
        worker.stands(said)
        self.broken |= said.lost
        return True

    def leaving(self, now_s: float, said: Leaving) -> bool:
        """Note that a worker of a view waits to be released; return whether it was in it."""
        worker = self._known[said.worker]
        between = worker.status == WorkerStatus.BETWEEN_VIEWS
        if not (between or worker.status == WorkerStatus.MEMBER) or said.generation != worker.within:
            return False
        worker.at, worker.since_s = worker.at if between else BOUNDARY, now_s
        worker.status, worker.joins = WorkerStatus.LEAVING, said.joins
        worker.stands(said)
        self.broken |= said.lost
        return True

    def learn(self, view: NewView) -> None:
        """Take another hub's view as the present one, which its members are in: what was known is older."""
        self.generation, self.view, self.broken = view.generation, tuple(view.workers), False
        self.view_nodes = dict(zip(view.workers, view.nodes, strict=True))
        self.nodes = frozenset(view.nodes)
        self.claim = number_of(view.claim)

    def publish(
        self, generation: int, chosen: Sequence[Worker], claim: int | None, nodes: frozenset[str] | None = None
    ) -> None:
        """Take these workers as those of the present view. nodes: theirs, where they are known already."""
        self.generation, self.claim, self.broken = generation, claim, False
        for worker in chosen:
            worker.status, worker.was_member, worker.within = WorkerStatus.MEMBER, True, generation
        self.view = tuple(worker.id for worker in chosen)
        self.view_nodes = {worker.id: worker.node for worker in chosen}
        self.nodes = frozenset(self.view_nodes.values()) if nodes is None else nodes

    def begin_run(self, now_s: float) -> None:
        """Begin the script's next run, without a view yet."""
        self.view, self.view_nodes, self.nodes, self.claim, self.broken = (), {}, frozenset(), None, False
        self._gone, self._went, self._lost = [], set(), set()
        for worker in self:
            # those that have finished are on their way to it, or to their end
            if worker.status in (WorkerStatus.FINISHED, WorkerStatus.LEAVING):
                worker.status, worker.since_s = WorkerStatus.STARTING, now_s

    # those that are gone

    def note_gone(self, worker: Worker, cause: str, exited: Exited) -> None:
        """Keep for the next view that a worker is gone, unless it went in order."""
        facts = {"t": exited.t, "step": exited.step, "stuck_s": exited.stuck_s}
        if not worker.in_order:
            self._gone = [*self._gone[-_GONE_MAX + 1 :], {"worker": worker.id, "cause": cause, **facts}]
            self._lost.add(worker.id)

    def take_gone(self) -> list[Message]:
        """Return who was lost since the last view, and why; from here on count anew."""
        gone, self._gone, self._went, self._lost = self._gone, [], set(), set()
        return gone

    def not_lost(self, departed: Collection[str]) -> list[str]:
        """Return those of the view that live, or went in order, as far as is known. departed: nodes that have."""
        return [
            id
            for id in self.view
            if id in self._known or id in self._went or (self.view_nodes[id] in departed and id not in self._lost)
        ]
