"""A node's agent: the real hub, report and search for the hub, and what launch/hub/link.py and launch/hub/server.py
make of them. What it answers who asks where the hub is, is theirs too (launch/hub/rules.py).

serves   the hub is here             joins    it is elsewhere
seeks    it was lost: the next of the roster is asked, and the next, until one of them is the hub
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from elastic.launch.hub import rules
from elastic.launch.hub.roster_search import RosterSearch
from elastic.launch.hub.rules import EVICT_S, HELD_UP_S
from elastic.membership.hub.hub import Hub
from elastic.membership.hub.orders import Order
from elastic.membership.messages.messages import TO_AGENT, TO_HUB, TO_WORKER, HubIs, as_message, parse
from elastic.membership.succession.node_report import NodeReport
from elastic_checkpoint.net.dialing import Address
from tests.kit.simulated_hosts.calls import Dials, Search
from tests.kit.simulated_hosts.network import Wire
from tests.kit.simulated_hosts.worker import Worker

if TYPE_CHECKING:
    from tests.kit.simulated_hosts.world import World

Message = dict[str, Any]

TICK_S, FINDS_S, SEEK_S, LEAVE_S = 0.2, 10.0, 60.0, 30.0


class _Caller:
    """Who has said hello, or asks where the hub is, while this agent is not the hub."""

    def __init__(self, agent: Agent, wire: Wire) -> None:
        self.agent, self.wire = agent, wire
        self.since_s = agent.now_s
        self.said: list[Message] = []
        self.heard: Callable[[Message], None] | None = None

    def hears(self, message: Message) -> None:
        if self.heard is not None:
            self.heard(message)
            return
        self.said.append(message)
        if len(self.said) > 1:
            return
        if message["say"] == "where_is_the_hub":
            self.wire.say(self.agent.machine, self.agent.where())
        else:
            self.agent.came(self)


class Agent:
    """ended: why this process has ended"""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self.name = name
        self.machine = world.network.machine(name)
        self.machine.dialled = self._dialled
        self.report = NodeReport()
        self.workers: dict[str, Worker] = {}
        self._started = 0
        self.starting = 0
        self.first = True
        self.met: tuple[str, ...] = ()  # before there was a hub, until there is a view
        self._seeker: RosterSearch[Wire] = RosterSearch(
            name, self.own, lambda: Search(self), clock=lambda: self.now_s, within_s=SEEK_S
        )
        self._seeker.open(Dials(self), reached=self._join_hub, serve=self._takes_over, in_vain=self.ends)
        self._is_sent = False  # to somebody who may be the hub
        self.serving: Hub | None = None
        self._attached: dict[str, Wire] = {}
        self.listens: set[str] = set()
        self.at_hub: tuple[str | None, Address, Wire] | None = None
        self._at_hub_since_s = 0.0
        self._welcome = False
        self._callers: list[_Caller] = []
        self._met_s = self._ticked_s = 0.0
        self._orders: deque[Order] = deque()
        self._delivering = False
        self.leaving = self.over = False
        self._handed_over_s: float | None = None
        self.ended: str | None = None
        self.said_to_people: list[str] = []
        self._leave_by_s = float("inf")

    @property
    def own(self) -> Address:
        return self.name, 1

    @property
    def now_s(self) -> float:
        return self._world.network.now_s

    # its life

    def begins(self, at: str | None, *, met: Iterable[str] = ()) -> None:
        """at: the node with the hub   met: see HubLink"""
        self.met = tuple(met)
        if self.met:
            self._seeker.have_met([(name, (name, 1)) for name in self.met])
        if at is None:
            self._serve(takes_over=False)
            self.starts()
        else:
            self.looks_up(at)
        self.machine.after(TICK_S, self._tick)

    def looks_up(self, at: str) -> None:
        """Where the rendezvous, or what lies beside the checkpoints, says that the hub is."""

        def answered(wire: Wire | None, refused: bool) -> None:
            if wire is None and self.met:
                self._is_sent = True
                self._seeker.begin()
            elif wire is None:
                self.ends("the hub that it was sent to refuses")
            elif self._is_sent:
                wire.close(self.machine)
            else:
                self._is_sent = True
                self._seeker.found(wire)

        self.dial(at, answered)
        self.machine.after(FINDS_S, self._gives_up)

    def _gives_up(self) -> None:
        if not self._is_sent and not self._world.finds_hub(self):
            self.ends("no hub is found")

    def dial(self, to: str, answered: Callable[[Wire | None, bool], None]) -> None:
        self._world.network.dial(self.machine, to, answered)

    def hub_of_the_run(self) -> str | None:
        """Elsewhere, as somebody has written."""
        at = self._world.hub_of_the_run()
        return at if at != self.name else None

    def starts(self) -> None:
        self.starting += 1
        self.machine.after(0.3 + 1.5 * self._world.chance.random(), self._spawns)

    def _starts_first(self) -> None:
        """Once it has come to a hub, or is it."""
        if not self._started and not self.starting and (self._seeker.newcomer or self.met):
            self.starts()

    def _spawns(self) -> None:
        if not self.starting:
            return
        self.starting -= 1
        self._started += 1
        worker = Worker(self._world, self, f"{self.name}-{self._started}")
        self.workers[worker.id] = worker
        self.tell({"say": "started", "worker": worker.id, "local_rank": 0})
        self.machine.after(0.05 + 0.2 * self._world.chance.random(), worker.is_up)

    def reaps(self, worker: Worker, code: int | None, signal: str | None) -> None:
        if self.workers.pop(worker.id, None) is None:
            return
        self._drain(worker)
        expected = self.leaving or self.over
        step = max(worker.step, 0) if worker.generation else None
        self.tell(
            {"say": "exited", "worker": worker.id, "code": code, "signal": signal, "expected": expected, "step": step}
        )

    def drains(self) -> None:
        """SIGTERM to this agent."""
        self.leaving = True
        self._leave_by_s = self.now_s + LEAVE_S
        if self.starting:
            self.starting = 0
            self.tell({"say": "unstarted", "local_rank": 0})
        for worker in list(self.workers.values()):
            self._down(worker, {"say": "leave"})

    def ends(self, why: str) -> None:
        """This process."""
        if self.ended is None:
            self.ended = why
            for worker in list(self.workers.values()):
                worker.ends(None, "SIGKILL")
            self.machine.crashes()

    # what its workers say

    def catches_up(self) -> None:
        for worker in list(self.workers.values()):
            self._drain(worker)

    def _drain(self, worker: Worker) -> None:
        while worker.up:
            self.tell(worker.up.popleft())

    def tell(self, message: Message) -> None:
        self.report.note_said(parse(TO_HUB, message))
        if self.serving is not None:
            self._told(self.name, message)
        elif self.at_hub is not None:
            self.at_hub[2].say(self.machine, message)

    def _down(self, worker: Worker, message: Message) -> None:
        self.machine.after(0.001, lambda: worker.hears(message))

    # what the hub says

    def _deliver(self, to: str | None, message: Message) -> None:
        said = parse(TO_AGENT if to is None else TO_WORKER, message)
        self.report.note_ordered(to, said)
        if to is not None:
            if to in self.workers:
                self._down(self.workers[to], message)
            return
        match message["say"]:
            case "roster":
                self._welcome = True
                self.met = () if message["generation"] else self.met
                roster = [(name, (address, port)) for name, address, port in message["nodes"]]
                self._seeker.welcomed(roster)
                if self.at_hub is not None:
                    _, at, wire = self.at_hub
                    self.at_hub = next((name for name, its in roster if its == at), self.at_hub[0]), at, wire
            case "take_note":
                self.tell({"say": "noted", "number": message["number"]})
            case "handover":
                self._seek(departed=True)
            case "hub_is":
                self._sent_elsewhere(message["address"], message["port"])
            case "moved_on":
                self._moved_on()
            case "start":
                if self.leaving or self.over:
                    self.tell({"say": "unstarted", "local_rank": 0})
                else:
                    self.starts()
            case "run_is_over":
                self.over = True
                self._world.ends(self, message)
                for worker in list(self.workers.values()):
                    worker.ends(0)
                self._leave_by_s = self.now_s
            case "status":
                self.said_to_people.append(message["text"])
            case "full":
                raise AssertionError("nobody has set a bound")

    def _moved_on(self) -> None:
        self._world.moved_on.append((self.now_s, self.name))
        self.report, self._seeker.newcomer = self.report.without_workers(), True
        for worker in list(self.workers.values()):
            worker.hears({"say": "moved_on"})
        self.workers = {}
        self.starting = 0
        if self.serving is not None:
            self._steps_down(None)
        self._leave_hub()
        self._seeker.lost = {}
        self._seeker.begin(pause=True)

    # at_hub

    def _join_hub(self, name: str | None, at: Address | None, wire: Wire) -> None:
        address = at or (wire.other(self.machine).name, 1)
        name = name or (address[0] if address[0] in self.met else None)

        def heard(message: Message) -> None:
            if self.at_hub is not None and self.at_hub[2] is wire:
                self._at_hub_since_s = self.now_s
                self._deliver(message.get("to"), {key: value for key, value in message.items() if key != "to"})

        def ended() -> None:
            if self.at_hub is not None and self.at_hub[2] is wire:
                self._seek()

        self._at_hub_since_s, self._welcome = self.now_s, False
        hello = self._hello()
        self.at_hub = name, address, wire
        wire.hears(self.machine, heard, ended)
        wire.say(self.machine, hello)
        self._starts_first()
        self._answer_callers()

    def _hello(self) -> Message:
        self.catches_up()
        report = None if self.first else self.report.document()
        self.first = False
        gone = self.leaving or self.over
        facts = {"slots": 0 if gone else 1, "starting": [0] * self.starting, "report": report}
        return {"say": "hello", "node": self.name, "address": self.name, "port": 1, **facts}

    # seeking

    def _seek(self, *, departed: bool = False) -> None:
        assert self.at_hub is not None
        name, _, _ = self.at_hub
        is_lost = departed or self._welcome or not self.met
        self._leave_hub()
        if self.over:
            return
        if name is not None and is_lost:
            self._seeker.lost[name] = departed
        self._seeker.begin()

    def _sent_elsewhere(self, address: str | None, port: int) -> None:
        assert self.at_hub is not None
        at = self.at_hub[1]
        self._leave_hub()
        if address is not None and (address, port) != at:
            self._seeker.begin_at((address, port))
        else:
            self._seeker.begin(pause=address is None)

    def _leave_hub(self) -> None:
        if self.at_hub is not None:
            self.at_hub[2].close(self.machine)
            self.at_hub = None

    # serving

    def _takes_over(self) -> None:
        self._serve(takes_over=True)

    def _serve(self, *, takes_over: bool) -> None:
        self._seeker.stop()
        self.serving = self._world.hub(self, takes_over=takes_over)
        self.serving.have_met([[name, name, 1] for name in self.met])
        self._attached, self._orders = {}, deque()
        self._handed_over_s = None
        self.listens.update(self._seeker.met)
        if takes_over:
            self._starts_first()
            self._met_s = self.now_s
            self.serving.expect(name for name, _ in self._seeker.roster)
            for node, departed in self._seeker.lost.items():
                self._carry_out(self.serving.without(self.now_s, node, departed=departed))
        self._told(self.name, self._hello())
        self._answer_callers()
        if takes_over and self.serving is not None:
            for node in self.serving.missing():
                self._ask_if_dead(node)
        self._seeker.lost = {}

    def takes(self, node: str, hello: Message, wire: Wire) -> Callable[[Message], None]:
        if node in self._attached:
            self._ended(self._attached[node])
        self._attached[node] = wire
        self.listens.add(node)
        hub = self.serving

        def heard(message: Message) -> None:
            if self.serving is hub and self._attached.get(node) is wire:
                self._told(node, message)

        wire.hears(self.machine, heard, lambda: self._ended(wire))
        self._told(node, hello)
        return heard

    def _ended(self, wire: Wire) -> None:
        node = next((name for name, one in self._attached.items() if one is wire), None)
        if node is None or self.serving is None:
            return
        wire.close(self.machine)
        del self._attached[node]
        self.serving.loses(node, dead=False)
        self._settle()
        self._ask_if_dead(node)

    def _ask_if_dead(self, node: str) -> None:
        hub = self.serving

        def done(wire: Wire | None, refused: bool) -> None:
            if wire is not None:
                wire.close(self.machine)
            elif refused and self.serving is not None and self.serving is hub and node not in self._attached:
                self.serving.loses(node, dead=False, refuses=True)
                self._settle()

        self._world.network.dial(self.machine, node, done)

    def _told(self, node: str, message: Message) -> None:
        assert self.serving is not None
        self.serving.hear(self.now_s, node, parse(TO_HUB, message))
        self._world.passes(message)
        self._settle()

    def _settle(self) -> None:
        """What follows from all that comes within one turn is decided once."""
        hub = self.serving

        def decides() -> None:
            if self.serving is not None and self.serving is hub:
                self._carry_out(self.serving.follows(self.now_s))

        self.machine.after(self._world.chance.choice([0.0, 0.0, 0.01]), decides)

    def _carry_out(self, orders: list[Order]) -> None:
        self._orders.extend(orders)
        if self._delivering:
            return
        self._delivering = True
        serving = self.serving
        while self._orders and self.serving is serving:
            order = self._orders.popleft()
            self._world.ordered(self, order)
            if order.node == self.name:
                self._deliver(order.worker, order.message)
            elif order.node in self._attached:
                self._attached[order.node].say(self.machine, {"to": order.worker, **order.message})
        self._delivering = False

    def _steps_down(self, to: str | None) -> None:
        for wire in self._attached.values():
            wire.say(self.machine, {"to": None, "say": "hub_is", "address": to, "port": 1 if to else 0})
            wire.close(self.machine)
        self._attached, self.serving = {}, None

    def _look_for_another(self) -> None:
        assert self.serving is not None
        if self.now_s - self._met_s < rules.MEET_S:
            return
        self._met_s = self.now_s
        for node in self.serving.missing():
            if node in self.listens:
                self._ask_for_hub(node)

    def _ask_for_hub(self, node: str) -> None:
        def done(wire: Wire | None, refused: bool) -> None:
            if wire is None:
                return

            def heard(message: Message) -> None:
                wire.close(self.machine)
                said = parse(TO_AGENT, {key: value for key, value in message.items() if key != "to"})
                if isinstance(said, HubIs) and said.address is not None and rules.yields_to(said, self.own):
                    self._yields((said.address, said.port))

            wire.hears(self.machine, heard, lambda: wire.close(self.machine))
            wire.say(self.machine, {"say": "where_is_the_hub", "run": ""})

        self._world.network.dial(self.machine, node, done)

    def _yields(self, to: Address) -> None:
        if self.serving is None or not self.serving.missing():
            return
        self._steps_down(to[0])
        self._seeker.begin_at(to, then=self._seeker.candidates())

    # others

    def _dialled(self, wire: Wire) -> None:
        caller = _Caller(self, wire)

        def ended() -> None:
            self._callers = [one for one in self._callers if one is not caller]
            self._ended(wire)
            wire.close(self.machine)

        wire.hears(self.machine, caller.hears, ended)

    def came(self, caller: _Caller) -> None:
        if self.serving is not None:
            hello = caller.said[0]
            caller.heard = self.takes(hello["node"], hello, caller.wire)
            for message in caller.said[1:]:
                caller.heard(message)
        elif self.at_hub is not None and self.now_s - caller.since_s > rules.CALLER_S:
            caller.wire.say(self.machine, self.where((caller.said[0]["address"], caller.said[0]["port"])))
        else:
            self._callers.append(caller)

    def _answer_callers(self) -> None:
        callers, self._callers = self._callers, []
        for caller in callers:
            self.came(caller)

    def where(self, asks: tuple[str | None, int | None] = (None, None)) -> Message:
        where = HubIs()
        if self.serving is not None:
            where = rules.answer_of_the_hub(self.own, missing=bool(self.serving.missing()))
        elif self.at_hub is not None:
            _, at, wire = self.at_hub
            where = rules.answer_of_a_node(at, welcome=self._welcome, silent_s=wire.silent_s(self.machine), asks=asks)
        return {"to": None, **as_message(where)}

    # time

    def _tick(self) -> None:
        self.machine.after(TICK_S * (0.75 + self._world.chance.random() / 2), self._tick)
        if self.now_s - self._ticked_s > HELD_UP_S:
            for wire in self.machine.wires:
                wire.heard_s[self.name] = self.now_s
        self._ticked_s = self.now_s
        if self.serving is not None:
            for node, wire in list(self._attached.items()):
                if wire.silent_s(self.machine) > EVICT_S:
                    wire.close(self.machine)
                    del self._attached[node]
                    self.serving.loses(node, dead=False)
            self._carry_out(self.serving.tick(self.now_s))
        if self.serving is not None:
            self._look_for_another()
        elif self.at_hub is not None:
            self._watch(self.at_hub[2])
        else:
            self._seeker.tick(self.now_s)
        if self.at_hub is None:
            self._seeker.look()
        self._leaves_if_done()

    def _watch(self, wire: Wire) -> None:
        silent_s = wire.silent_s(self.machine) if self._welcome else self.now_s - self._at_hub_since_s
        if rules.is_lost(silent_s, welcome=self._welcome):  # only a hub pings
            self._seek()
        elif any(self.now_s - caller.since_s > rules.CALLER_S for caller in self._callers):
            self._answer_callers()

    def _leaves_if_done(self) -> None:
        if self.now_s > self._leave_by_s:
            for worker in list(self.workers.values()):
                worker.ends(None, "SIGKILL")
        if self.workers or not (self.leaving or self.over):
            return
        if self.over:
            self.ends("the run is over")
            return
        if self.at_hub is not None:
            self.at_hub[2].say(self.machine, {"say": "bye"})
        if self.serving is None or not self._attached:
            self.ends("left")
        elif self._handed_over_s is None:
            self._handed_over_s = self.now_s
            for wire in list(self._attached.values()):
                wire.say(self.machine, {"to": None, "say": "handover"})
            assert self.serving is not None
            self._carry_out(self.serving.hands_over(self.now_s, self.name))
        elif self.now_s - self._handed_over_s > rules.HANDED_OVER_S:
            self.ends("left")
