"""A network of machines in one process, with a clock of its own: what is said arrives late, in order, or not yet.

    crash      the machine's connections are reset; who dials it is refused
    power      it is silent, and stays so
    freeze     nothing happens there for a while: then it goes on as if no time had passed (a stopped virtual machine)
    cut        nothing gets from one machine to another; TCP sends it again once that is healed. Or what lies in between
               refuses connections meanwhile (iptables -j REJECT)

Everything is a function of one seed: `random` is asked in the order in which things happen.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable
from typing import Any

Act = Callable[[], None]
Heard = Callable[[dict[str, Any]], None]

AGAIN_S = 0.2  # after which TCP sends again, see elastic_checkpoint/net/connection.py


class Machine:
    def __init__(self, network: Network, name: str) -> None:
        self._network = network
        self.name = name
        self.alive = True
        self.crashed_s = float("inf")
        self.frozen_until_s = 0.0
        self.wires: list[Wire] = []
        self.dialled: Callable[[Wire], None] = lambda wire: None

    def after(self, seconds: float, act: Act) -> None:
        """Here, unless the machine is dead by then; later, where it is frozen."""

        def happens() -> None:
            if not self.alive:
                return
            if self.is_frozen:
                self.after(self.frozen_until_s - self._network.now_s, act)
            else:
                act()

        self._network.after(seconds, happens)

    @property
    def is_frozen(self) -> bool:
        return self._network.now_s < self.frozen_until_s

    def crashes(self, *, silently: bool = False) -> None:
        self.alive, self.crashed_s = False, self._network.now_s
        if silently:
            self._network.isolate(self.name)
        for wire in list(self.wires):
            wire.close(self)


class Wire:
    """A connection. Each end hears what the other says, then that it has ended."""

    def __init__(self, network: Network, ends: tuple[Machine, Machine]) -> None:
        self._network = network
        self._ends = ends
        self._on_its_way: dict[str, deque[tuple[float, dict[str, Any] | None]]] = {one.name: deque() for one in ends}
        self._pumping: set[str] = set()
        self._heard: dict[str, tuple[Heard, Act]] = {}
        self._closed: set[str] = set()
        self.heard_s = {one.name: network.now_s for one in ends}
        for end in ends:
            end.wires.append(self)

    def hears(self, end: Machine, heard: Heard, ended: Act) -> None:
        self._heard[end.name] = heard, ended
        self._pump(end)

    def other(self, end: Machine) -> Machine:
        return self._ends[1] if end is self._ends[0] else self._ends[0]

    def say(self, end: Machine, message: dict[str, Any]) -> None:
        if end.name not in self._closed:
            self._send(self.other(end), message)

    def close(self, end: Machine) -> None:
        if end.name not in self._closed:
            self._send(self.other(end), None)
            self._closed.add(end.name)
            end.wires.remove(self)

    def resets(self) -> None:
        """By what lies in between. Both learn of it as soon as anything gets there; what was on its way is lost."""
        for end in self._ends:
            if end.name not in self._closed:
                self._on_its_way[end.name].clear()
                self._send(end, None)

    def silent_s(self, end: Machine) -> float:
        """For how long nothing has come to this end: pings are not sent, but asked for."""
        other = self.other(end)
        if other.alive and not other.is_frozen and self._network.gets(other.name, end.name):
            self.heard_s[end.name] = self._network.now_s
        return self._network.now_s - self.heard_s[end.name]

    def _send(self, to: Machine, message: dict[str, Any] | None) -> None:
        waiting = self._on_its_way[to.name]
        at_s = self._network.now_s + self._network.delay_s()
        waiting.append((max(at_s, waiting[-1][0]) if waiting else at_s, message))
        self._pump(to)

    def _pump(self, to: Machine) -> None:
        waiting = self._on_its_way[to.name]
        if not waiting or to.name in self._pumping or to.name not in self._heard:
            return
        self._pumping.add(to.name)

        def arrives() -> None:
            self._pumping.discard(to.name)
            if to.name in self._closed:
                return
            if self._network.gets(self.other(to).name, to.name):
                if not waiting:
                    return
                _, message = waiting.popleft()
                heard, ended = self._heard[to.name]
                if message is None:
                    ended()
                else:
                    heard(message)
                self._pump(to)
            else:
                self._pumping.add(to.name)
                to.after(AGAIN_S, arrives)

        to.after(max(0.0, waiting[0][0] - self._network.now_s), arrives)


class Network:
    """delays_s  how long a message may take"""

    def __init__(self, chance: random.Random, delays_s: tuple[float, float] = (0.001, 0.05)) -> None:
        self.now_s = 0.0
        self._random = chance
        self.delays_s = delays_s
        self._order = itertools.count()
        self._next: list[tuple[float, int, Act]] = []
        self._cut: set[tuple[str, str]] = set()
        self._rejects: set[tuple[str, str]] = set()
        self._isolated: set[str] = set()
        self._healed_for_good = False
        self.cut_s = 0.0  # when somebody was last cut from somebody
        self.machines: dict[str, Machine] = {}

    def machine(self, name: str) -> Machine:
        made = self.machines[name] = Machine(self, name)
        return made

    def after(self, seconds: float, act: Act) -> None:
        heapq.heappush(self._next, (self.now_s + max(0.0, seconds), next(self._order), act))

    def run(self, until_s: float, *, ended: Callable[[], bool] = lambda: False) -> None:
        while self._next and self._next[0][0] <= until_s and not ended():
            self.now_s, _, act = heapq.heappop(self._next)
            act()
        self.now_s = max(self.now_s, until_s) if not ended() else self.now_s

    def delay_s(self) -> float:
        low, high = self.delays_s
        return low + (high - low) * self._random.random() ** 3

    # cuts

    def cut(self, one: str, other: str, *, both_ways: bool = True, rejects: bool = False) -> None:
        if self._healed_for_good:
            return
        self._cut.add((one, other))
        self.cut_s = self.now_s
        if rejects:
            self._rejects |= {(one, other), (other, one)}
        if both_ways:
            self._cut.add((other, one))

    def resets_all(self, pairs: list[tuple[str, str]]) -> None:
        """All connections between these."""
        between = {frozenset(pair) for pair in pairs}
        for machine in self.machines.values():
            for wire in list(machine.wires):
                if frozenset((machine.name, wire.other(machine).name)) in between:
                    wire.resets()

    def mends(self, one: str, other: str) -> None:
        self._cut -= {(one, other), (other, one)}
        self._rejects -= {(one, other), (other, one)}

    def heal(self, *, for_good: bool = False) -> None:
        self._cut.clear()
        self._rejects.clear()
        self._healed_for_good |= for_good

    def isolate(self, name: str) -> None:
        """For ever."""
        self._isolated.add(name)

    def gets(self, sender: str, to: str) -> bool:
        if sender == to:
            return True
        return (sender, to) not in self._cut and not self._isolated & {sender, to}

    def both_ways(self, one: str, other: str) -> bool:
        return self.gets(one, other) and self.gets(other, one)

    def dial(self, caller: Machine, to: str, done: Callable[[Wire | None, bool], None]) -> None:
        """done: with the connection; or with None, and whether the machine has refused, or what lies in between. Not
        called before somebody answers."""
        other = self.machines[to]

        def arrives() -> None:
            if (caller.name, to) in self._rejects:
                caller.after(self.delay_s(), lambda: done(None, True))
            elif not self.both_ways(caller.name, to) or (other.alive and other.is_frozen):
                caller.after(AGAIN_S, arrives)
            elif not other.alive:
                caller.after(self.delay_s(), lambda: done(None, True))
            else:
                wire = Wire(self, (caller, other))
                other.dialled(wire)
                caller.after(self.delay_s(), lambda: done(wire, False))

        caller.after(self.delay_s(), arrives)
