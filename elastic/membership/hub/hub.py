"""Decides, for all nodes, which workers form which view. A state machine without sockets, processes or a clock.

    workers say "ready" or "view_is_over"; agents say "started" and "exited"
      ->  everyone who can be in the next view has answered, or is proven to be gone
      ->  one "view" to each of its workers, with the next generation

There is one hub at a time: in the agent of the first node, and when that is lost or leaves, in that of the next node of
its roster, which learns of the run from what the agents report. Only views tell a worker who is lost: it acts on
nothing but what it is told here and on the failure of its own collectives.

Here what is said is handed to whom it concerns, each a file of this room (`__init__.py` names them), and the next view
follows from what they all know.

Who says what, when, and what follows is one table: docs/internals/protocol.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from elastic.membership.hub.admission import WITHOUT, Admission
from elastic.membership.hub.claiming import Claiming
from elastic.membership.hub.hang_watch import EndRun, Finding, HangWatch, KillIt, RepeatedBreaks, TellPeople
from elastic.membership.hub.joining import Joining, Runs, newest_of
from elastic.membership.hub.nodes import Nodes
from elastic.membership.hub.orders import Order, Outbox
from elastic.membership.hub.release import Release
from elastic.membership.hub.replacements import Replacements
from elastic.membership.hub.run_end import OVER, RunEnd, Shortage
from elastic.membership.hub.takeover import Reports, Takeover
from elastic.membership.hub.worker_group import WorkerGroup
from elastic.membership.hub.workers import Worker, Workers, WorkerStatus
from elastic.membership.messages.messages import (
    TO_HUB,
    Broken,
    Bye,
    Claimed,
    Entered,
    Exited,
    Failed,
    Finished,
    GroupForms,
    HasRead,
    Hello,
    KillHung,
    Leaving,
    MovedOn,
    NewView,
    Noted,
    OnBoard,
    Ping,
    Put,
    Ready,
    RunIsOver,
    Saved,
    Sighted,
    Started,
    ToHub,
    Unstarted,
    ViewIsOver,
    Witness,
    parse,
)
from elastic.membership.messages.wire import Message, WireError
from elastic.membership.rules.endings import Endings
from elastic.membership.rules.next_view import next_view, replicas
from elastic.membership.succession.going_on import GoingOn
from elastic.membership.succession.node_report import number_of

_OF_AGENTS = (Started, Unstarted, Sighted, Noted, Bye, GroupForms, Ping)
_NOT_LOST_MAX = 256  # of those not in the next view that it names: with more, a status counts some of them as lost
_SILENT_S = 10.0  # a member that has not answered "broken" by then is named
_COMES_S = 5.0  # a node that has met the others has so long to come, once a worker is ready: it takes a second


class Hub:
    """Decides one run's views, from what agents and workers say.

    nodes_min     below it, those included who wait to join, no view is formed: the run waits, then ends
    nodes_max     how many nodes the run has at once; one more waits for a place
    replica_size  so many workers of a node hold one copy of the state together
    restarts_max  see endings.py; window_s: for how long a restart counts
    liveness        what goes into every view for whoever claims the run's storage
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
        replica_size: int = 1,
        restarts_max: int = 3,
        window_s: float = 3600.0,
        liveness: Message | None = None,
        gather_s: float = 0.3,
        start_s: float = 120.0,
        below_min_s: float = 600.0,
        ending_s: float = 60.0,
        stall_s: float = 600.0,
        takes_over: bool = False,
    ) -> None:
        self._nodes_min = nodes_min
        self._start_s, self._gather_s, self._below_min_s = start_s, gather_s, below_min_s
        self._ending_s, self._stall_s = ending_s, stall_s
        self._restarts_max, self._window_s = restarts_max, window_s
        self._liveness = liveness
        self._nodes = Nodes(nodes_max)
        self._workers = Workers(replica_size)
        self._out = Outbox(self._nodes)
        self._group = WorkerGroup(self._nodes, self._workers, self._out, restarts_max=restarts_max)
        self._runs = Runs()
        self._complained = 0  # in which generation
        self._know_nothing(Takeover(takes_over))

    def _know_nothing(self, takeover: Takeover, endings: Endings | None = None) -> None:
        """Forget all but who is here, for the run that comes. endings: kept where it is the same run once more."""
        nodes, workers, out, liveness, wait_s = self._nodes, self._workers, self._out, self._liveness, self._below_min_s
        self._takeover = takeover
        self._end = end = RunEnd(self._ending_s)
        self._endings = endings or Endings(restarts_max=self._restarts_max, window_s=self._window_s)
        self._going_on = going_on = GoingOn()
        self._hangs = HangWatch(self._stall_s)
        self._repeated_breaks = RepeatedBreaks()
        self._shortage = shortage = Shortage(end, out, needed=self._nodes_min, wait_s=wait_s)
        self._replacements = Replacements(self._endings, nodes, workers, end, out)
        self._release = Release(workers, going_on, shortage, end, out)
        self._joining = Joining(nodes, workers, going_on, shortage, end, self._runs, out, gather_s=self._gather_s)
        self._claiming = Claiming(
            going_on, nodes, workers, end, out, liveness=liveness, wait_s=wait_s, takes_over=takeover.is_one
        )
        self._reports = Reports(
            takeover, nodes, workers, going_on, self._endings, self._joining, self._runs, end, out, liveness=liveness
        )
        self._admission = Admission(
            nodes, workers, self._group, takeover, going_on, self._reports, self._replacements, end, out
        )
        self._begun_elsewhere = False  # nobody has come here who was in a view, and there were some
        self._put: dict[str, str] = {}  # on the board of the present view, and nobody was told yet

    @property
    def generation(self) -> int:
        return self._workers.generation

    def receive(self, now_s: float, node: str, message: Message) -> list[Order]:
        """Hear a message; return the orders that follow from all that was heard. Raises as `hear` and `parse` do."""
        self.hear(now_s, node, parse(TO_HUB, message))
        return self.follows(now_s)

    def hear(self, now_s: float, node: str, said: ToHub) -> None:
        """Take a message of that node's agent or of one of its workers, without deciding what follows.

        For messages that come together that is decided once, as it takes as long as there are workers.
        Raises WireError, having done nothing, for what is said for another node.
        """
        if isinstance(said, Hello):
            self._admission.hello(now_s, node, said)
        elif node in self._nodes and (isinstance(said, _OF_AGENTS) or self._workers.is_of(node, said.worker)):
            self._heard(now_s, node, said)

    def _heard(self, now_s: float, node: str, said: ToHub) -> None:
        """Hand a message to the part of this hub that it concerns."""
        match said:
            case Started():
                self._on_started(now_s, node, said)
            case Unstarted(local_rank=local_rank):
                self._nodes.has_answered((node, local_rank))
            case Ready():
                self._group.enters_run()
                self._joining.ready(now_s, said)
            case ViewIsOver():
                if self._workers.view_is_over(said):
                    self._endings.applied(said.step)
            case Leaving():
                self._on_leaving(now_s, said)
            case Saved(worker=worker, generation=generation, step=step):
                if generation == self._workers[worker].within:
                    self._end.is_saved(step)
            case Finished():
                self._workers[said.worker].status = WorkerStatus.FINISHED
                self._end.finishes()
            case Failed():
                self._workers[said.worker].failed = said
            case Sighted():
                self._on_sighted(now_s, node, said)
            case Put(generation=generation, key=key, value=value):
                if generation == self.generation:
                    self._put[key] = value
            case Entered(generation=generation):
                self._going_on.met(generation, node)
            case Witness():
                self._on_witness(said)
            case HasRead(claim=claim):
                self._going_on.has_read(node, claim)
            case Noted(number=number):
                self._going_on.noted(node, number)
            case Claimed():
                self._move_on(self._claiming.heard(now_s, said), said.why)
            case GroupForms():
                self._group.forms(now_s)
            case Bye():
                self._going_on.departs(node)
                self.loses(node, dead=False)
            case Exited():
                self._on_exited(now_s, said)

    def lost(self, now_s: float, node: str, *, dead: bool = True) -> list[Order]:
        """Note the loss of a node, as `loses` does, and return the orders that follow."""
        self.loses(node, dead=dead)
        return self.follows(now_s)

    def loses(self, node: str, *, dead: bool, refuses: bool = False) -> None:
        """Note that an agent is not to be reached any more: its workers are gone, or go on elsewhere.

        What follows from all that are lost together is decided once.

        dead     its process has ended, as the kernel of this machine says, which is its own
        refuses  its machine does not take connections for it, or something in between says so
        """
        self._takeover.lost(node)
        self._group.goes(node)
        self._going_on.is_away(node)
        self._nodes.is_lost(node)
        if dead:
            self._going_on.dead(node)
        if refuses:
            self._going_on.refuses(node)
        if node in self._nodes:
            here = self._workers.of(node)
            awaited = self._nodes.goes(node)
            self._nodes.changed = True
            self._replacements.forget(node)
            if not self._end.finished and (awaited or not all(worker.safe for worker in here)):
                self._end.loss = f"{node} was lost, and nobody is left"
            # also where it is back before this turn ends
            self._workers.broken |= any(worker.id in self._workers.view for worker in here)
            for worker in here:
                self._workers.note_gone(worker, "its node was lost", Exited(worker=worker.id))
                self._forget_worker(worker)

    def without(self, now_s: float, node: str, *, departed: bool) -> list[Order]:
        """Wait no more for a node, and return the orders that follow. departed: it has said that it goes."""
        if departed:
            self._going_on.departs(node)
        else:
            self._group.hub_is_lost()
        return self.lost(now_s, node, dead=False)

    def hands_over(self, now_s: float, node: str) -> list[Order]:
        """Hand over, as this hub's node leaves: nothing is decided any more, and whoever comes is told where to go."""
        self._going_on.departs(node)
        self.loses(node, dead=False)
        next_hub = self._nodes.next_hub()
        orders = self.follows(now_s)
        self._admission.next_hub = next_hub
        return orders

    def have_met(self, nodes: Sequence[Sequence[Any]]) -> None:
        """Wait a while for those who met before this hub was there, with no view known; any may become the hub.

        nodes  of each [name, address, port], in the order in which they do
        """
        self._nodes.have_met(nodes)
        self._takeover.before_any_view = bool(nodes)

    def expect(self, nodes: Iterable[str]) -> None:
        """Wait for these nodes after a takeover, if they come soon: what they know is needed."""
        self._takeover.expect(nodes)

    def missing(self) -> list[str]:
        """Return the nodes that the run may not go on without, as far as is known here."""
        return sorted(self._going_on.missing(self._nodes))

    def tick(self, now_s: float) -> list[Order]:
        """Return the orders that follow from time alone."""
        return self.follows(now_s)

    # nodes and workers

    def _move_on(self, nodes: Iterable[str], why: str) -> None:
        """Tell these nodes that they have no part in the run any more, and forget them."""
        for node in nodes:
            self._out.tell(node, MovedOn(why=why))
            self._forget(node)

    def _forget(self, node: str) -> None:
        """Drop a node that has no part in the run any more, with its workers."""
        self._nodes.goes(node)
        self._group.goes(node)
        self._replacements.forget(node)
        for worker in self._workers.of(node):
            self._forget_worker(worker)
        self._going_on.is_away(node)
        self._takeover.lost(node)

    def _on_started(self, now_s: float, node: str, said: Started) -> None:
        """Add a worker that has started. Raises WireError where its id is taken."""
        if said.worker in self._workers:
            raise WireError(f"a worker {said.worker} is there already, of {self._workers[said.worker].node}")
        self._workers.add(Worker(said.worker, node, said.local_rank, since_s=now_s, started_s=now_s))
        self._nodes.has_answered((node, said.local_rank))
        self._end.begun = True

    def _on_leaving(self, now_s: float, said: Leaving) -> None:
        """Note that a worker waits to leave; leaving.py says what becomes of it once nobody trains."""
        if self._workers.leaving(now_s, said):
            self._endings.applied(said.step)
            if said.saved:
                self._end.is_saved(said.step)

    def _on_witness(self, said: Witness) -> None:
        """Note the run's claim, as a worker of the present view has it."""
        if said.generation == self.generation:
            self._going_on.witness(said.claim, agreed=said.agreed)
            self._workers.claim, self._begun_elsewhere = number_of(said.claim), False

    def _on_sighted(self, now_s: float, node: str, said: Sighted) -> None:
        """Note what an agent has seen of its workers, and do what the watch for hangs finds by it."""
        self._hangs.saw(now_s, [one for one in said.workers if self._workers.is_of(node, one.worker)])
        members = replicas(self._workers.members(), self._workers.replica_size)
        groups = [[worker.id for worker in replica] for replica in members]
        self._act_on(now_s, self._hangs.look(now_s, groups, ending=self._end.why is not None))

    def _act_on(self, now_s: float, findings: Iterable[Finding]) -> None:
        """Act on what the watch for hangs has found."""
        for found in findings:
            match found:
                case KillIt(sighting=sighting, why=why):
                    worker = self._workers[sighting.worker]
                    self._out.tell(worker.node, KillHung(worker=worker.id, sign=sighting.sign, why=why))
                case TellPeople(text=text):
                    self._out.tell_people(text)
                case EndRun(why=why):
                    self._end.begins(now_s, why)

    def _on_exited(self, now_s: float, said: Exited) -> None:
        worker = self._workers[said.worker]
        self._forget_worker(worker)
        self._going_on.worker_ended(worker.id)
        if not self._group.takes(worker, said):
            self._replacements.ended(now_s, worker, said)

    def _forget_worker(self, worker: Worker) -> None:
        self._workers.remove(worker.id)
        self._hangs.forget(worker.id)

    # what follows

    def follows(self, now_s: float) -> list[Order]:
        """Decide what follows from all that was heard, and return the orders."""
        self._takeover.begin(now_s)
        if self._admission.next_hub is not None:
            return [order for order in self._out.take() if order.worker is None]  # nothing is decided any more
        self._move_on(self._reports.moved_on_from(), WITHOUT)
        if not self._end.is_over:
            self._decide(now_s)
        if self._put:
            for part in OnBoard.of(self.generation, self._put):
                self._out.say_all(self._workers.members(), part)
            self._put = {}
        if self._nodes.changed:
            self._admission.tell_roster()
        return [order for order in self._out.take() if order.worker is None or order.worker in self._workers]

    def _decide(self, now_s: float) -> None:
        """Find out whether workers train on, save, wait, form the next view or end."""
        self._act_on(now_s, self._hangs.goes_by(now_s, ending=self._end.why is not None))
        self._replacements.start_due(now_s)
        self._look_at_group(now_s)
        running = self._workers.running()
        self._reports.settle(now_s)
        self._claiming.look(now_s)
        gone = any(id not in self._workers and not self._reports.comes(now_s, id) for id in self._workers.view)
        if running and (gone or self._workers.broken or self._end.why is not None):
            self._tell_broken(now_s, running)
        if self._end.why is not None:
            waits = running and not self._end.is_due(now_s)  # workers have a while to come to a boundary, and to save
            if not waits and (self._end.is_overdue(now_s) or not self._release.saves_at_the_end()):
                self._finish(failed=True, why=self._end.text(self._endings.farthest))
            return
        newcomers = self._joining.newcomers()
        if running:
            self._joining.ask_to_regroup(now_s, running, newcomers)
            self._release.while_others_train(now_s)
            return
        if self._anybody() and not self._may_go_on(now_s):
            return
        if self._release.before_next_view(newcomers):
            return  # somebody saves what nobody else holds
        if not self._reports.awaits_others(now_s) and (self._joining.is_next_due() or self._is_cut_off()):
            self._begin_run(now_s)
            self._decide(now_s)
            return
        survivors = self._workers.survivors()
        if survivors or (newcomers and self._joining.gathered(now_s, newcomers, self._start_s)):
            self._form(now_s, survivors, newcomers)
        elif self._end.begun and not self._workers.members() and (self._end.finished or not self._anybody()):
            self._finish(failed=self._end.loss is not None, why=self._end.loss or "")

    def _look_at_group(self, now_s: float) -> None:
        """Have all start again, if they are run as torchrun runs them and their world has changed."""
        awaits_others = not self._takeover.to_come(now_s).issubset(self._nodes)
        self._group.look(now_s, self._replacements, self._shortage, self._end, awaits_others=awaits_others)

    def _is_cut_off(self) -> bool:
        """Return whether the run is finished, and all who were in it were killed before their script's end."""
        return self._end.finished and not self._anybody() and self._replacements.are_all_killed

    def _begin_run(self, now_s: float) -> None:
        """Begin the script's next run, or a finished one once more, if nobody came to the script's end."""
        takeover, ended = Takeover(False), self._replacements.ended_after
        takeover.above = self._takeover.above
        is_next = self._joining.is_next_due()
        self._runs.present = None
        self._workers.begin_run(now_s)
        self._know_nothing(takeover, None if is_next else self._endings)
        self._end.begun = True
        for worker, exited in ended:
            self._replacements.is_lost(now_s, worker, exited)
        self._joining.begins()

    def _anybody(self) -> bool:
        """Return whether there are workers, or some are to come."""
        coming = self._nodes.awaits_workers or self._replacements.are_due or self._group.stopping
        return bool(len(self._workers) or coming)

    @property
    def _next_generation(self) -> int:
        return max(self.generation, self._takeover.above) + 1

    def _may_go_on(self, now_s: float) -> bool:
        """Return whether no node is awaited any more, and nobody may train elsewhere who would be in our way."""
        return not self._reports.awaits_others(now_s) and self._claiming.may_go_on(now_s, self._next_generation)

    def _holders(self, survivors: Sequence[Worker]) -> list[Worker]:
        """Return those that have received the state, with all of their replica."""
        return self._workers.whole([worker for worker in survivors if worker.has_a_step])

    def _chosen(self, survivors: Sequence[Worker], newcomers: Sequence[Worker]) -> list[Worker]:
        """Return the workers of the next view in rank order, as next_view.py has it."""
        holders = self._holders(survivors)
        if holders and len(holders) < len(survivors):
            # who had not received the state from the others before the last view broke is a newcomer
            holding = {worker.id for worker in holders}
            newcomers = self._joining.newcomers([worker for worker in survivors if worker.id not in holding])
        going_on = [worker.candidate() for worker in holders or survivors]
        chosen = next_view(
            going_on, [worker.candidate() for worker in newcomers], replica_size=self._workers.replica_size
        )
        return [self._workers[candidate.worker] for candidate in chosen]

    def _form(self, now_s: float, survivors: list[Worker], newcomers: list[Worker]) -> None:
        """Form the next view, if there are nodes enough, now that nobody trains."""
        # newcomers count even if they cannot join yet: then the survivors finish their step without them
        there = (*survivors, *newcomers)
        nodes = {worker.node for worker in there}
        if not self._shortage.enough(nodes):
            if self._shortage.waits(now_s, nodes):
                self._release.save_for_the_wait(survivors)
            return
        waited_s = now_s - min(worker.since_s for worker in there)
        if self.generation == 0 and self._nodes.to_come and waited_s < _COMES_S:
            return  # some of those who have met have not come yet
        chosen = self._chosen(survivors, newcomers)
        if not self._claiming.is_noted(now_s, self._next_generation, {worker.node for worker in chosen}):
            return
        if not survivors:
            self._endings.goes_back()  # to what is saved
        if self._stands_still(now_s, survivors):
            self._decide(now_s)
            return
        holders = {worker.id for worker in self._holders(survivors)}
        for worker in survivors:
            if holders and worker.id not in holders:
                worker.status, worker.step = WorkerStatus.READY, -1
        self._publish(now_s, chosen)
        self._decide(now_s)

    def _stands_still(self, now_s: float, survivors: Sequence[Worker]) -> bool:
        """Return whether another view would end as those before it did. Called once per view that was left."""
        view = self._workers.view
        if not self._workers.broken or len(view) < 2 or len(survivors) < len(view):
            return False
        self._repeated_breaks = self._repeated_breaks.broken(view, self._endings.farthest)
        if self._repeated_breaks.is_one:
            doing = [f"{worker.id} on {worker.node}: {worker.at}" for worker in survivors]
            self._end.begins(now_s, self._repeated_breaks.sentence(doing))
        return self._repeated_breaks.is_one

    def _publish(self, now_s: float, chosen: list[Worker]) -> None:
        """Publish the next view, and in it who is gone, who went and was not lost, and how long nodes were short."""
        self._begun_elsewhere |= self.generation == 0 and self._takeover.above > 0
        generation, nodes = self._next_generation, frozenset(worker.node for worker in chosen)
        members = {worker.id for worker in chosen}
        newcomers = not any(worker.has_a_step for worker in chosen)
        unanswered = newcomers and self._going_on.may_be_elsewhere(took_over=self._takeover.is_one)
        witness = self._going_on.publishes(generation, nodes, anew=newcomers)
        not_lost = [id for id in self._workers.not_lost(self._going_on.departed) if id not in members]
        view = NewView(
            generation=generation,
            workers=[worker.id for worker in chosen],
            nodes=[worker.node for worker in chosen],
            local_ranks=[worker.local_rank for worker in chosen],
            one_node=len(nodes) == 1,
            liveness=self._liveness,
            short_s=self._shortage.is_over(now_s),
            not_lost=not_lost[:_NOT_LOST_MAX],
            gone=self._workers.take_gone(),
            claim=self._going_on.claim,
            witness=witness,
            begun_elsewhere=self._begun_elsewhere,
            unanswered=unanswered,
            run=newest_of(chosen[0].runs),
            replica_size=self._workers.replica_size,
        )
        self._out.say_all(chosen, view)
        self._runs.present = view.run
        self._workers.publish(generation, chosen, number_of(self._going_on.claim), nodes)
        self._takeover.published()
        self._claiming.published()
        self._joining.published(chosen)
        self._end.goes_on()
        self._nodes.changed = True
        self._put = {}

    def _tell_broken(self, now_s: float, running: Sequence[Worker]) -> None:
        """Tell those who train that their view is broken; tell people who does not answer."""
        gone = [id for id in self._workers.view if id not in self._workers]
        why = f"{', '.join(gone)} {'is' if len(gone) == 1 else 'are'} gone" if gone else "a worker lost a peer"
        to_tell = [worker for worker in running if worker.broken_sent != self.generation]
        for worker in to_tell:
            worker.broken_sent, worker.since_s = self.generation, now_s
        if to_tell:
            self._out.say_all(to_tell, Broken(generation=self.generation, why=why))
        silent = [worker for worker in running if now_s - worker.since_s > _SILENT_S]
        if silent and self._complained != self.generation:
            self._complained = self.generation
            who = ", ".join(f"{worker.id} on {worker.node}" for worker in silent)
            text = f"{why}, and the next view waits for {who}: busy between two collectives, saving, or stuck"
            self._out.tell_people(text)

    def _finish(self, *, failed: bool, why: str) -> None:
        """Tell everyone that the run is over. What could be saved is saved."""
        self._end.comes(failed=failed, why=why)
        self._release.at_the_end()
        ended = (WorkerStatus.FINISHED, WorkerStatus.LEAVING)
        self._out.say_all([worker for worker in self._workers if worker.status not in ended], self._end.last_word)
        self._out.tell_all(self._nodes, RunIsOver(failed=failed, why=why))
        self._out.tell_all(sorted(self._nodes.refused), RunIsOver(failed=failed, why=OVER))
