"""All workers of one launch as torchrun has them: in one world, in which all start again when it changes.

    places the nodes in a world  ->  a worker comes to where torch.distributed's default group meets: it has `formed`
      ->  one is lost, or a node comes or goes  ->  all are stopped  ->  a world of those who are here  ->  all start

What a launch is, is decided by what its workers do, and here alone, so that there is no race:

    a worker has come to an elastic.Run   nothing follows here any more, whatever else it does
    one has come to the group             torchrun's rules, from then on
    neither yet                           a lost worker is replaced alone, and a node that comes has a larger world; if
                                          the group forms after that, all start again, as its world is none of theirs.
                                          Where the node is gone at which it would have met, all do so at once
"""

from __future__ import annotations

import math

from elastic.events.words import counted
from elastic.membership.exit_statuses import AGAIN
from elastic.membership.hub.nodes import Nodes
from elastic.membership.hub.orders import Outbox
from elastic.membership.hub.replacements import Replacements
from elastic.membership.hub.run_end import RunEnd, Shortage
from elastic.membership.hub.workers import Worker, Workers, WorkerStatus
from elastic.membership.messages.messages import Exited, GroupForms, Hello, Status, StopAll, World
from elastic.membership.rules.endings import what_failed
from elastic.membership.succession.node_report import NodeReport

_LOOPBACK = "127.0.0.1"
_COMES_S = 5.0  # a node that has met the others has so long to come before the others start: it takes a second
_GOES_S = 1.0  # a node that leaves, of which others' workers have ended, says so as soon as its own have ended
_SAID_AFTER_S = 5.0  # a script that forms a group first may be on its way to its Run
_WOULD = (
    "this script has formed torch.distributed's group and begun no elastic.Run: it is run as torchrun runs it, and all "
    "start again where one is lost or nodes come or go; in a Run the others would go on, from the current step"
)
_NO_GROUP = (
    "{worker} has come to its script's end, and the script formed no group of torch.distributed's and began no "
    "elastic.Run: each worker runs all of it by itself, and if it trains, trains a model of its own"
)
_NEVER_MET = "the node where torch.distributed's default group was to meet is gone"
_HUB_LOST = (
    "the node where torch.distributed's default group met was lost without a word: others may go on there\n"
    "  state  what the script itself has saved is whole\n"
    "  next   the same command starts it again"
)


class WorkerGroup:
    """The workers of one launch as torchrun has them. restarts_max: how often all may start again for a lost one.

    formed   a worker has written to where the default group meets
    in_run   a worker has come to an elastic.Run
    stopping all are told to end, and others follow
    """

    def __init__(self, nodes: Nodes, workers: Workers, out: Outbox, *, restarts_max: int) -> None:
        self._nodes = nodes
        self._workers = workers
        self._out = out
        self._restarts_max = restarts_max
        self._slots: dict[str, tuple[int, str, int]] = {}  # of each node: its workers, and where a group would meet
        self._unplaced: list[str] = []  # nodes that have been told of no world
        self._since_s: float | None = None
        self._placed = False
        self._restarts = 0
        self._lost: str | None = None  # a worker, since the world was made, and how
        self._asks = False  # to be started again, by its status: that counts where no node goes
        self._all_ended_s: float | None = None
        self._trace = ""  # of its failure
        self._meet_at: set[tuple[str, int]] = set()  # where groups would meet of workers that another hub has placed
        self._changed: str | None = None  # a node that came or went since then
        self._formed_s = math.inf
        self._said = self._ended_alone = False
        self._hub_lost = False
        self.formed = self.in_run = self.stopping = False

    def comes(self, node: str, said: Hello) -> None:
        """Take in a node, and where a group would meet there."""
        if said.group_port is None or not said.slots:
            return
        self._slots[node] = said.slots, said.address or _LOOPBACK, said.group_port
        self._unplaced.append(node)
        if self._placed:
            self._changed = f"{node} has come"

    def learn(self, report: NodeReport) -> None:
        """Learn what a node reports to a hub that takes over."""
        self.in_run |= report.generation > 0 or any("ready" in worker.said for worker in report.workers.values())
        if report.meets_at is not None:
            self._meet_at.add(report.meets_at)
        if report.restarts is not None:
            self.formed, self._restarts = True, max(report.restarts, self._restarts)
            self._changed = "another node has the hub"  # where the store was that the group had

    def goes(self, node: str) -> None:
        """Drop a node, if it is here."""
        if self._slots.pop(node, None) is not None:
            self._changed = f"{node} has gone"
        if node in self._unplaced:
            self._unplaced.remove(node)

    def hub_is_lost(self) -> None:
        """Note that this hub takes over from one that has not said that it goes."""
        self._hub_lost = True

    def forms(self, now_s: float) -> None:
        """Note that a worker has written to where the default group meets."""
        if not (self.formed or self.in_run):
            self.formed, self._formed_s = True, now_s
            self._out.tell_all(self._slots, GroupForms(restarts=self._restarts))

    def enters_run(self) -> None:
        """Note that a worker has come to an elastic.Run."""
        self.in_run = True

    @property
    def _size(self) -> int:
        """Return how many workers there are in all."""
        return sum(slots for slots, _, _ in self._slots.values())

    @property
    def is_torchruns(self) -> bool:
        """Return whether torchrun's rules hold."""
        return self.formed and not self.in_run

    @property
    def _cannot_meet(self) -> bool:
        """Return whether workers are to form a group on a node that is gone: they would wait for torch's timeout."""
        here = {(address, port) for _, address, port in self._slots.values()}
        return not self.in_run and not self._meet_at.issubset(here)

    def takes(self, worker: Worker, exited: Exited) -> bool:
        """Note a worker's end; return whether what follows of it follows here."""
        if exited.code == 0 and not worker.failed:
            shares = worker.status != WorkerStatus.STARTING or worker.runs or self.formed or self._size < 2
            if not (shares or exited.expected or self._ended_alone):
                self._out.tell(worker.node, Status(text=_NO_GROUP.format(worker=worker.id)))
            self._ended_alone = True
            return False
        if self.in_run:
            return False
        if exited.expected:
            if not self.stopping:
                self._changed = f"{worker.node} leaves"
            return False
        if self._lost is not None or self.stopping:
            pass
        elif exited.code == AGAIN and self.formed:
            self._lost, self._asks = f"{worker.id} asked to be started again (status {AGAIN})", True
        else:
            self._lost = f"{worker.id} was lost ({what_failed(exited, worker.failed).splitlines()[0]})"
            self._trace = f"\n{worker.failed.trace.rstrip()}" if worker.failed else ""
        return self.formed or self.stopping

    def look(
        self, now_s: float, replacements: Replacements, shortage: Shortage, end: RunEnd, *, awaits_others: bool
    ) -> None:
        """Place nodes in a world, stop all whose world is none any more, and start them again.

        awaits_others  nodes are to come soon to this hub, which has taken over
        """
        self._since_s = now_s if self._since_s is None else self._since_s
        if end.why is not None or end.is_over or not self._slots:
            return
        if self.is_torchruns and self._hub_lost:
            end.begins(now_s, _HUB_LOST)
        elif self.stopping:
            self._stop(self._unplaced)
            if self._have_all_ended(now_s):
                self._start_again(now_s, replacements, shortage, end)
        elif not self._placed and (awaits_others or (self._nodes.to_come and now_s - self._since_s <= _COMES_S)):
            pass
        elif self._cannot_meet or (self.is_torchruns and (self._lost or self._changed)):
            if self._cannot_meet:
                self._changed = _NEVER_MET
            self.stopping, self._all_ended_s = True, None
            for node in self._slots:
                replacements.forget(node)
            self._stop(list(self._slots))
        else:
            if self._unplaced:
                self._place(self._unplaced)
            if self.is_torchruns and not self._said and now_s - self._formed_s > _SAID_AFTER_S:
                self._said = True
                self._out.tell_people(_WOULD)

    def _have_all_ended(self, now_s: float) -> bool:
        """Return whether no worker is left, nor comes, nor a node may be about to go that was why they ended."""
        if len(self._workers) or self._nodes.awaits_workers:
            return False
        if self._all_ended_s is None:
            self._all_ended_s = now_s
        return self._changed is not None or not self._asks or now_s - self._all_ended_s >= _GOES_S

    def _stop(self, nodes: list[str]) -> None:
        self._out.tell_all(nodes, StopAll())
        self._unplaced = [node for node in self._unplaced if node not in nodes]

    def _start_again(self, now_s: float, replacements: Replacements, shortage: Shortage, end: RunEnd) -> None:
        """Start all workers in a world of those who are here, if they may be started once more."""
        if self._lost and not self._changed:  # a change of the membership is why else, and counts for nothing
            if self._restarts >= self._restarts_max:
                times = f"--max-restarts={self._restarts_max} allows no further start"
                end.begins(now_s, f"{self._lost}; {times}{self._trace}")
                return
            self._restarts += 1
            self._changed = f"{self._lost}, restart {self._restarts} of {self._restarts_max}"
        if not shortage.enough(self._slots):
            shortage.waits(now_s, self._slots)
            return
        shortage.is_over(now_s)
        self.stopping = self._hub_lost = False
        end.goes_on()
        self._out.tell_people(f"{self._changed}: all start again, {counted(self._size, 'worker')} now")
        self._place(list(self._slots))
        for node, (slots, _, _) in self._slots.items():
            for local_rank in range(slots):
                replacements.start((node, local_rank))

    def _place(self, nodes: list[str]) -> None:
        """Tell these nodes of the world that all who are here make up."""
        anew = set(nodes) == set(self._slots)
        first_rank, places, size = 0, {}, self._size
        _, address, port = next(iter(self._slots.values()))
        for group_rank, (node, (slots, _, _)) in enumerate(self._slots.items()):
            places[node] = World(
                group_rank=group_rank,
                group_world_size=len(self._slots),
                first_rank=first_rank,
                world_size=size,
                master_addr=address,
                master_port=port,
                restart_count=self._restarts,
                formed=self.formed,
            )
            first_rank += slots
        for node in nodes:
            self._out.tell(node, places[node])
        self._unplaced, self._placed = [], True
        if anew:
            self._lost = self._changed = None
            self._asks = False
            self._meet_at.clear()
