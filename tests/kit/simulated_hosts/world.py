"""A run on several hosts, and the judge of what its sides do.

Safety    never two sides in one generation: the views in which steps are applied follow each other in one line
          never a side that trains under a claim which is not the newest: its next save would find that it has lost
Liveness  whoever can go on does, within GOES_ON_S of the last fault: where the storage is a witness and answers, some
          side; else the one with a majority of the nodes of the view that trained last. It is no witness of a view with
          a node that had not read it when that was published, as the storage failed: nobody knows that it sees the
          same. It reads it later, and the next view is another
          once all is healed, everybody trains in one view, or has ended
          where nobody may go on, everybody has ended once the run has waited for as long as it waits for nodes
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from elastic.membership.hub.hub import Hub
from elastic.membership.hub.orders import Order
from tests.kit.simulated_hosts.agent import Agent
from tests.kit.simulated_hosts.network import Network
from tests.kit.simulated_hosts.storage import Storage
from tests.kit.simulated_hosts.worker import Group, Worker

BELOW_MIN_S = 90.0
GOES_ON_S = 25.0
REJOINS_S = 45.0
QUICK_S = 1.0  # of a storage's answers: of slower ones nobody is promised when he goes on


@dataclass(frozen=True)
class Trained:
    """A view in which steps were applied."""

    generation: int
    workers: tuple[str, ...]
    nodes: frozenset[str]


@dataclass(frozen=True)
class Published:
    """A view. witnessed: all of its nodes had read the claim in the storage by then, or as it began from there"""

    generation: int
    nodes: frozenset[str]
    witnessed: bool


class World:
    """nodes  names; the first has the hub   witness  all see one storage"""

    def __init__(self, seed: int, nodes: str, *, witness: bool, nodes_min: int = 1) -> None:
        self.chance = random.Random(f"world {seed}")
        self.network = Network(self.chance, (0.001, self.chance.choice([0.02, 0.02, 0.3])))
        self.witness = witness
        self.storage = Storage("for all")
        self._folders: dict[str, Storage] = {}
        self.rejects = False  # whether what resets connections refuses new ones
        self.storage_delays_s = (0.02, 0.2)
        self.storage_fails_s = 3.0
        self._storage_down, self.storage_changed_s = False, 0.0
        self._nodes_min = nodes_min
        self._groups: dict[tuple[Any, ...], Group] = {}
        self.line: list[Trained] = []
        self.trained_s = 0.0
        self._reach: frozenset[str] = frozenset()  # nodes that hold the state of the last step, or have begun since
        self._begun: frozenset[str] = frozenset()  # nodes that have begun from storage since then
        self._have_read: set[tuple[str, int]] = set()  # nodes and claims, in the storage that all see
        self._seeing: set[str] = set()  # nodes that were in a view of which it was the witness
        self._since: set[Published] = set()  # the view that trained last, and those published after it
        self.trap: tuple[str, Callable[[], None]] | None = None  # what happens when this is said next
        self.moved_on: list[tuple[float, str]] = []
        self.over: list[tuple[str, bool, str]] = []
        self.log: list[str] = []
        self.agents = {name: Agent(self, name) for name in nodes}
        for name in nodes:
            self.agents[name].begins(None if name == nodes[0] else nodes[0], met=nodes)

    # what the agents ask for

    def hub(self, agent: Agent, *, takes_over: bool) -> Hub:
        liveness = {"nonce": f"liveness of {agent.name}", "endpoint": {}, "hub": {"host": agent.name, "port": 1}}
        self.log.append(f"{self.network.now_s:7.2f} {agent.name} serves")
        return Hub(
            nodes_min=self._nodes_min,
            nodes_max=16,
            restarts_max=10**6,
            liveness=liveness,
            start_s=20.0,
            below_min_s=BELOW_MIN_S,
            takes_over=takes_over,
        )

    def group(self, view: dict[str, Any]) -> Group:
        key = view["generation"], *view["workers"], view["liveness"]["nonce"]
        return self._groups.setdefault(key, Group(self, view))

    def finds_hub(self, agent: Agent) -> bool:
        """One that has met nobody looks it up again."""
        at = self.hub_of_the_run()
        if at is None or at == agent.name:
            return False
        agent.looks_up(at)
        return True

    def passes(self, message: dict[str, Any]) -> None:
        """Between a hub and somebody else: a trap springs."""
        if self.trap is not None and message["say"] == self.trap[0]:
            (_, act), self.trap = self.trap, None
            self.network.after(self.chance.choice([0.0, 0.05, 1.0]) * self.chance.random(), act)

    def ordered(self, agent: Agent, order: Order) -> None:
        say = order.message["say"]
        self.passes(order.message)
        if say == "view":
            nodes = frozenset(order.message["nodes"])
            number = (order.message["claim"] or {"claim": 0})["claim"]
            witnessed = all(node in self._seeing or (node, number) in self._have_read for node in nodes)
            witnessed &= not self._seeing.isdisjoint(nodes)
            self._since.add(Published(order.message["generation"], nodes, witnessed))
            self._seeing |= nodes if witnessed else set()
        if say in ("view", "claim", "moved_on", "run_is_over", "hub_is", "end"):
            facts = {k: order.message.get(k) for k in ("generation", "workers", "nodes", "why") if k in order.message}
            number = (order.message.get("claim") or {}).get("claim")
            self.log.append(
                f"{self.network.now_s:7.2f} {agent.name} -> {order.worker or order.node}: {say} {facts} {number}"
            )

    def ends(self, agent: Agent, message: dict[str, Any]) -> None:
        self.log.append(f"{self.network.now_s:7.2f} {agent.name} hears that the run is over: {message}")
        self.over.append((agent.name, message["failed"], message["why"]))

    # storage

    def storage_of(self, node: str) -> Storage:
        """What it has for the run's: all nodes one, or each its own."""
        return self.storage if self.witness else self._folders.setdefault(node, Storage(node))

    def reads(self, node: str, claim: int) -> None:
        """A worker of it has, in its storage."""
        if self.witness:
            self._have_read.add((node, claim))

    def agree(self, nodes: Iterable[str]) -> None:
        """That all see one storage."""
        if self.witness:
            self._seeing.update(nodes)

    def storage_answers(self) -> bool:
        return not self._storage_down

    def storage_s(self) -> float:
        low, high = self.storage_delays_s
        return low + (high - low) * self.chance.random()

    def liveness_answers(self, name: str) -> bool:
        storage = self.storage_of(name)
        if not storage.claims:
            return False
        holder = storage.liveness.removeprefix("liveness of ")
        there = self.agents[holder].ended is None and self.network.machines[holder].alive
        return there and self.network.both_ways(name, holder)

    # the judge

    def trains(self, group: Group) -> None:
        now = Trained(group.generation, tuple(group.ids), group.nodes)
        self.trained_s = self.network.now_s
        if not self.line or self.line[-1] != now:
            before = self.line[-1] if self.line else None
            self.log.append(f"{self.network.now_s:7.2f} {now.workers} train in {now.generation}")
            anew = group.from_storage or bool(now.nodes & self._begun)
            if before is not None and not anew and not self._is_gone(before):
                assert now.generation > before.generation, f"{now} trains after {before}"
                assert now.nodes & (before.nodes | self._reach), f"{now} goes on from {before}"
            self.line.append(now)
            self._reach, self._begun = now.nodes, frozenset()
            before_it = [one for one in self._since if (one.generation, one.nodes) == (now.generation, now.nodes)]
            witnessed = now.nodes <= self._seeing if group.from_storage else all(one.witnessed for one in before_it)
            self._since = {Published(now.generation, now.nodes, witnessed)}
        if self.witness:
            claim = group.members[group.ids[0]].claim
            number = claim["claim"] if claim is not None else 0
            assert number == self.storage.newest, (
                f"{now} trains under claim {number}, and {self.storage.claims[-1]} is newer"
            )

    def begins(self, group: Group) -> None:
        """From storage. That view may be lost before it has trained, and the next one goes on from what it read."""
        self._reach |= group.nodes
        self._begun = group.nodes

    def meets(self, group: Group) -> None:
        """They hand on the state."""
        if group.nodes & self._reach:
            self._reach |= group.nodes

    def _is_gone(self, side: Trained) -> bool:
        """Whether all of it have ended, where no storage knows what they did: the machines say that nobody goes on."""
        return not self.witness and all(self.agents[node].ended is not None for node in side.nodes | self._reach)

    def living(self) -> list[Agent]:
        return [agent for agent in self.agents.values() if agent.ended is None and agent.machine.alive]

    def sides(self) -> list[set[str]]:
        """Of nodes that reach each other. Empty where some reach one that the others do not: nobody is promised that
        the hub sees who is at fault then."""
        names = [agent.name for agent in self.living()]
        gets = self.network.both_ways
        sides = {name: frozenset(other for other in names if gets(name, other)) for name in names}
        if any(sides[other] != sides[name] for name in names for other in sides[name]):
            return []
        return [set(side) for side in dict.fromkeys(sides.values())]

    def may_some_side_go_on(self) -> bool:
        """Whether one of them surely may."""
        if not self.line:
            return False
        able = [side for side in self.sides() if len(side) >= self._nodes_min]
        if not self.storage_answers() or self.storage_delays_s[1] > QUICK_S:
            return False
        counted = [view.nodes for view in self._since if not view.witnessed]
        able = [side for side in able if all(2 * len(members & side) > len(members) for members in counted)]
        return any(sum(map(self._holds, side)) >= self._nodes_min for side in able)

    def _holds(self, node: str) -> bool:
        """A living worker of it has a state, and was there when the last step was applied."""
        last = self.line[-1].workers
        return any(worker.alive and worker.id in last for worker in self.agents[node].workers.values())

    def hub_of_the_run(self) -> str | None:
        serving = [agent for agent in self.living() if agent.serving is not None]
        best = max(serving, key=lambda agent: agent.serving.generation if agent.serving else 0, default=None)
        return best.name if best is not None else None

    def describe(self) -> str:
        lines = [*self.log[-60:]]
        for agent in self.agents.values():
            what = f"ended: {agent.ended}" if agent.ended else "serves" if agent.serving else "seeks"
            what = f"is with the hub of {agent.at_hub[1][0]}" if agent.at_hub else what
            lines.append(f"{agent.name}: {what}{'' if agent.machine.alive else ' (dead)'} {list(agent.workers)}")
            lines += [f"   {text}" for text in agent.said_to_people[-2:]]
        return "\n".join(lines)

    # faults

    def run(self, seconds: float) -> None:
        self.network.run(self.network.now_s + seconds)

    def storage_fails(self, *, down: bool) -> None:
        self._storage_down, self.storage_changed_s = down, self.network.now_s
        self.log.append(f"{self.network.now_s:7.2f} the storage {'fails' if down else 'is back'}")

    def comes(self, name: str) -> None:
        at = self.hub_of_the_run()
        if at is not None:
            self.agents[name] = Agent(self, name)
            self.agents[name].begins(at)
            self.log.append(f"{self.network.now_s:7.2f} {name} comes, to {at}")

    def notes(self, text: str) -> None:
        self.log.append(f"{self.network.now_s:7.2f} {text}")

    def workers(self) -> list[Worker]:
        return [worker for agent in self.living() for worker in agent.workers.values() if worker.alive]
