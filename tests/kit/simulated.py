"""A run of `elastic run` without processes: the real hub and rules, and agents and workers that obey their protocol.

A worker is a generator that follows elastic/run.py and session.py: every `yield` is a moment at which it may be
killed, stopped or told something. Collectives know who has given what, so that workers which disagree on what comes
next are caught, not left waiting. Messages wait in queues for as long as chance wants, in order per channel.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Generator
from typing import Any

from elastic.loop.transfer import Standing, roles
from elastic.membership.endings import AGAIN
from elastic.membership.hub import Hub
from elastic.membership.messages import TO_AGENT, TO_HUB, TO_WORKER, parse
from elastic.membership.node_report import NodeReport
from elastic.membership.orders import Order
from elastic.membership.rules import BOUNDARY
from elastic.membership.wire import Message

Moments = Generator[None, None, Any]

LEAVE, REGROUP, SAVE = 1, 2, 4
STEPS, EVALUATE_EVERY, SAVE_EVERY = 9, 3, 2
LEAVE_S = 60.0
COLLECTIVES = ("standings", "claim", "side_state", "transfer", "exchange", "evaluation", "save", "finish", "leave")
SAVING = "saving"  # a trap, too: it kills a worker that has begun to save
REFUSAL = "the run is over"
GIVES_UP_S = 5.0  # who waits for a place


class Lost(Exception):
    """elastic.errors.PeerLost"""


class Ended(Exception):
    """membership.live.RunEnded"""


class Exit(Exception):
    def __init__(self, code: int, error: str | None = None) -> None:
        super().__init__(code)
        self.code, self.error = code, error


class Group:
    """A view's connections. A collective gives everyone's values, or fails once somebody has hung up."""

    def __init__(self, members: list[str]) -> None:
        self.members = members
        self.hung_up: set[str] = set()
        self.rounds: list[tuple[str, dict[str, Any]]] = []
        self.stands: dict[str, object] = {}  # once it has formed

    def give(self, at: int, name: str, worker: str, value: Any) -> dict[str, Any]:
        if at == len(self.rounds):
            self.rounds.append((name, {}))
        assert self.rounds[at][0] == name, f"{worker} is in {name!r} and others are in {self.rounds[at][0]!r}"
        self.rounds[at][1][worker] = value
        return self.rounds[at][1]


class Worker:
    def __init__(self, world: World, node: Node, local_rank: int, number: int) -> None:
        self.world, self.node, self.local_rank = world, node, local_rank
        self.id = f"{node.name}-{number}"
        self.up: deque[Message] = deque()
        self.down: deque[Message] = deque()
        self.moments = self.life()
        self.alive, self.stopped, self.hung, self.expected, self.is_ready = True, False, False, False, False
        self.exit: tuple[int | None, str | None] = (None, None)
        self.left = False  # by its own will, or as it was told: nobody replaces it
        self.leave = self.raises = self.breaks = self.quits = self.cannot_save = False
        # membership/live.py
        self.view: Message | None = None
        self.generation = self.broken = self.regroup = 0
        self.board: dict[tuple[int, str], str] = {}
        self.released: Message | None = None
        self.other = False
        self.asked = 0
        self.asked_waits = False
        self.end: Message | None = None
        # elastic/run.py
        self.group: Group | None = None
        self.round = 0
        self.step = -1
        self.agreed: list[int] | None = None
        self.agreements: list[str] = []
        self.wished = 0
        self.updating = False
        self.at_boundary = True
        self.needed = False
        self.evaluations = 0
        self.finished = False

    def say(self, say: str, **facts: Any) -> None:
        self.up.append({"say": say, **facts})

    def hear(self, message: Message) -> None:
        match message["say"]:
            case "view":
                self.view = message
            case "board":
                assert message["generation"] >= self.generation
                self.board.update(((message["generation"], key), value) for key, value in message["entries"].items())
            case "broken":
                self.broken = max(self.broken, message["generation"])
                if self.broken >= self.generation:
                    self.sever()
            case "regroup":
                self.regroup = message["generation"]
            case "identity":
                self.other = True
            case "released":
                self.released = message
            case "leave":
                self.leave = True
            case "end":
                self.end = message
                self.sever()
            case "save":
                self.asked, self.asked_waits = message["generation"], message["waits"]
            case say:
                raise AssertionError(say)

    def sever(self) -> None:
        if self.group is not None:
            self.group.hung_up.add(self.id)

    def collective(self, name: str, value: Any = None) -> Moments:
        group, at = self.group, self.round
        assert group is not None
        self.round += 1
        if self.id in group.hung_up:
            raise Lost
        given = group.give(at, name, self.id, value)
        while True:
            yield
            if self.id in group.hung_up:
                raise Lost
            whole, lost = len(given) == len(group.members), bool(group.hung_up)
            if lost and (not whole or self.world.chance(0.5)):
                raise Lost
            if whole:
                self.world.springs(name, group)
                return [given[member] for member in group.members]

    def life(self) -> Moments:
        try:
            yield from self.script()
            self.ends(0)
        except Exit as exit:
            if exit.error is not None:
                self.say("failed", error=exit.error, trace="", step=self.at_step)
            self.ends(exit.code)

    def ends(self, code: int | None, signal: str | None = None) -> None:
        self.alive, self.exit = False, (code, signal)
        self.sever()

    @property
    def at_step(self) -> int | None:
        return max(self.step, 0) if self.generation > 0 else None

    def computes(self) -> Moments:
        for _ in range(self.world.random.randrange(1, 4)):
            yield
            if self.raises or self.world.bug_at == self.step:
                self.world.exceptions += 1
                number = 0 if self.world.bug_at == self.step else self.world.exceptions
                raise Exit(1, f"Error{number}: something")
            if self.quits:
                self.left = True
                raise Exit(0)

    def script(self) -> Moments:
        if not self.world.has_run:
            return (yield from self.computes())
        for _ in range(self.world.random.randrange(1, 6)):
            yield
        self.say("ready", shares=self.world.shares, identity=self.world.identity(self), accepted=False)
        self.is_ready = True
        yield from self.enters_first()
        self.finished = self.step >= STEPS
        while not self.finished:
            yield from self.one_step()
            if self.step % EVALUATE_EVERY == 0:
                self.evaluations += 1
                yield from self.agree(f"evaluation {self.evaluations}", "evaluating")
            self.at_boundary = True
            if self.breaks:
                yield from self.goes(lost=True, joins=False)
                return
            yield from self.boundary()
        yield from self.agree("finish", "finishing")
        self.say("finished", step=self.step)
        for _ in range(self.world.random.randrange(3)):
            yield

    def one_step(self) -> Moments:
        index = self.step
        while True:
            yield from self.computes()
            self.wished = (LEAVE if self.leave else 0) | (REGROUP if self.regroup >= self.generation > 0 else 0)
            self.wished |= SAVE if self.world.chance(0.1) else 0
            try:
                wishes = yield from self.collective(f"exchange {index}", self.wished)
                break
            except Lost:
                yield from self.next_view(f"in the exchange of step {index}", lost=True)
                if self.step > index:
                    return
        self.updating, self.at_boundary = True, False
        yield
        if self.raises:
            self.world.exceptions += 1
            raise Exit(1, f"Error{self.world.exceptions}: in the update")
        self.step += 1
        self.updating = False
        self.evaluations = 0
        self.agreed, self.agreements = wishes, []

    def boundary(self) -> Moments:
        assert self.agreed is not None
        leaving = [wish for wish in self.agreed if wish & LEAVE]
        wishes = 0
        for wish in self.agreed:
            wishes |= wish
        self.finished = self.step >= STEPS
        if self.finished:
            return
        if leaving and len(leaving) == len(self.agreed):
            yield from self.agree("save", "saving")
            yield from self.agree("leave", "saving on leaving")
            self.says_leaving(saved=True)
            self.leaves_for_good()
        if wishes & SAVE or self.step % SAVE_EVERY == 0:
            yield from self.agree("save", "saving")
            if self.coordinates:
                yield from self.saves()
        if leaving or wishes & REGROUP:
            yield from self.regroups(leaves=bool(self.wished & LEAVE))

    def regroups(self, *, leaves: bool) -> Moments:
        while "regroup" not in self.agreements:
            yield from self.agree("to regroup", "regrouping")
            if "regroup" in self.agreements:
                return
            if leaves:
                if (yield from self.goes(lost=self.needed)):
                    self.leaves_for_good()
                self.needed = True
            else:
                self.agreements.append("regroup")
            yield from self.next_view(BOUNDARY, lost=False)

    def goes(self, *, lost: bool = False, joins: bool = True) -> Moments:
        """Whether it may; else it is in the next view."""
        self.says_leaving(saved=False, lost=lost, joins=joins)
        while True:
            if self.released is not None:
                if not self.released["safe"]:
                    self.left = True
                    raise Exit(1)
                self.left = True
                return True
            if self.end is not None:
                raise Exit(1)
            if self.asked == self.generation:
                yield from self.saves_for_all()
            elif self.view is not None and self.view["generation"] > self.generation:
                assert joins
                return False
            yield

    def says_leaving(self, *, saved: bool, lost: bool = False, joins: bool = True) -> None:
        assert not saved or self.world.storage >= self.step, (
            f"{self.id} leaves with step {self.step}, which is not saved"
        )
        holds = {"whole": self.is_whole, "torn": self.updating, "joins": joins}
        self.say("leaving", generation=self.generation, step=self.step, saved=saved, lost=lost, **holds)
        self.world.leaving_in.add((self.generation, self.id))

    def leaves_for_good(self) -> None:
        """As if all were well."""
        self.left = True
        raise Exit(0)

    @property
    def is_whole(self) -> bool:
        return self.at_boundary and not self.updating

    @property
    def coordinates(self) -> bool:
        return self.group is not None and self.group.members[0] == self.id

    def saves(self) -> Moments:
        assert self.is_whole
        step = self.step
        self.world.springs_at_save(self)
        yield
        if self.cannot_save:
            self.world.exceptions += 1
            raise Exit(1, f"Error{self.world.exceptions}: cannot save")
        self.world.saved(step)

    def saves_for_all(self) -> Moments:
        if self.asked_waits and self.cannot_save:
            self.asked = 0
            return
        yield from self.saves()
        self.asked = 0
        self.say("saved", generation=self.generation, step=self.step)

    def agree(self, name: str, doing: str) -> Moments:
        while name not in self.agreements:
            try:
                if name in ("leave", "finish") and self.coordinates:
                    yield from self.saves()
                yield from self.collective(f"{name} after {self.step}")
                self.agreements.append(name)
            except Lost:
                yield from self.next_view(doing, lost=True)

    def next_view(self, at: str, *, lost: bool) -> Moments:
        while True:
            if lost:
                self.sever()
            self.says_over(at, lost=lost)
            try:
                yield from self.enters(holds=True)
                return
            except Lost:
                lost = True
            except Ended:
                raise Exit(AGAIN) from None

    def says_over(self, at: str, *, lost: bool) -> None:
        whole = self.is_whole and self.step >= 0
        self.say(
            "view_is_over",
            generation=self.generation,
            step=self.step,
            at=at,
            lost=lost,
            whole=whole,
            torn=self.updating,
        )
        self.world.over_at[self.generation, self.id] = at

    def enters_first(self) -> Moments:
        while True:
            try:
                return (yield from self.enters())
            except Lost:
                self.sever()
                self.says_over(BOUNDARY, lost=True)
            except Ended:
                raise Exit(AGAIN) from None

    def enters(self, *, holds: bool = False) -> Moments:
        while self.view is None or self.view["generation"] <= self.generation:
            if self.end is not None:
                raise Ended
            if holds and self.asked == self.generation:
                yield from self.saves_for_all()
            elif holds and self.leave and self.world.chance(0.02):  # it has waited long enough
                if (yield from self.goes()):
                    self.leaves_for_good()
                continue
            if self.other:
                self.other = False
                self.say("ready", shares=self.world.shares, identity=self.world.identity(self), accepted=True)
            yield
        if self.end is not None:
            raise Ended
        self.generation = self.view["generation"]
        members: list[str] = self.view["workers"]
        self.say("put", generation=self.generation, key=self.id, value="eA==")
        while not all((self.generation, member) in self.board for member in members):
            if self.broken >= self.generation or self.end is not None:
                raise Lost
            yield
        self.group = self.world.groups.setdefault((self.generation, *members), Group(members))
        self.round = 0
        if self.broken >= self.generation:
            self.sever()
        step = self.step if self.step >= 0 else None
        rewinds = not self.world.chance(self.world.strands)
        standing = Standing(step=step, agreements=len(self.agreements), torn=self.updating, rewinds=rewinds)
        standings = yield from self.collective("standings", standing)
        self.say("entered", generation=self.generation)
        parts = roles(standings)
        rank = members.index(self.id)
        if parts is None:
            self.step = (yield from self.collective("claim", self.world.storage))[0]
        elif parts.need_side_state:
            if parts.stranded:
                raise Exit(AGAIN) if rank in parts.stranded else Lost
            words = yield from self.collective("side_state", (self.step, self.agreed, list(self.agreements)))
            if parts.need_state:
                yield from self.collective("transfer") if rank in parts.need_state else self.gives("transfer")
            if rank in parts.need_side_state:
                step, self.agreed, agreements = words[parts.donors[0]]
                self.evaluations = self.evaluations if step == self.step else 0
                self.step, self.agreements, self.updating = step, list(agreements), False
        assert not self.updating
        self.group.stands[self.id] = (self.step, self.agreements[:], self.agreed)
        assert all(self.group.stands[self.id] == other for other in self.group.stands.values()), self.group.stands

    def gives(self, name: str) -> Moments:
        """A donor's part: it does not wait for those that receive."""
        assert self.group is not None
        if self.id in self.group.hung_up:
            raise Lost
        self.group.give(self.round, name, self.id, None)
        self.round += 1
        yield


class Node:
    """An agent, with its connection to the hub."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.report = NodeReport()
        self.up: deque[Message] = deque()
        self.down: deque[Order] = deque()
        self.requests: deque[int] = deque()
        self.workers: dict[str, Worker] = {}
        self.places = 0
        self.before: set[str] = set()  # its workers so far, when it came to another hub
        self.leaving = False
        self.admitted = True
        self.over: Message | None = None
        self.deadline_s = float("inf")
        self.waits_until_s: float | None = None  # for a place

    def tells(self, say: str, **facts: Any) -> None:
        """The hub, whichever it will be when it is heard."""
        message = {"say": say, **facts}
        self.report.note_said(parse(TO_HUB, message))
        self.up.append(message)

    @property
    def done(self) -> bool:
        nobody = not (self.workers or self.requests or self.up)
        return nobody and (self.leaving or (self.over is not None))


class World:
    """places: workers per node, by node name; the first node has the hub, until it is lost or leaves.

    watch  is told what the hub orders   moved: that there is another hub
    """

    def __init__(
        self,
        seed: int,
        places: dict[str, int],
        *,
        shares: int = 8,
        has_run: bool = True,
        watch: Callable[[World, list[Order]], None],
        moved: Callable[[World], None] = lambda world: None,
        **hub: Any,
    ) -> None:
        self.random = random.Random(seed)
        self.chance: Callable[[float], bool] = lambda p: self.random.random() < p
        self.shares, self.has_run = shares, has_run
        self.bug_at: int | None = None
        self.others = False  # whether newcomers differ from the run, and accept it
        self.hub = Hub(**hub)
        self._rules = hub
        self.hub_at = "node0"
        self.hubs = 1
        self.gone: set[str] = set()
        self._moved = moved
        self.now_s = 0.0
        self.nodes: dict[str, Node] = {}
        self.every: dict[str, Worker] = {}
        self.groups: dict[tuple[object, ...], Group] = {}
        self.over_at: dict[tuple[int, str], str] = {}
        self.leaving_in: set[tuple[int, str]] = set()  # who has said so, in which generation
        self.told_exited: set[str] = set()
        self.storage = 0
        self.exceptions = 0
        self.verdicts: list[Message] = []
        self.trap: str | None = None
        self.strands = 0.0  # how likely a state cannot be rewound
        self.stopped_at: set[int | None] = set()
        self.moments = 0
        self._heard = False
        self._watch = watch
        for name, count in places.items():
            self.comes(name, count)

    def identity(self, worker: Worker) -> str:
        return f"other {worker.id}" if self.others and self.hub.generation > 0 else "the run's"

    def saved(self, step: int) -> None:
        assert step >= self.storage, f"step {step} was saved after step {self.storage}"
        self.storage = step

    def comes(self, name: str, places: int) -> None:
        node = self.nodes[name] = Node(name)
        self.gone.discard(name)
        node.places = places
        node.up.append({"say": "hello", "node": name, "places": places, "address": name, "port": 1})
        node.requests.extend(range(places))

    def hub_moves(self) -> None:
        """Its node was lost, or leaves: what was on its way is lost, and the others come to another one."""
        name, left = self.hub_at, self.nodes[self.hub_at].leaving
        node = self.nodes.pop(name)
        self.gone.add(name)
        node.leaving |= node.over is None
        for worker in node.workers.values():
            worker.ends(None, "SIGKILL") if worker.alive else None
        self.told_exited |= self._all_of(node)
        if not self.nodes:
            return
        self.hubs += 1
        of_the_run = [other for other in self.nodes.values() if other.waits_until_s is None]
        for other in self.nodes.values() if not of_the_run else ():
            other.over, other.waits_until_s = {"say": "no place"}, None
        self.hub_at = self.random.choice(of_the_run or list(self.nodes.values())).name
        self.hub = Hub(takes_over=True, **self._rules)
        self.hub.expect(other.name for other in of_the_run if other.over is None)
        self._moved(self)
        self._orders(self.hub.without(self.now_s, name, left=left))
        for gone in self.gone - {name} if left else self.gone:  # whose machines refuse connections
            self._orders(self.hub.lost(self.now_s, gone, dead=True))
        for other in self.nodes.values():
            other.up.clear()
            other.down.clear()
            other.before = self._all_of(other)
            if other.over is not None:
                continue
            places = 0 if other.leaving else other.places
            hello = {"say": "hello", "node": other.name, "places": places, "address": other.name, "port": 1}
            other.up.append({**hello, "starting": list(other.requests), "report": other.report.document()})

    def _all_of(self, node: Node) -> set[str]:
        """Its workers, those that have ended included."""
        return {id for id, worker in self.every.items() if worker.node is node}

    def lost(self, name: str) -> None:
        """The agent is gone, and its workers with it. What it said last may be lost on the way."""
        if name == self.hub_at:
            self.hub_moves()
            return
        node = self.nodes.pop(name)
        self.gone.add(name)
        node.leaving |= node.over is None
        for worker in node.workers.values():
            worker.ends(None, "SIGKILL") if worker.alive else None
        for _ in range(self.random.randrange(len(node.up) + 1)):
            self._told(node, node.up.popleft())
        self.told_exited |= self._all_of(node)
        self._orders(self.hub.lost(self.now_s, name))

    def leaves(self, node: Node) -> None:
        """SIGTERM to an agent, or the run is over."""
        if node.deadline_s == float("inf"):
            node.deadline_s = self.now_s + LEAVE_S
        while node.requests:
            node.tells("unstarted", local_rank=node.requests.popleft())
        for worker in node.workers.values():
            worker.expected = True
            if worker.is_ready:
                worker.down.append({"say": "leave"})
            elif worker.alive:
                worker.ends(None, "SIGTERM")

    def springs(self, name: str, group: Group) -> None:
        """A trap kills one worker after it has given its part: some get through this collective, and some do not."""
        if self.trap is not None and name.startswith(self.trap):
            self.trap = None
            victim = self.every[self.random.choice(group.members)]
            victim.ends(None, "SIGKILL") if victim.alive else None

    def springs_at_save(self, worker: Worker) -> None:
        if self.trap == SAVING:
            self.trap = None
            worker.ends(None, "SIGKILL")

    def workers(self) -> list[Worker]:
        return [worker for node in self.nodes.values() for worker in node.workers.values()]

    @property
    def over(self) -> bool:
        return all(node.over is not None and node.done for node in self.nodes.values())

    def moment(self) -> None:
        """Something happens somewhere."""
        self.moments += 1
        if not self.nodes:
            return
        chance, node = self.random.random(), self.random.choice(list(self.nodes.values()))
        if node.done and (node.name != self.hub_at or node.leaving):
            self.lost(node.name)
            return
        if chance < 0.05:
            self.now_s += self.random.choice([0.01, 0.1, 0.5])
            self._late(node)
            self._orders(self.hub.tick(self.now_s))
        elif node.waits_until_s is not None and not (node.over or node.leaving or node.up) and chance < 0.1:
            self._asks_again(node)
        elif chance < 0.25:
            if node.up:
                self._told(node, node.up.popleft())
        elif chance < 0.45:
            if node.down:
                self._ordered(node, node.down.popleft())
        elif chance < 0.5 and node.requests:
            self._started(node, node.requests.popleft())
        elif node.workers:
            worker = self.random.choice(list(node.workers.values()))
            chance = self.random.random()
            if worker.up and chance < 0.4:
                node.tells(**{**worker.up.popleft(), "worker": worker.id})
            elif worker.down and chance < 0.6:
                message = worker.down.popleft()
                worker.hear(message) if worker.alive else None
            elif not worker.alive:
                self._reaped(node, worker)
            elif worker.stopped:
                if self.chance(0.05):
                    worker.hung = True
                    worker.ends(None, "SIGKILL")
            else:
                next(worker.moments, None)

    def _late(self, node: Node) -> None:
        if self.now_s > node.deadline_s:
            for worker in node.workers.values():
                worker.ends(None, "SIGKILL") if worker.alive else None

    def _started(self, node: Node, local_rank: int) -> None:
        assert not any(worker.local_rank == local_rank for worker in node.workers.values()), "a place is taken"
        worker = Worker(self, node, local_rank, len(self.every))
        self.every[worker.id] = node.workers[worker.id] = worker
        node.tells("started", worker=worker.id, local_rank=local_rank)

    def _reaped(self, node: Node, worker: Worker) -> None:
        for message in worker.up:
            node.tells(**{**message, "worker": worker.id})
        del node.workers[worker.id]
        code, signal = worker.exit
        how = {"code": code, "signal": signal, "hung": worker.hung, "expected": worker.expected}
        node.tells("exited", worker=worker.id, step=worker.at_step, **how)

    def _ordered(self, node: Node, order: Order) -> None:
        node.report.note_ordered(order.worker, parse(TO_AGENT if order.worker is None else TO_WORKER, order.message))
        if order.worker is not None:
            assert self.every[order.worker].node is node
            if order.worker in node.workers:
                node.workers[order.worker].down.append(order.message)
        elif order.message["say"] == "start":
            if node.leaving or node.over is not None:
                node.tells("unstarted", local_rank=order.message["local_rank"])
            else:
                node.requests.append(order.message["local_rank"])
        elif order.message["say"] == "full" and node.over is None and not node.leaving:
            self._waits(node)
        elif order.message["say"] == "roster" and node.over is None:
            node.admitted, node.waits_until_s = True, None
        elif order.message["say"] == "run_is_over" and node.over is None:
            node.over = order.message
            node.admitted = order.message["why"] != REFUSAL
            self.leaves(node)

    def _waits(self, node: Node) -> None:
        """The run is full: its workers end, and it asks again for a while."""
        if node.waits_until_s is None:
            node.admitted, node.waits_until_s = False, self.now_s + GIVES_UP_S
            node.requests.clear()
            for worker in node.workers.values():
                worker.ends(None, "SIGKILL") if worker.alive else None
            node.report = NodeReport()

    def _asks_again(self, node: Node) -> None:
        alone = all(one.waits_until_s is not None for one in self.nodes.values())
        if alone or self.now_s > (node.waits_until_s or 0.0):
            node.over, node.waits_until_s = {"say": "no place"}, None
            return
        hello = {"say": "hello", "node": node.name, "places": node.places, "address": node.name, "port": 1}
        node.up.append({**hello, "starting": list(node.requests), "report": node.report.document()})

    def _told(self, node: Node, message: Message) -> None:
        if message["say"] == "exited":
            self.told_exited.add(message["worker"])
        elif message.get("report") is not None:
            reported = {worker["worker"] for worker in message["report"]["workers"]}
            self.told_exited |= node.before - reported
        self.hub.hear(self.now_s, node.name, parse(TO_HUB, message))
        self._heard = True
        if self.chance(0.7):  # else more comes with it
            self._settle()

    def _settle(self) -> None:
        if self._heard:
            self._heard = False
            self._orders(self.hub.follows(self.now_s))

    def _orders(self, orders: list[Order]) -> None:
        self._watch(self, orders)
        overs = [order.message for order in orders if order.message["say"] == "run_is_over"]
        self.verdicts += [over for over in overs if over["why"] != REFUSAL]
        for order in orders:
            if order.node in self.nodes:
                self.nodes[order.node].down.append(order)
