"""The search of all that may happen in the small world, its judge, and who goes on once it is left alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from elastic.membership.succession.succession import KnownView, possible
from tests.kit.small_world.moves import (
    PRODUCT,
    Rules,
    answered,
    attached,
    key,
    moves,
    of_hub,
    of_workers,
    training,
    trains,
)
from tests.kit.small_world.state import HubOf, Small

_MOVES_MAX = 200  # that a world takes until somebody trains, once it is left alone


def judge(world: Small) -> None:
    begun = [number for number, claim in enumerate(world.claims, 1) if claim.anew]
    for before, after in pairwise(world.line):
        if after.claim not in begun or after.claim <= before.claim:
            assert after.generation > before.generation, f"{after} trained after {before}"
            assert after.nodes & before.nodes, f"{after} goes on from {before}"
    for one in training(world) if begun else ():
        assert one.claim >= begun[-1], f"{one} trains, and newcomers have begun anew under claim {begun[-1]}"
    if not world.reported <= set(world.saved()):
        raise AssertionError(f"{world.reported} were reported as saved, and the run's are {world.saved()}")


# the search


@dataclass
class Searched:
    """leads_to: from each state that was looked at, those that follow it   complete: whether that was all of them"""

    rules: Rules
    leads_to: dict[Small, list[Small]]
    complete: bool

    def stuck(self) -> list[Small]:
        """States from which nobody ever trains, though somebody holds the state, and neither hubs nor generations are
        at the bounds of this small world."""
        backwards: dict[Small, list[Small]] = {}
        for world, following in self.leads_to.items():
            for one in following:
                backwards.setdefault(one, []).append(world)
        fine = [world for world in self.leads_to if training(world) or self._is_at_a_bound(world)]
        fine += [world for following in self.leads_to.values() for world in following if world not in self.leads_to]
        live = set(fine)
        while fine:
            for before in backwards.get(fine.pop(), ()):
                if before not in live:
                    live.add(before)
                    fine.append(before)
        return [world for world in self.leads_to if world not in live and _has_a_holder(world)]

    def _is_at_a_bound(self, world: Small) -> bool:
        known = [one.generation for _, node in world.nodes for one in node.known]
        known += [hub.published.generation for hub in world.hubs if hub.published is not None]
        return len(world.hubs) >= self.rules.hubs or max(known) >= self.rules.generations


def _has_a_holder(world: Small) -> bool:
    last = world.line[-1][1]
    return any(node.alive and node.holds and name in last for name, node in world.nodes)


def explore(begin: Small, *, states_max: int, rules: Rules = PRODUCT) -> Searched:
    seen, waiting = {begin}, deque([begin])
    searched = Searched(rules, {}, complete=False)
    while waiting and len(seen) < states_max:
        world = waiting.popleft()
        following = [trains(moved) for moved in moves(world, rules)]
        searched.leads_to[world] = following
        for one in following:
            if one not in seen:
                judge(one)
                seen.add(one)
                waiting.append(one)
    searched.complete = not waiting
    return searched


# left alone


def may_majority_go_on(world: Small, side: Collection[str]) -> bool:
    """Whether these live, hold the state, and are a strict majority of each view in which the run may stand."""
    known = {one for _, node in world.nodes if node.alive for one in node.known}
    known |= {hub.published for hub in world.hubs if hub.published is not None}
    able = {name for name in side if world.of(name).alive and world.of(name).holds}
    return all(2 * len(view.nodes & able) > len(view.nodes) for view in possible(known))


def goes_on(world: Small, side: Collection[str], rules: Rules) -> bool:
    """Nothing more happens to this side, whose nodes reach each other and nobody else: whether a view of it trains."""
    rules = replace(rules, regroups=True, hubs=99, generations=99)
    world = world._replace(faults=0, kills=0, saves=0)
    for name, node in world.nodes:  # a connection to the other side is lost
        if node.hub is not None and (name in side) != (world.hubs[node.hub].node in side):
            world = world.leaves_hub(name)
    for _ in range(_MOVES_MAX):
        world = trains(world)
        if any(one.nodes <= set(side) for one in training(world)):
            return True
        step = next(_next_move(world, [name for name in sorted(side) if world.of(name).alive], rules), None)
        if step is None:
            return False
        world = step
    return False


def _next_move(world: Small, side: list[str], rules: Rules) -> Iterator[Small]:
    """What agents, hubs and workers of that side do of themselves, the first first. Of two hubs one gives way."""
    serving = [n for n, hub in enumerate(world.hubs) if hub.node in side and world.of(hub.node).hub == n]
    for name in side:
        if world.of(name).hub not in (None, *serving[:1]):
            yield world.leaves_hub(name)
        elif world.of(name).hub is None and serving:
            yield attached(world, name, serving[0])
        elif world.of(name).hub is None:
            yield attached(world._replace(hubs=(*world.hubs, HubOf(name))), name, len(world.hubs))
    for asking in sorted(world.asking, key=str):
        if asking.worker in side:
            yield answered(world, asking, rules)
    orders = [moved for number in serving for moved in of_hub(world, number, world.hubs[number], rules)]
    yield from (moved for moved in orders if moved.nodes != world.nodes)  # who was not told of a view yet hears of it
    for name in side:
        node = world.of(name)
        newest = max(node.known, key=lambda one: one.generation)
        theirs = list(of_workers(world, name, node))  # to leave the view comes first
        yield from theirs[1:] if _can_meet(world, newest, side) else theirs[:1]
    yield from orders


def _can_meet(world: Small, view: KnownView, side: list[str]) -> bool:
    nodes = [world.of(name) for name in view.nodes]
    told = all(key(view) in map(key, node.known) for node in nodes)
    return told and view.nodes <= set(side) and all(node.over < view.generation for node in nodes)
