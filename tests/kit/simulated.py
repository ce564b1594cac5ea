"""A run of `elastic run` without processes: the real hub and rules, and nodes that obey their protocol.

Messages wait in queues for as long as chance wants, in order per channel; hubs, nodes and workers are lost at any
moment. What a node and its workers do is simulated_node.py's.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from elastic.membership.hub.hub import Hub
from elastic.membership.hub.orders import Order
from elastic.membership.messages.messages import TO_AGENT, TO_HUB, TO_WORKER, parse
from elastic.membership.messages.wire import Message
from elastic.membership.succession.node_report import NodeReport
from tests.kit.simulated_group import Group
from tests.kit.simulated_node import SAVING, Node, Worker

LEAVE_S = 60.0
REFUSAL = "the run is over"
GIVES_UP_S = 5.0  # who waits for a place


class World:
    """slots: workers per node, by node name; the first node has the hub, until it is lost or leaves.

    met    so many nodes, before there was a hub
    watch  is told what the hub orders   moved: that there is another hub
    """

    def __init__(
        self,
        seed: int,
        slots: dict[str, int],
        *,
        shares: int = 8,
        has_run: bool = True,
        met: int = 0,
        watch: Callable[[World, list[Order]], None],
        moved: Callable[[World], None] = lambda world: None,
        **hub: Any,
    ) -> None:
        self.random = random.Random(seed)
        self.shares, self.has_run = shares, has_run
        self.bug_at: int | None = None
        self.others = False  # whether newcomers differ from the run, and accept it
        self.hub = Hub(**hub)
        self.hub.have_met([[node, "10.0.0.1", 1] for node in list(slots)[:met]])
        self._rules = hub
        self.replica_size: int = hub.get("replica_size", 1)
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
        for name, count in slots.items():
            self.comes(name, count)

    def chance(self, p: float) -> bool:
        return self.random.random() < p

    def identity(self, worker: Worker) -> str:
        return f"other {worker.id}" if self.others and self.hub.generation > 0 else "the run's"

    def saved(self, step: int) -> None:
        assert step >= self.storage, f"step {step} was saved after step {self.storage}"
        self.storage = step

    def comes(self, name: str, slots: int) -> None:
        node = self.nodes[name] = Node(name)
        self.gone.discard(name)
        node.slots = slots
        node.up.append(self._hello(name, slots))
        node.requests.extend(range(slots))

    def hub_moves(self) -> None:
        """Its node was lost, or leaves: what was on its way is lost, and the others come to another one."""
        name, departed = self.hub_at, self.nodes[self.hub_at].leaving
        node = self.nodes.pop(name)
        self.gone.add(name)
        node.leaving |= node.over is None
        for worker in node.workers.values():
            worker.ends(None, "SIGKILL") if worker.alive else None
        self.told_exited |= self._all_of(node)
        if self.nodes:
            self._hub_begins_at(list(self.nodes.values()))
            self._orders(self.hub.without(self.now_s, name, departed=departed))
            self._all_come_to_it(self.gone - {name} if departed else self.gone)

    def _hub_begins_at(self, nodes: list[Node]) -> None:
        """At one of these."""
        self.hubs += 1
        of_the_run = [node for node in nodes if node.waits_until_s is None]
        for node in nodes if not of_the_run else ():
            self._gives_up(node)
        self.hub_at = self.random.choice(of_the_run or nodes).name
        self.hub = Hub(takes_over=True, **self._rules)
        self.hub.expect(node.name for node in of_the_run if node.over is None)
        self._moved(self)

    def _all_come_to_it(self, gone: set[str]) -> None:
        """gone: whose machines refuse connections"""
        for name in gone:
            self._orders(self.hub.lost(self.now_s, name, dead=True))
        for other in self.nodes.values():
            other.up.clear()
            other.down.clear()
            other.before = self._all_of(other)
            if other.over is not None:
                continue
            self._says_hello(other)

    def _says_hello(self, node: Node) -> None:
        """To a hub that it comes to from another one, or once more."""
        hello = self._hello(node.name, 0 if node.leaving else node.slots)
        node.up.append({**hello, "starting": list(node.requests), "report": node.report.document()})

    def _hello(self, name: str, slots: int) -> Message:
        size = self.replica_size
        return {"say": "hello", "node": name, "slots": slots, "address": name, "port": 1, "replica_size": size}

    def _moved_on(self, node: Node) -> None:
        """What its workers hold is of no use any more: it comes again, with others. If it has the hub, that ends."""
        for worker in node.workers.values():
            worker.ends(None, "SIGKILL") if worker.alive else None
        self.told_exited |= self._all_of(node)
        node.before = self._all_of(node)
        node.workers.clear()
        node.requests.clear()
        node.up.clear()
        node.down.clear()
        node.report = node.report.without_workers()
        if node.name == self.hub_at:
            self._hub_begins_at([other for other in self.nodes.values() if other is not node] or [node])
            self._all_come_to_it(self.gone)
        else:
            self._says_hello(node)

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
        assert not any(worker.local_rank == local_rank for worker in node.workers.values()), "a slot is taken"
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
        in_order = code == 0 and (worker.id in {id for _, id in self.leaving_in} or worker.finished)
        if in_order or (code == 0 and not worker.is_ready):
            return
        self._ends_replica(node, worker)

    def _ends_replica(self, node: Node, lost: Worker) -> None:
        """What is left of it is killed, and told of at once; its slots that are to be filled are not."""
        slots = [slot for slot in node.requests if slot // self.replica_size == lost.replica]
        for slot in slots if self.replica_size > 1 else ():
            node.requests.remove(slot)
            node.tells("unstarted", local_rank=slot)
        for mate in [one for one in node.workers.values() if one.replica == lost.replica]:
            mate.departed |= lost.departed
            for message in mate.up:
                node.tells(**{**message, "worker": mate.id})
            mate.ends(None, "SIGKILL") if mate.alive else None
            del node.workers[mate.id]
            node.tells(
                "exited",
                worker=mate.id,
                step=mate.at_step,
                code=None,
                signal="SIGKILL",
                hung=False,
                expected=mate.expected,
                with_replica=True,
            )

    def _ordered(self, node: Node, order: Order) -> None:
        node.report.note_ordered(order.worker, parse(TO_AGENT if order.worker is None else TO_WORKER, order.message))
        if order.worker is not None:
            assert self.every[order.worker].node is node
            if order.worker in node.workers:
                node.workers[order.worker].down.append(order.message)
        elif order.message["say"] == "start":
            first = order.message["local_rank"]
            for local_rank in range(first, first + self.replica_size):
                if node.leaving or node.over is not None:
                    node.tells("unstarted", local_rank=local_rank)
                else:
                    node.requests.append(local_rank)
        elif order.message["say"] == "take_note":
            node.tells("noted", number=order.message["number"])
        elif order.message["say"] == "full" and node.over is None and not node.leaving:
            self._waits(node)
        elif order.message["say"] == "roster" and node.over is None:
            node.admitted, node.waits_until_s = True, None
        elif order.message["say"] == "moved_on" and node.over is None:
            self._moved_on(node)
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
            self._gives_up(node)
            return
        self._says_hello(node)

    def _gives_up(self, node: Node) -> None:
        """No place came free, as far as it has heard."""
        node.over, node.waits_until_s = {"say": "no place"}, None
        node.requests.clear()
        for worker in node.workers.values():
            worker.ends(None, "SIGKILL") if worker.alive else None

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
