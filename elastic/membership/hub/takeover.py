"""What a hub that takes over learns of the run from the nodes that come to it, and for whom it waits before it decides.

Each node reports the newest view that it knows of, and what its workers have said last (node_report.py). Those of that
view are waited for, if they come soon. A node that comes with an older view than others have, which go on without it,
was moved on from; and where nobody of any view comes, the run begins anew with newcomers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from elastic.membership.hub.joining import Joining, Place, Runs
from elastic.membership.hub.nodes import Nodes
from elastic.membership.hub.orders import Outbox
from elastic.membership.hub.run_end import RunEnd
from elastic.membership.hub.workers import Worker, Workers, WorkerStatus
from elastic.membership.messages.messages import Failed, HubAt, Leaving, NewView, Ready, ViewIsOver
from elastic.membership.messages.wire import Message
from elastic.membership.rules.endings import Endings
from elastic.membership.rules.next_view import BOUNDARY
from elastic.membership.succession.going_on import GoingOn
from elastic.membership.succession.node_report import NodeReport

_ALONE_S = 10.0  # a hub that took over, and to which nobody of any view has come by then, begins anew with newcomers
_BEGUN_S = 5.0  # the same where no view is known to anybody who has met
_COMES_S = 1.5  # a node of the last view has so long to come to a hub that has taken over


class Takeover:
    """The nodes for which a hub waits that takes over from another one.

    takes_over  from a hub that is gone, or goes; else nobody is waited for
    above  the newest generation that there was, as far as was reported
    before_any_view  who has met before there was a hub knows of none
    """

    def __init__(self, takes_over: bool) -> None:
        self.is_one = takes_over
        self.above = 0
        self.before_any_view = False
        self._since_s: float | None = None
        self._expected: set[str] = set()
        self._not_awaited: set[str] = set()
        self._come_by_s: float | None = None

    def expect(self, nodes: Iterable[str]) -> None:
        """Wait for these nodes, if they come soon."""
        self._expected = set(nodes)

    def begin(self, now_s: float) -> None:
        """Begin to wait, the first time that anything is decided."""
        if self._since_s is None:
            self._since_s = now_s

    def lost(self, node: str) -> None:
        """Wait for this node no more."""
        self._not_awaited.add(node)

    def came(self, node: str) -> None:
        """Note that this node is here, so that it may be waited for once more."""
        self._not_awaited.discard(node)

    def learned_of_view(self, now_s: float) -> None:
        """Wait a while for those nodes of a view, newer than what was known, that are not here."""
        self._come_by_s = now_s + _COMES_S

    def published(self) -> None:
        """Wait for no node of an earlier view: this hub has published one."""
        self._come_by_s = None

    def may_come(self, now_s: float, node: str) -> bool:
        """Return whether a node of the present view, which is not here, may come."""
        return node not in self._not_awaited and self._come_by_s is not None and now_s < self._come_by_s

    def to_come(self, now_s: float) -> set[str]:
        """Return the nodes whose places newcomers do not take."""
        fresh = self.is_one and self._since_s is not None and now_s - self._since_s < _COMES_S
        return self._expected - self._not_awaited if fresh or self._since_s is None else set()

    def waits(self, now_s: float, here: Collection[str], *, knows_a_view: bool) -> bool:
        """Return whether nothing is decided yet: expected nodes may come, or any that know a view."""
        if not self.is_one or self._since_s is None:
            return False
        since_s = now_s - self._since_s
        to_come = self._expected.difference(here, self._not_awaited)
        alone_s = _BEGUN_S if self.before_any_view else _ALONE_S
        return bool(to_come and since_s < _COMES_S) or (not knows_a_view and since_s < alone_s)


class Reports:
    """Learns the run from what nodes report to one hub. liveness: of its agent, for the coordinator."""

    def __init__(
        self,
        takeover: Takeover,
        nodes: Nodes,
        workers: Workers,
        going_on: GoingOn,
        endings: Endings,
        joining: Joining,
        runs: Runs,
        end: RunEnd,
        out: Outbox,
        *,
        liveness: Message | None,
    ) -> None:
        self._takeover = takeover
        self._nodes = nodes
        self._workers = workers
        self._going_on = going_on
        self._endings = endings
        self._joining = joining
        self._runs = runs
        self._end = end
        self._out = out
        self._liveness = liveness
        self._fresh = False  # one came since the last look at who was moved on from
        self._forms_under_another = False  # hub, maybe: the present view
        self._learned: NewView | None = None  # that all nodes report, as one object

    def may_come_back(self, node: str, report: NodeReport) -> bool:
        """Return whether a node may come with its workers: the run has not gone on without them."""
        generation = self._workers.generation
        if self._takeover.is_one and generation == 0:
            return True
        behind = max((worker.generation for worker in report.workers.values()), default=0)
        return behind in (0, generation) or behind > generation or node in self._workers.nodes

    def learn(self, now_s: float, node: str, report: NodeReport) -> None:
        """Learn what a node reports: of views, of its workers and their last words, and of those that ended."""
        self._takeover.above = max(self._takeover.above, report.generation)
        self._going_on.reported(node, report)
        self._end.finished |= report.finished
        self._end.is_saved(report.saved)
        if report.view is not None and self._is_newer(report.view):
            self._workers.learn(report.view)
            self._runs.present = report.view.run
            self._learned = report.view
            self._takeover.learned_of_view(now_s)
            self._forms_under_another = True
        for one in report.workers.values():
            worker = Worker(one.worker, node, one.local_rank, since_s=now_s, started_s=now_s, within=one.generation)
            self._workers.add(worker)
            if one.generation:
                worker.was_member, worker.status = True, WorkerStatus.MEMBER
            for said in one.said.values():
                self._said_before(now_s, worker, said)
        for one_before in report.ended:
            self._endings.happened(now_s, one_before.at(node, self._workers.replica_size), age_s=one_before.at_s)
        self._fresh = True
        coordinator = self._workers.coordinator()
        if coordinator is not None and coordinator.node == node and self._liveness is not None:
            self._out.say(coordinator, HubAt(liveness=self._liveness))

    def moved_on_from(self) -> list[str]:
        """Return nodes that have come with an older view than others have, which goes on without them."""
        if not self._fresh:
            return []
        self._fresh = False
        self._let_wait_again()
        members_of: dict[str, list[Worker]] = {}
        for worker in self._workers:
            if worker.within and worker.status != WorkerStatus.READY:
                members_of.setdefault(worker.node, []).append(worker)
        return [node for node, members in members_of.items() if self._was_moved_on_from(node, members)]

    def _let_wait_again(self) -> None:
        """Let those join whose view broke before they had received the state, and whom the next did without."""
        for worker in self._workers:
            is_between = worker.status == WorkerStatus.BETWEEN_VIEWS and worker.id not in self._workers.view_nodes
            if is_between and worker.within < self._workers.generation and not worker.has_a_step:
                worker.status = WorkerStatus.READY

    def settle(self, now_s: float) -> None:
        """Break the present view, if it may have been forming under another hub, once nobody is awaited."""
        if self._forms_under_another and not self.awaits_others(now_s):
            self._forms_under_another = False
            # what its workers told each other to form their group may be lost with the hub that they did it under
            self._workers.broken |= not self._has_met()

    def awaits_others(self, now_s: float) -> bool:
        """Return whether nodes that have not come yet are waited for, before anything is decided."""
        waits = self._takeover.waits(now_s, self._nodes, knows_a_view=self._workers.generation > 0)
        return waits or any(self.comes(now_s, id) for id in self._workers.view)

    def comes(self, now_s: float, id: str) -> bool:
        """Return whether that worker of the view may be on a node that has not come to this hub yet."""
        node = self._workers.view_nodes.get(id, "")
        return id not in self._workers and node not in self._nodes and self._takeover.may_come(now_s, node)

    def _is_newer(self, view: NewView) -> bool:
        """Return whether a view is newer than the present one."""
        if view is self._learned:  # its workers are not compared for each node, which would grow with the square
            return False
        generation = self._workers.generation
        if view.generation != generation or tuple(view.workers) == self._workers.view:
            return view.generation > generation
        # of two with one generation, which two sides have published, at most one has met
        return self._going_on.has_met(view.generation, frozenset(view.nodes)) and not self._has_met()

    def _has_met(self) -> bool:
        """Return whether all workers of the present view have met, as far as is known."""
        return self._going_on.has_met(self._workers.generation, self._workers.nodes)

    def _said_before(self, now_s: float, worker: Worker, said: Any) -> None:
        """Take in what a worker has said to the hub before this one."""
        match said:
            case Ready() if worker.within and self._runs.place(said.runs) is not Place.NEXT:
                self._joining.joined_before(worker, said)
            case Ready():
                self._joining.ready(now_s, said)
            case ViewIsOver() | Leaving():
                worker.stands(said)
                leaves = isinstance(said, Leaving)
                worker.status = WorkerStatus.LEAVING if leaves else WorkerStatus.BETWEEN_VIEWS
                worker.at = BOUNDARY if isinstance(said, Leaving) else said.at
                worker.joins = not isinstance(said, Leaving) or said.joins
                self._endings.applied(worker.step)
                self._workers.broken |= said.lost and worker.within == self._workers.generation
            case Failed():
                worker.failed = said

    def _was_moved_on_from(self, node: str, members: list[Worker]) -> bool:
        """Return whether the run goes on without these workers of a node; break a view that some are not in."""
        generation, view_nodes = self._workers.generation, self._workers.view_nodes
        self._workers.broken |= any(one.within < generation or one.id not in view_nodes for one in members)
        newest = max(one.within for one in members)
        return not any(one.id in view_nodes for one in members) or self._going_on.has_moved_on_from(node, newest)
