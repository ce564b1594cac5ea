"""Lets in a node that says hello, or tells it why not; and tells all nodes of each other.

its run is over, or goes on elsewhere   it is told so
its replicas are of another size        it ends, with the run's in its last line
the run has gone on without it          it was moved on from, and may come again with other workers
the run has its most nodes              it waits for a place
else                                    it is in, and each of its slots has a worker, or gets one
"""

from __future__ import annotations

from elastic.membership.hub.nodes import Nodes
from elastic.membership.hub.orders import Outbox
from elastic.membership.hub.replacements import Replacements
from elastic.membership.hub.run_end import OVER, RunEnd
from elastic.membership.hub.takeover import Reports, Takeover
from elastic.membership.hub.worker_group import WorkerGroup
from elastic.membership.hub.workers import Workers
from elastic.membership.messages.messages import Full, Hello, HubIs, MovedOn, Roster, RunIsOver
from elastic.membership.succession.going_on import GoingOn
from elastic.membership.succession.node_report import NodeReport

_OTHER_SIZE = (
    "the run is in replicas of {here} workers, and {node} was started with --replica-size={its}\n"
    "  state  the run goes on without this node, and nothing was trained here\n"
    "  next   start it with --replica-size={here}, as the other nodes"
)
WITHOUT = "the run has gone on without this node, of which nothing was heard"


class Admission:
    """Lets in nodes that say hello to one hub. next_hub: where they are sent, once this one has handed over."""

    def __init__(
        self,
        nodes: Nodes,
        workers: Workers,
        group: WorkerGroup,
        takeover: Takeover,
        going_on: GoingOn,
        reports: Reports,
        replacements: Replacements,
        end: RunEnd,
        out: Outbox,
    ) -> None:
        self._nodes = nodes
        self._workers = workers
        self._group = group
        self._takeover = takeover
        self._going_on = going_on
        self._reports = reports
        self._replacements = replacements
        self._end = end
        self._out = out
        self.next_hub: HubIs | None = None

    def hello(self, now_s: float, node: str, said: Hello) -> None:
        """Let a node in, or tell it why not. Raises WireError, having done nothing, where it speaks for another."""
        report = NodeReport.from_document(said.report) if said.report is not None else None
        for worker in report.workers if report is not None else ():
            self._workers.is_of(node, worker)
        if self.next_hub is not None:
            self._out.tell(node, self.next_hub)
        elif self._end.moved_on is not None:
            self._out.tell(node, MovedOn(why=self._end.moved_on))
        elif self._end.is_over:
            self._out.tell(node, RunIsOver(failed=self._end.failed, why=OVER))
        elif said.slots and said.replica_size != self._workers.replica_size:
            why = _OTHER_SIZE.format(node=node, its=said.replica_size, here=self._workers.replica_size)
            self._out.tell(node, RunIsOver(failed=True, why=why))
        elif report is not None and not self._reports.may_come_back(node, report):
            self._out.tell(node, MovedOn(why=WITHOUT))
        elif node not in self._nodes:
            if self._has_room(now_s, node, report):
                self._let_in(now_s, node, said, report)
            else:
                self._nodes.refused.add(node)
                self._out.tell(node, Full(nodes_max=self._nodes.most, nodes=self._nodes.listening()))

    def tell_roster(self) -> None:
        """Tell the nodes, once for all that changed it, who is to be the hub when this one is gone."""
        self._nodes.changed = False
        generation = self._workers.generation
        nodes = self._nodes.roster(begun=generation > 0)
        if nodes:
            inside = self._workers.nodes
            outside = [node for node, *_ in nodes if node not in inside]
            away = sorted(inside.difference(node for node, *_ in nodes))
            claim = self._workers.claim if self._going_on.is_witnessed(generation) else None
            roster = Roster(nodes=nodes, generation=generation, outside=outside, away=away, claim=claim)
            self._out.tell_all(self._nodes, roster)

    def _has_room(self, now_s: float, node: str, report: NodeReport | None) -> bool:
        """Return whether there is a place for a node."""
        if report is not None and any(worker.generation for worker in report.workers.values()):
            return True  # its workers are in the view
        # newcomers do not take the places of those who are to come yet
        return self._nodes.has_room(node, self._takeover.to_come(now_s))

    def _let_in(self, now_s: float, node: str, said: Hello, report: NodeReport | None) -> None:
        """Take a node in: learn its report, and start a worker in each slot that has none."""
        self._nodes.comes(node, said.address, said.port)
        self._group.comes(node, said)
        self._going_on.is_here(node)
        self._takeover.came(node)
        if report is not None:
            self._end.begun = True
            self._reports.learn(now_s, node, report)
            if self._takeover.is_one:
                self._group.learn(report)
        on_its_way = range(said.slots) if report is None else said.starting
        for local_rank in on_its_way:
            self._nodes.awaits((node, local_rank))
        here = {worker.local_rank for worker in report.workers.values()} if report is not None else set()
        size = self._workers.replica_size
        for first in range(0, said.slots, size):
            if not {*here, *on_its_way}.intersection(range(first, first + size)):
                self._replacements.start((node, first))
        self._nodes.changed = True
