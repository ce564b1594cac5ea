"""Decides, for all nodes, which workers form which view. A state machine without sockets, processes or a clock.

    workers say "ready" or "view_is_over"; agents say "started" and "exited"
      ->  everyone who can be in the next view has answered, or is proven to be gone
      ->  one "view" to each of its workers, with the next generation

There is one hub at a time: in the agent of the first node, and when that is lost or leaves, in that of the next node of
its roster, which learns of the run from what the agents report. Only views tell a worker who is lost: it acts on
nothing but what it is told here and on the failure of its own collectives. Who is in a view and in which order is
rules.py's, what becomes of those who want to leave leaving.py's, who is replaced or ends the run endings.py's, who
hangs hang_watch.py's, and for whom a hub waits that takes over takeover.py's. Who says what, when, and what follows is
one table: docs/internals/protocol.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from elastic.membership.endings import CUT_SHORT, KILLED, LEAVES, Bug, Ended, Endings, ended, what_failed
from elastic.membership.going_on import GoingOn
from elastic.membership.hang_watch import EndRun, Finding, HangWatch, KillIt, TellPeople
from elastic.membership.kills import Replace, Slot
from elastic.membership.leaving import SAVED_NOTHING, see_off
from elastic.membership.messages import (
    TO_HUB,
    Broken,
    Bye,
    Claimed,
    End,
    Entered,
    Exited,
    Failed,
    Finished,
    Full,
    Hello,
    HubAt,
    HubIs,
    KillHung,
    Leaving,
    MovedOn,
    NewView,
    OnBoard,
    OtherIdentity,
    Ping,
    Put,
    Ready,
    Regroup,
    Released,
    Roster,
    RunIsOver,
    Save,
    Saved,
    Sighted,
    Start,
    Started,
    Status,
    TakeClaim,
    ToAgent,
    ToHub,
    ToWorker,
    Unstarted,
    ViewIsOver,
    Witness,
    as_message,
    parse,
)
from elastic.membership.node_report import NodeReport, number_of
from elastic.membership.rules import BOUNDARY, next_view
from elastic.membership.standstill import Standstill
from elastic.membership.succession import GoOn, NeedsClaim, Stay
from elastic.membership.takeover import Takeover
from elastic.membership.wire import Message, WireError
from elastic.membership.workers import Worker, WorkerStatus

_OF_AGENTS = (Started, Unstarted, Sighted, Bye, Ping)
_LEAVER_S = 30.0  # one that waits so long for others, who are busy, may save and go
_SHORT_S = 1.0  # a node whose workers are being replaced is back by then
_SILENT_S = 10.0  # a member that has not answered "broken" by then is named
_GONE_MAX = 64  # that a view tells of
_WITHOUT = "the run has gone on without this node, of which nothing was heard"
_OVER = "the run is over"


@dataclass(frozen=True)
class Order:
    """A message to a worker of that node, or to its agent (worker is None)."""

    node: str
    worker: str | None
    message: Message


class Hub:
    """One run's views.

    nodes_min     below it, those included who wait to join, no view is formed: the run waits, then ends
    nodes_first   how many nodes the first view waits for, `start_s` at most
    restarts_max  see endings.py
    beacon        what goes into every view for whoever claims the run's storage
    gather_s      how long a newcomer that is ready waits for others that are starting, once the run is under way
    start_s       the same in a run's first view
    below_min_s   how long the run waits for nodes
    ending_s      how long workers may take to come to a clean end
    stall_s       how long all may stand still at one place, at least
    takes_over    from a hub that is gone, or goes: it learns of the run from the nodes that come to it
    """

    def __init__(
        self,
        *,
        nodes_min: int = 1,
        nodes_max: int = 1,
        nodes_first: int = 1,
        restarts_max: int = 3,
        window_s: float = 3600.0,
        beacon: Message | None = None,
        gather_s: float = 0.3,
        start_s: float = 120.0,
        below_min_s: float = 600.0,
        ending_s: float = 60.0,
        stall_s: float = 600.0,
        takes_over: bool = False,
    ) -> None:
        self.generation = 0
        self._nodes_min = nodes_min
        self._nodes_max = nodes_max
        self._nodes_first = nodes_first
        self._beacon = beacon
        self._gather_s = gather_s
        self._start_s = start_s
        self._below_min_s = below_min_s
        self._ending_s = ending_s
        self._nodes: dict[str, None] = {}  # in the order in which they came
        self._awaited: list[Slot] = []  # places whose worker was ordered and has not been started yet
        self._begun = False
        self._workers: dict[str, Worker] = {}
        self._view: tuple[str, ...] = ()
        self._identity: Any = None
        self._endings = Endings(restarts_max=restarts_max, window_s=window_s)
        self._later: dict[Slot, float] = {}  # places whose worker is started then
        self._broken = False
        self._complained = 0  # in which generation
        self._asked = False
        self._finished = False
        self._standstill = Standstill()
        self._hangs = HangWatch(stall_s)
        self._saved = SAVED_NOTHING  # the newest step of which a commit was seen
        self._loss: str | None = None  # why the run will have failed if nobody goes on with it
        self._short_since_s: float | None = None
        self._short_said = False
        self._ending: str | None = None
        self._repeated = False  # one failure, which is why the run ends
        self._ending_since_s = 0.0
        self._run_ended = self._failed = False
        self._moved_on: str | None = None  # why others have gone on with the run, and nobody here has a part in it
        self._begun_elsewhere = False  # nobody has come here who was in a view, and there were some
        self._handed_over = False
        self._next_hub = HubIs()  # once this one has handed over
        self._storage_said: str | None = None  # of why it could not be asked, people know
        self._last_word = End(why="")
        self._gone: list[Message] = []  # since the last view, and why
        self._going_on = GoingOn()
        self._claim: int | None = None  # of the present view
        self._where: dict[str, tuple[str, int]] = {}  # nodes that listen
        self._view_nodes: dict[str, str] = {}  # of the workers of the present view
        self._takeover = Takeover(takes_over)
        self._forms_under_another = False  # hub, maybe: the present view
        self._stays: str | None = None
        self._refused: set[str] = set()  # who waits for a place
        self._roster_changed = False
        self._reported = False  # by a node, since the last look at who was moved on from
        self._put: dict[str, str] = {}  # on the board of the present view, and nobody was told yet
        self._orders: list[Order] = []

    def receive(self, now_s: float, node: str, message: Message) -> list[Order]:
        """What follows from this message and those that were heard before. Raises as `hear` does, and as `parse`."""
        self.hear(now_s, node, parse(TO_HUB, message))
        return self.follows(now_s)

    def hear(self, now_s: float, node: str, said: ToHub) -> None:
        """A message of that node's agent or of one of its workers. What follows from those that come together is
        decided once, for it takes as long as there are workers.

        Raises WireError, having done nothing, for what is said for another node.
        """
        if isinstance(said, Hello):
            self._on_hello(now_s, node, said)
        elif node in self._nodes and (isinstance(said, _OF_AGENTS) or self._is_of(node, said.worker)):
            self._heard(now_s, node, said)

    def _heard(self, now_s: float, node: str, said: ToHub) -> None:
        match said:
            case Started():
                self._on_started(now_s, node, said)
            case Unstarted():
                self._on_unstarted(node, said)
            case Ready():
                self._on_ready(now_s, said)
            case ViewIsOver():
                self._on_view_is_over(said)
            case Leaving():
                self._on_leaving(now_s, said)
            case Saved():
                self._on_saved(said)
            case Finished():
                self._on_finished(said)
            case Failed():
                self._workers[said.worker].failed = said
            case Sighted():
                self._on_sighted(now_s, node, said)
            case Put():
                self._on_put(said)
            case Entered(generation=generation):
                self._going_on.met(generation, node)
            case Witness():
                if said.generation == self.generation:
                    self._going_on.witness(said.claim, agreed=said.agreed)
                    self._claim, self._begun_elsewhere = number_of(said.claim), False
            case Claimed():
                self._on_claimed(now_s, said)
            case Bye():
                self._going_on.left(node)
                self.loses(node, dead=False)
            case Exited():
                self._on_exited(now_s, said)

    def lost(self, now_s: float, node: str, *, dead: bool = True) -> list[Order]:
        """What follows from the loss of a node, see `loses`."""
        self.loses(node, dead=dead)
        return self.follows(now_s)

    def loses(self, node: str, *, dead: bool, refuses: bool = False) -> None:
        """An agent is not to be reached any more: its workers are gone, or go on elsewhere. What follows from all that
        are lost together is decided once.

        dead     its process has ended, as the kernel of this machine says, which is its own
        refuses  its machine does not take connections for it, or something in between says so
        """
        self._takeover.lost(node)
        self._going_on.is_away(node)
        self._refused.discard(node)
        if dead:
            self._going_on.dead(node)
        if refuses:
            self._going_on.refuses(node)
        if node in self._nodes:
            del self._nodes[node]
            self._roster_changed = True
            here = [worker for worker in self._workers.values() if worker.node == node]
            awaited = [place for place in self._awaited if place[0] == node]
            self._later = {place: at_s for place, at_s in self._later.items() if place[0] != node}
            if not self._finished and (awaited or not all(worker.safe for worker in here)):
                self._loss = f"{node} was lost, and nobody is left"
            self._awaited = [place for place in self._awaited if place not in awaited]
            self._broken |= any(
                worker.id in self._view for worker in here
            )  # also where it is back before this turn ends
            for worker in here:
                self._note_gone(worker, "its node was lost", Exited(worker=worker.id))
                del self._workers[worker.id]
                self._hangs.forget(worker.id)

    def without(self, now_s: float, node: str, *, left: bool) -> list[Order]:
        """Of a node that is not to be waited for. left: it has said that it goes"""
        if left:
            self._going_on.left(node)
        return self.lost(now_s, node, dead=False)

    def hands_over(self, now_s: float, node: str) -> list[Order]:
        """The node of this hub leaves. From here on nothing is decided: who comes is told where to go."""
        self._going_on.left(node)
        self.loses(node, dead=False)
        listening = self._listening()
        if listening:
            _, address, port = listening[0]
            self._next_hub = HubIs(address=address, port=port)
        orders = self.follows(now_s)
        self._handed_over = True
        return orders

    def expect(self, nodes: Iterable[str]) -> None:
        """After a takeover: what these know is waited for, if they come soon."""
        self._takeover.expect(nodes)

    def missing(self) -> list[str]:
        """Nodes that the run may not go on without, as far as is known here."""
        return sorted(self._going_on.missing(self._nodes))

    def tick(self, now_s: float) -> list[Order]:
        """What follows from time alone."""
        return self.follows(now_s)

    def _is_of(self, node: str, id: str) -> bool:
        """Whether this worker is known, as that node's. Raises WireError if it is another's."""
        worker = self._workers.get(id)
        if worker is not None and worker.node != node:
            raise WireError(f"worker {id} is of {worker.node}, and {node} does not speak for it")
        return worker is not None

    def _on_hello(self, now_s: float, node: str, said: Hello) -> None:
        report = NodeReport.from_document(said.report) if said.report is not None else None
        for worker in report.workers if report is not None else ():
            self._is_of(node, worker)
        if self._handed_over:
            self._tell(node, self._next_hub)
            return
        if self._moved_on is not None:
            self._tell(node, MovedOn(why=self._moved_on))
            return
        if self._run_ended:
            self._tell(node, RunIsOver(failed=self._failed, why=_OVER))
            return
        if report is not None and not self._may_come_back(node, report):
            self._tell(node, MovedOn(why=_WITHOUT))
            return
        if node in self._nodes:
            return
        if not self._has_place(now_s, node, report):
            self._refused.add(node)
            self._tell(node, Full(nodes_max=self._nodes_max, nodes=self._listening()))
            return
        self._refused.discard(node)
        self._nodes[node] = None
        self._going_on.is_here(node)
        self._takeover.came(node)
        if said.address is not None and said.port is not None:
            self._where[node] = said.address, said.port
        if report is not None:
            self._on_report(now_s, node, report)
        on_its_way = range(said.places) if report is None else said.starting
        self._awaited += [(node, local_rank) for local_rank in on_its_way]
        here = {worker.local_rank for worker in report.workers.values()} if report is not None else set()
        for local_rank in range(said.places):
            if local_rank not in (*here, *on_its_way):
                self._start((node, local_rank))
        self._roster_changed = True

    def _has_place(self, now_s: float, node: str, report: NodeReport | None) -> bool:
        """One whose workers are in the view has, and newcomers do not take that of those who are to come yet."""
        if report is not None and any(worker.generation for worker in report.workers.values()):
            return True
        return len(self._takeover.to_come(now_s).union(self._nodes) - {node}) < self._nodes_max

    def _may_come_back(self, node: str, report: NodeReport) -> bool:
        """Whether what its workers are in is what the others are in, too."""
        if self._takeover.is_one and self.generation == 0:
            return True
        behind = max((worker.generation for worker in report.workers.values()), default=0)
        return behind in (0, self.generation) or behind > self.generation or node in self._view_nodes.values()

    def _on_report(self, now_s: float, node: str, report: NodeReport) -> None:
        """Of a node that comes from another hub."""
        self._begun = True
        self._takeover.above = max(self._takeover.above, report.generation)
        self._going_on.reported(node, report)
        self._finished |= report.finished
        self._saved = max(self._saved, report.saved)
        for one in report.workers.values():
            worker = Worker(one.worker, node, one.local_rank, since_s=now_s, started_s=now_s, within=one.generation)
            self._workers[one.worker] = worker
            if one.generation:
                worker.was_member, worker.status = True, WorkerStatus.MEMBER
            for said in one.said.values():
                self._said_before(now_s, worker, said)
        for one_before in report.ended:
            self._endings.happened(now_s, one_before.at(node), age_s=one_before.at_s)
        view = report.view
        if view is not None and self._is_newer(view):
            self.generation, self._view = view.generation, tuple(view.workers)
            self._view_nodes = dict(zip(view.workers, view.nodes, strict=True))
            self._claim = number_of(view.claim)
            self._takeover.learned_of_view(now_s)
            self._forms_under_another = True
        self._reported = True
        coordinator = self._workers.get(self._view[0]) if self._view else None
        if coordinator is not None and coordinator.node == node and self._beacon is not None:
            self._say(coordinator, HubAt(beacon=self._beacon))

    def _is_newer(self, view: NewView) -> bool:
        """Than the present one. Of two with one generation, which two sides have published, at most one has met."""
        if view.generation != self.generation or tuple(view.workers) == self._view:
            return view.generation > self.generation
        return self._going_on.has_met(view.generation, set(view.nodes)) and not self._has_met()

    def _has_met(self) -> bool:
        """Whether all workers of the present view have, as far as is known."""
        return self._going_on.has_met(self.generation, set(self._view_nodes.values()))

    def _said_before(self, now_s: float, worker: Worker, said: Any) -> None:
        """To the hub before this one."""
        match said:
            case Ready() if worker.within:
                worker.shares, worker.identity, worker.accepted = said.shares, said.identity, said.accepted
                self._identity = said.identity if self._identity is None else self._identity
                self._going_on.is_here(worker.node, said.newest)
            case Ready():
                self._on_ready(now_s, said)
            case ViewIsOver() | Leaving():
                worker.stands(said)
                leaves = isinstance(said, Leaving)
                worker.status = WorkerStatus.LEAVING if leaves else WorkerStatus.BETWEEN_VIEWS
                worker.at = BOUNDARY if isinstance(said, Leaving) else said.at
                worker.joins = not isinstance(said, Leaving) or said.joins
                self._endings.applied(worker.step)
                self._broken |= said.lost
            case Failed():
                worker.failed = said

    def _move_on(self) -> None:
        """Who comes to a hub that knows a newer view, without them, was moved on from."""
        self._reported = False
        members_of: dict[str, list[Worker]] = {}
        for worker in self._workers.values():
            if worker.within:
                members_of.setdefault(worker.node, []).append(worker)
        for node, members in members_of.items():
            behind = [one for one in members if one.within < self.generation or one.id not in self._view_nodes]
            self._broken |= bool(behind)
            newest = max(one.within for one in members)
            if not any(one.id in self._view_nodes for one in members) or self._going_on.has_left_behind(node, newest):
                self._tell(node, MovedOn(why=_WITHOUT))
                self._forget(node)

    def _forget(self, node: str) -> None:
        del self._nodes[node]
        self._awaited = [place for place in self._awaited if place[0] != node]
        self._later = {place: at_s for place, at_s in self._later.items() if place[0] != node}
        for worker in [worker for worker in self._workers.values() if worker.node == node]:
            del self._workers[worker.id]
            self._hangs.forget(worker.id)
        self._going_on.is_away(node)
        self._takeover.lost(node)

    def _tell_roster(self) -> None:
        """Who is to be the hub once this one is gone. Once for all that changed it."""
        self._roster_changed = False
        nodes = self._listening()
        if nodes:
            inside = set(self._view_nodes.values())
            outside = [node for node, *_ in nodes if node not in inside]
            claim = self._claim if self._going_on.is_witnessed(self.generation) else None
            roster = Roster(nodes=nodes, generation=self.generation, outside=outside, claim=claim)
            message = as_message(roster)
            self._orders += [Order(node, None, message) for node in self._nodes]

    def _listening(self) -> list[list[Any]]:
        return [[node, *self._where[node]] for node in self._nodes if node in self._where]

    def _on_claimed(self, now_s: float, said: Claimed) -> None:
        if said.claim is None:
            self._going_on.failed(now_s, said.worker)
            if said.why != self._storage_said:
                self._storage_said = said.why
                self._tell_people(f"the run's storage cannot be asked who may go on, and is asked again: {said.why}")
        elif said.moved_on:
            self._lose_to(said)
        elif not self._going_on.won(said.worker, said.generation, said.claim) and self._is_under_older_claim():
            self._broken = True  # the next view is under it, or its saves would find a newer one

    def _is_under_older_claim(self) -> bool:
        """Whether there is a claim that is newer than that of the present view, which goes on."""
        running = any(worker.status == WorkerStatus.MEMBER for worker in self._members())
        return running and number_of(self._going_on.claim) != self._claim

    def _lose_to(self, said: Claimed) -> None:
        """Others have the next claim. Those of this side who are named by it may ask again, for nobody goes on without
        them; the others are moved on from."""
        assert said.claim is not None
        may_ask = self._going_on.lost_to(said.worker, said.claim)
        holding = {worker.node for worker in self._survivors() if worker.has_a_step}
        if may_ask is None or not holding:
            return
        if may_ask.isdisjoint(holding):
            self._run_ended, self._moved_on = True, said.why
            for node in reversed(self._nodes):  # the hub's own, which came first, last: it steps down then
                self._tell(node, MovedOn(why=said.why))
        else:
            for node in [node for node in reversed(self._nodes) if node in holding - may_ask]:
                self._tell(node, MovedOn(why=said.why))
                self._forget(node)

    def _on_started(self, now_s: float, node: str, said: Started) -> None:
        if said.worker in self._workers:
            raise WireError(f"a worker {said.worker} is there already, of {self._workers[said.worker].node}")
        self._begun = True
        self._on_unstarted(node, said)
        self._workers[said.worker] = Worker(said.worker, node, said.local_rank, since_s=now_s, started_s=now_s)

    def _on_unstarted(self, node: str, said: Started | Unstarted) -> None:
        if (node, said.local_rank) in self._awaited:
            self._awaited.remove((node, said.local_rank))

    def _on_ready(self, now_s: float, said: Ready) -> None:
        worker = self._workers[said.worker]
        if worker.status == WorkerStatus.FINISHED:
            self._loss = "the script began a second Run: under `elastic run` a script has one"
            self._say(worker, End(why=self._loss))
            return
        worker.shares, worker.identity, worker.since_s = said.shares, said.identity, now_s
        worker.accepted, worker.status = said.accepted, WorkerStatus.READY
        self._going_on.is_here(worker.node, said.newest)
        if self._run_ended:  # it was being started when the run ended
            self._say(worker, self._last_word)
            return
        self._compare(worker)

    def _compare(self, worker: Worker) -> None:
        """One that is ready and differs from the run is asked whether it accepts that."""
        if self._identity not in (None, worker.identity) and not worker.accepted:
            worker.status = WorkerStatus.DIFFERENT
            self._say(worker, OtherIdentity(identity=self._identity))

    def _on_view_is_over(self, said: ViewIsOver) -> None:
        worker = self._workers[said.worker]
        if worker.status == WorkerStatus.MEMBER and said.generation == self.generation:
            worker.status, worker.at = WorkerStatus.BETWEEN_VIEWS, said.at
            worker.stands(said)
            self._endings.applied(worker.step)
            self._broken |= said.lost

    def _on_leaving(self, now_s: float, said: Leaving) -> None:
        """It is released, asked to save first, or comes into the next view: what leaving.py says once nobody trains."""
        worker = self._workers[said.worker]
        if worker.status in (WorkerStatus.MEMBER, WorkerStatus.BETWEEN_VIEWS) and said.generation == self.generation:
            worker.at, worker.since_s = worker.at if worker.status == WorkerStatus.BETWEEN_VIEWS else BOUNDARY, now_s
            worker.status = WorkerStatus.LEAVING
            worker.stands(said)
            worker.joins = said.joins
            if said.saved:
                self._saved = max(self._saved, worker.step)
            self._endings.applied(worker.step)
            self._broken |= said.lost

    def _on_saved(self, said: Saved) -> None:
        """By one that was asked to."""
        if said.generation == self.generation:
            self._saved = max(self._saved, said.step)

    def _on_finished(self, said: Finished) -> None:
        self._workers[said.worker].status = WorkerStatus.FINISHED
        if not self._finished:
            self._finished, self._loss = True, None

    def _on_sighted(self, now_s: float, node: str, said: Sighted) -> None:
        self._hangs.saw(now_s, [one for one in said.sightings if self._is_of(node, one.worker)])
        members = [worker.id for worker in self._members()]
        self._act_on(now_s, self._hangs.look(now_s, members, ending=self._ending is not None))

    def _act_on(self, now_s: float, findings: Iterable[Finding]) -> None:
        """Of the watch for hangs."""
        for found in findings:
            match found:
                case KillIt(sighting=sighting, why=why):
                    worker = self._workers[sighting.worker]
                    self._tell(worker.node, KillHung(worker=worker.id, sign=sighting.sign, why=why))
                case TellPeople(text=text):
                    self._tell_people(text)
                case EndRun(why=why):
                    self._end(now_s, why)

    def _on_put(self, said: Put) -> None:
        if said.generation == self.generation:
            self._put[said.key] = said.value

    def _on_exited(self, now_s: float, said: Exited) -> None:
        worker = self._workers.pop(said.worker)
        self._going_on.worker_ended(worker.id)
        self._hangs.forget(worker.id)
        failed, signal, code, hung = worker.failed, said.signal, said.code, said.hung
        what = what_failed(said, failed)
        if said.expected or worker.status == WorkerStatus.LEAVING or signal in LEAVES or code == CUT_SHORT:
            in_order = worker.safe or 0 <= worker.step <= self._saved or (code == 0 and not failed)
            if code == CUT_SHORT:  # it has put on record what is lost with it
                self._note_gone(worker, "told to leave, it came to no boundary before its machine was to go", said)
            elif (
                worker.status in (WorkerStatus.MEMBER, WorkerStatus.BETWEEN_VIEWS, WorkerStatus.LEAVING)
                and not in_order
                and not self._finished
            ):
                self._loss = f"{worker.id}, told to leave, ended before what it held was saved: {what}"
            return
        self._note_gone(worker, what, said)
        if worker.status == WorkerStatus.FINISHED:
            if failed or code or hung or (signal and signal != KILLED):
                self._loss = self._loss or f"{worker.id} failed after the run had finished: {what}"
            return
        if code == 0 and not failed:
            return  # its script came to its end
        place = worker.node, worker.local_rank
        one = ended(said, failed, place=place, lived_s=now_s - worker.started_s)
        follows = self._endings.follows(now_s, one)
        if isinstance(follows, Replace):
            self._replace(now_s, worker, follows.after_s)
            return
        trace = failed.trace if failed else ""
        self._bug(now_s, worker, one, follows, trace)

    def _replace(self, now_s: float, worker: Worker, after_s: float) -> None:
        if after_s == 0:
            self._start((worker.node, worker.local_rank))
            return
        self._later[worker.node, worker.local_rank] = now_s + after_s
        text = f"another worker takes the place of {worker.id} in {after_s:.0f} s: it was killed as the last ones there"
        self._tell(worker.node, Status(text=text))

    def _bug(self, now_s: float, worker: Worker, ended: Ended, bug: Bug, trace: str) -> None:
        """A restart does not help."""
        farthest = max((member.step for member in self._members()), default=0)
        cannot_join = not worker.was_member or (ended.step or 0) < farthest
        if cannot_join and self.generation > 0 and (self._workers or self._awaited):
            why = f"{worker.id} cannot join ({bug}); the run goes on without it"
            self._tell(worker.node, Status(text=why))
        else:
            self._repeated = True
            self._end(now_s, f"{bug.in_a_line if trace else bug}\n{trace}".rstrip())

    def _note_gone(self, worker: Worker, cause: str, exited: Exited) -> None:
        facts = {"t": exited.t, "step": exited.step, "stuck_s": exited.stuck_s}
        if worker.status not in (WorkerStatus.LEAVING, WorkerStatus.FINISHED):
            self._gone = [*self._gone[-_GONE_MAX + 1 :], {"worker": worker.id, "cause": cause, **facts}]

    def _start(self, place: Slot) -> None:
        node, local_rank = place
        if node in self._nodes and not self._finished and self._ending is None:
            self._awaited.append(place)
            self._tell(node, Start(local_rank=local_rank))

    def _end(self, now_s: float, why: str) -> None:
        if self._ending is None:
            self._ending, self._ending_since_s = why, now_s

    def follows(self, now_s: float) -> list[Order]:
        """What follows from all that was heard."""
        self._takeover.begin(now_s)
        if self._handed_over:
            orders, self._orders = self._orders, []
            return [order for order in orders if order.worker is None]
        if self._reported:
            self._move_on()
        if not self._run_ended:
            self._decide(now_s)
        if self._put:
            for part in OnBoard.of(self.generation, self._put):
                self._say_all(self._members(), part)
            self._put = {}
        if self._roster_changed:
            self._tell_roster()
        orders, self._orders = self._orders, []
        return [order for order in orders if order.worker is None or order.worker in self._workers]

    def _decide(self, now_s: float) -> None:
        self._act_on(now_s, self._hangs.goes_by(now_s, ending=self._ending is not None))
        for place in [place for place, at_s in self._later.items() if now_s >= at_s]:
            del self._later[place]
            self._start(place)
        running = [worker for worker in self._members() if worker.status == WorkerStatus.MEMBER]
        if self._forms_under_another and not self._awaits_others(now_s):
            # What they told each other to form their group may be lost with that hub.
            self._forms_under_another = False
            self._broken |= not self._has_met()
        gone = any(id not in self._workers and not self._comes(now_s, id) for id in self._view)
        if running and (gone or self._broken or self._ending is not None):
            self._tell_broken(now_s, running)
        if self._ending is not None:
            ends_s = now_s - self._ending_since_s
            waits = running and ends_s <= self._ending_s
            if not waits and (ends_s > 2 * self._ending_s or not self._saves_at_the_end()):
                self._finish(failed=True, why=self._ending)
            return
        newcomers = self._newcomers()
        if running:
            self._ask_to_regroup(now_s, running, newcomers)
            if any(now_s - leaver.since_s > _LEAVER_S for leaver in self._leavers()):
                self._sees_off([], go_on=False)
            return
        if self._anybody() and (self._awaits_others(now_s) or not self._may_go_on(now_s)):
            return
        if self._sees_off(newcomers, go_on=True):
            return  # somebody saves what nobody else holds
        survivors = self._survivors()
        if survivors or (newcomers and self._gathered(now_s, newcomers, self._start_s)):
            self._form(now_s, survivors, newcomers)
        elif self._begun and not self._members() and (self._finished or not self._anybody()):
            self._finish(failed=self._loss is not None, why=self._loss or "")

    def _comes(self, now_s: float, id: str) -> bool:
        """Whether that worker of the view may be on a node that has not come to this hub yet."""
        node = self._view_nodes.get(id, "")
        return id not in self._workers and node not in self._nodes and self._takeover.may_come(now_s, node)

    @property
    def _next_generation(self) -> int:
        return max(self.generation, self._takeover.above) + 1

    def _awaits_others(self, now_s: float) -> bool:
        waits = self._takeover.waits(now_s, self._nodes, knows_a_view=self.generation > 0)
        return waits or any(self._comes(now_s, id) for id in self._view)

    def _may_go_on(self, now_s: float) -> bool:
        """Nobody trains here: whether nobody does elsewhere either, who would be in our way."""
        survivors = {worker.id: worker.node for worker in self._survivors() if worker.has_a_step}
        verdict = self._going_on.verdict(now_s, self._nodes, holding=set(survivors.values()))
        if isinstance(verdict, GoOn) or (isinstance(verdict, NeedsClaim) and not survivors):
            self._stays = None
            return True  # newcomers claim the run's storage as they begin from it
        if isinstance(verdict, NeedsClaim):
            ask = self._going_on.asks(now_s, self._next_generation, survivors)
            if ask is not None:
                words = TakeClaim(
                    generation=ask.generation,
                    nodes=sorted(ask.nodes),
                    beacon=self._beacon,
                    claim=self._going_on.claim,
                )
                self._say(self._workers[ask.worker], words)
            self._wait_at_most(now_s, verdict.why)
        if isinstance(verdict, Stay):
            self._stay(now_s, verdict.why)
        elif isinstance(verdict, str) and self._stays is None:
            self._stays = verdict
            self._tell_people(f"{verdict}; the run's storage is asked who goes on")
        return False

    def _stay(self, now_s: float, why: str) -> None:
        if self._stays is None:
            self._tell_people(f"the run stands still: {why}\n  next  it goes on once they are back")
        self._stays = why
        self._wait_at_most(now_s, why)

    def _wait_at_most(self, now_s: float, why: str) -> None:
        if self._going_on.waits_s(now_s) > self._below_min_s:
            self._end(
                now_s,
                f"for {self._below_min_s:.0f} s the run could not go on: {why}\n"
                f"  found  {self._storage_said or 'nobody who was missing came'}\n"
                "  state  what was done is saved by those who are here, if the storage lets them\n"
                "  next   see to the nodes and to the run's storage; the same command goes on from what is saved",
            )

    def _survivors(self) -> list[Worker]:
        return [worker for worker in self._members() if worker.status == WorkerStatus.BETWEEN_VIEWS]

    def _leavers(self) -> list[Worker]:
        """Those that wait for an answer."""
        return [worker for worker in self._members() if worker.status == WorkerStatus.LEAVING and not worker.released]

    def _anybody(self) -> bool:
        return bool(self._workers or self._awaited or self._later)

    def _sees_off(self, newcomers: list[Worker], *, go_on: bool) -> bool:
        """Answers those who wait to leave. Returns whether all others wait for one that saves first.

        go_on  nobody trains any more
        """
        while leavers := self._leavers():
            survivors = self._survivors()
            parting = see_off(
                [worker.holder() for worker in leavers],
                [worker.holder() for worker in survivors],
                go_on=go_on and self._enough_nodes((*survivors, *newcomers)),
                saved=self._saved,
            )
            self._release(parting.go, safe=True)
            self._release(parting.lost, safe=False)
            if parting.stays is not None:
                self._workers[parting.stays].status = WorkerStatus.BETWEEN_VIEWS
            elif parting.saves is not None:
                self._ask_to_save(parting.saves)
                return True
        return False

    def _saves_at_the_end(self) -> bool:
        """Whether one of those who are left saves what it holds, before all go."""
        holders = [worker.holder() for worker in (*self._leavers(), *self._survivors())]
        parting = see_off(holders, [], go_on=False, saved=self._saved)
        if parting.saves is not None:
            self._ask_to_save(parting.saves)
        return parting.saves is not None

    def _ask_to_save(self, id: str, *, waits: bool = False) -> None:
        worker, asked = self._workers[id], (self.generation, waits)
        if worker.asked_to_save != asked:
            worker.asked_to_save = asked
            self._say(worker, Save(generation=self.generation, claim=self._going_on.claim, waits=waits))

    def _enough_nodes(self, there: Iterable[Worker]) -> bool:
        """For a view; a run that is finished needs none but those who are left."""
        return self._finished or len({worker.node for worker in there}) >= self._nodes_min

    def _newcomers(self) -> list[Worker]:
        """Those that are ready to join, node by node. A run that is finished needs none."""
        ready = [
            worker for worker in self._workers.values() if worker.status == WorkerStatus.READY and not self._finished
        ]
        place = {node: index for index, node in enumerate(self._nodes)}
        return sorted(ready, key=lambda worker: (place[worker.node], worker.local_rank))

    def _ask_to_regroup(self, now_s: float, running: list[Worker], newcomers: list[Worker]) -> None:
        """Members go on until a boundary that they agree on. Once per view."""
        room = min(worker.shares for worker in running) > len(self._members())
        short = len({worker.node for worker in running}) < self._nodes_min
        if newcomers and room and not self._asked and (short or self._gathered(now_s, newcomers, self._gather_s)):
            self._asked = True
            self._say_all(running, Regroup(generation=self.generation))

    def _form(self, now_s: float, survivors: list[Worker], newcomers: list[Worker]) -> None:
        """Nobody trains: the next view, if there are nodes enough.

        Newcomers count as there even if they cannot join yet: then the survivors finish their step without them.
        """
        there = (*survivors, *newcomers)
        nodes = len({worker.node for worker in there})
        if not self._enough_nodes(there):
            self._wait_for_nodes(now_s, there, survivors)
            return
        waited_s = now_s - min(worker.since_s for worker in there)
        if self.generation == 0 and nodes < self._nodes_first and waited_s < self._start_s:
            return
        if not survivors:
            self._endings.goes_back()  # to what is saved
        if self._stands_still(now_s, survivors):
            self._decide(now_s)
            return
        holders = [worker for worker in survivors if worker.has_a_step]
        if holders:  # who has not received the state from them before the view broke joins as a newcomer
            for worker in survivors:
                worker.status = worker.status if worker.has_a_step else WorkerStatus.READY
            survivors, newcomers = holders, self._newcomers()
        chosen = next_view([worker.candidate() for worker in survivors], [worker.candidate() for worker in newcomers])
        self._publish(now_s, [self._workers[candidate.worker] for candidate in chosen])
        self._decide(now_s)

    def _stands_still(self, now_s: float, survivors: list[Worker]) -> bool:
        """Whether another view would end as those before it did. Called once per view that was left."""
        if not self._broken or len(self._view) < 2 or len(survivors) < len(self._view):
            return False
        step = self._endings.farthest
        self._standstill = self._standstill.broken(self._view, step)
        if self._standstill.is_one:
            doing = "".join(f"  {worker.id} on {worker.node}: {worker.at}\n" for worker in survivors)
            self._end(
                now_s,
                f"{self._standstill.views} views in a row broke at step {step}, and no worker was lost\n"
                f"{doing}"
                "  state  what was done is saved by the worker that is farthest, if its state is whole\n"
                "  next   the workers' own lines say what their exchanges failed of: a network that drops connections "
                "between\n         them, say, or an exchange that takes longer than timeout_s",
            )
        return self._standstill.is_one

    def _gathered(self, now_s: float, newcomers: list[Worker], patience_s: float) -> bool:
        """Whether newcomers need not wait for more of them: nobody is starting, or they waited long enough."""
        starting = any(
            worker.status in (WorkerStatus.STARTING, WorkerStatus.DIFFERENT) for worker in self._workers.values()
        )
        waited_s = now_s - min(worker.since_s for worker in newcomers)
        return not (starting or self._awaited) or waited_s >= patience_s

    def _wait_for_nodes(self, now_s: float, there: Iterable[Worker], survivors: list[Worker]) -> None:
        needed, nodes = self._nodes_min, sorted({worker.node for worker in there})
        if self._short_since_s is None:
            self._short_since_s, self._short_said = now_s, False
        elif now_s - self._short_since_s > _SHORT_S and not self._short_said:
            self._short_said = True
            text = f"{len(nodes)} of at least {needed} nodes are here ({', '.join(nodes)}); waiting for the others"
            self._tell_people(text)
            self._save_for_the_wait(survivors)
        elif now_s - self._short_since_s > self._below_min_s:
            self._end(
                now_s,
                f"{len(nodes)} of at least {needed} nodes were here for {self._below_min_s:.0f} s\n"
                f"  found  {', '.join(nodes)}\n"
                "  state  what was done is saved\n"
                "  next   start the missing nodes with the same command, allow fewer with --nnodes=MIN:MAX, or wait "
                "longer\n         with --wait-for-nodes=SECONDS",
            )

    def _save_for_the_wait(self, survivors: list[Worker]) -> None:
        """However long it is, nothing is nowhere but in memory: those who are here may be all that hold it.

        It is asked of the next coordinator, for it goes on saving; where others are ahead of it, of nobody.
        """
        parting = see_off([worker.holder() for worker in survivors], [], go_on=False, saved=self._saved)
        if survivors and parting.saves == survivors[0].id:
            self._ask_to_save(parting.saves, waits=True)

    def _publish(self, now_s: float, chosen: list[Worker]) -> None:
        """With it goes who is gone since the last view, and how long the run was short of nodes."""
        self._begun_elsewhere |= self.generation == 0 and self._takeover.above > 0
        self.generation = self._next_generation
        gone, self._gone = self._gone, []
        short_s = now_s - self._short_since_s if self._short_since_s is not None else 0.0
        self._short_since_s = None
        self._takeover.published()
        self._broken = self._asked = False
        self._put = {}
        newcomers = not any(worker.has_a_step for worker in chosen)
        unanswered = newcomers and self._going_on.may_be_elsewhere(took_over=self._takeover.is_one)
        witness = self._going_on.publishes(self.generation, {worker.node for worker in chosen}, anew=newcomers)
        if not self._finished:
            self._loss = None
        view = NewView(
            generation=self.generation,
            workers=[worker.id for worker in chosen],
            nodes=[worker.node for worker in chosen],
            local_ranks=[worker.local_rank for worker in chosen],
            one_node=len({worker.node for worker in chosen}) == 1,
            beacon=self._beacon,
            short_s=short_s,
            gone=gone,
            claim=self._going_on.claim,
            witness=witness,
            begun_elsewhere=self._begun_elsewhere,
            unanswered=unanswered,
        )
        self._claim, self._storage_said = number_of(self._going_on.claim), None
        for worker in chosen:
            worker.status, worker.was_member, worker.within = WorkerStatus.MEMBER, True, self.generation
        self._say_all(chosen, view)
        self._view = tuple(worker.id for worker in chosen)
        self._view_nodes = {worker.id: worker.node for worker in chosen}
        self._roster_changed = True
        if self._identity is None:
            self._identity = chosen[0].identity
            for worker in self._newcomers():
                self._compare(worker)

    def _release(self, ids: Iterable[str], *, safe: bool) -> None:
        for worker in [self._workers[id] for id in ids]:
            worker.released, worker.safe = True, safe
            self._say(worker, Released(safe=safe))
            if safe and not self._finished:
                self._loss = None  # the run can go on from what it held

    def _tell_broken(self, now_s: float, running: list[Worker]) -> None:
        gone = [id for id in self._view if id not in self._workers]
        why = f"{', '.join(gone)} {'is' if len(gone) == 1 else 'are'} gone" if gone else "a worker lost a peer"
        to_tell = [worker for worker in running if worker.told_broken != self.generation]
        for worker in to_tell:
            worker.told_broken, worker.since_s = self.generation, now_s
        if to_tell:
            self._say_all(to_tell, Broken(generation=self.generation, why=why))
        silent = [worker for worker in running if now_s - worker.since_s > _SILENT_S]
        if silent and self._complained != self.generation:
            self._complained = self.generation
            who = ", ".join(f"{worker.id} on {worker.node}" for worker in silent)
            text = f"{why}, and the next view waits for {who}: busy between two collectives, saving, or stuck"
            self._tell_people(text)

    def _finish(self, *, failed: bool, why: str) -> None:
        """Tells everyone. What could be saved is saved."""
        self._run_ended, self._failed, self._last_word = True, failed, End(why=why, repeated=self._repeated)
        leavers = self._leavers()
        self._release([worker.id for worker in leavers if worker.step <= self._saved], safe=True)
        self._release([worker.id for worker in leavers if worker.step > self._saved], safe=False)
        ended = (WorkerStatus.FINISHED, WorkerStatus.LEAVING)
        self._say_all([worker for worker in self._workers.values() if worker.status not in ended], self._last_word)
        for node in self._nodes:
            self._tell(node, RunIsOver(failed=failed, why=why))
        for node in sorted(self._refused):
            self._tell(node, RunIsOver(failed=failed, why=_OVER))

    def _members(self) -> list[Worker]:
        """Those of the present view that live, in rank order."""
        return [self._workers[id] for id in self._view if id in self._workers]

    def _say(self, worker: Worker, said: ToWorker) -> None:
        self._say_all([worker], said)

    def _say_all(self, workers: Iterable[Worker], said: ToWorker) -> None:
        """One message, which the orders share: those of a node travel together (hub_here.py)."""
        message = as_message(said)
        self._orders += [Order(worker.node, worker.id, message) for worker in workers]

    def _tell(self, node: str, said: ToAgent) -> None:
        self._orders.append(Order(node, None, as_message(said)))

    def _tell_people(self, text: str) -> None:
        """Where the agent of the node that has been here for longest prints it."""
        self._tell(next(iter(self._nodes)), Status(text=text))
