"""Whoever is lost and whoever is cut off from whom: of one view at most one side goes on.

A small world in which every interleaving is tried: nodes crash, lose their hub, attach to another or become it; hubs
ask the storage, publish views, and die; messages arrive or do not; the workers of a view meet in it one after the
other. What must hold: the views in which all have met follow each other in one line.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest

from elastic.membership.succession import GoOn, KnownView, NeedsClaim, SideSize, Stay, may_go_on, may_succeed, suffices
from tests.kit.sampling import NIGHTLY


def view(nodes: str, *, generation: int = 1, **facts: Any) -> KnownView:
    return KnownView(generation=generation, nodes=frozenset(nodes), **{"met": True, **facts})


@pytest.mark.parametrize(
    ("known", "present", "left", "dead", "verdict"),
    [
        pytest.param([view("abc")], "abc", "", "", "on", id="nobody is missing"),
        pytest.param([view("abc")], "ab", "c", "", "on", id="one has said that it goes"),
        pytest.param([view("abc")], "ab", "", "", "on", id="a majority"),
        pytest.param([view("abcd")], "ab", "", "", "stay", id="one half"),
        pytest.param([view("ab")], "a", "", "b", "on", id="of two one is dead"),
        pytest.param([view("abcde")], "ab", "", "c", "stay", id="two of the four that live"),
        pytest.param([view("abc", claim=4)], "ab", "", "", "claim 4", id="a majority asks, too"),
        pytest.param([view("abc", claim=4)], "ab", "", "c", "claim 4", id="what is dead is not taken on trust"),
        pytest.param([view("abc", claim=4)], "a", "", "", "few 4", id="one of three lets the two go first"),
        pytest.param([view("abcd", claim=4)], "ab", "", "", "half 4", id="one half, for a moment"),
        pytest.param([view("abc", claim=4, counted=True)], "a", "", "", "stay", id="not everybody knows of the claim"),
        pytest.param([view("abc", claim=4, counted=True)], "ab", "", "", "claim 4", id="both are needed until then"),
        pytest.param(
            [view("abc"), view("abcd", generation=2)], "ab", "", "", "stay", id="who is behind knows less of it"
        ),
        pytest.param(
            [view("abc"), view("cd", generation=2, met=False)], "ab", "", "", "stay", id="a view that may have been met"
        ),
        pytest.param(
            [view("abc", generation=2), view("cde", met=False)], "ab", "", "", "on", id="one that was not, and is over"
        ),
    ],
)
def test_may_go_on(known: list[KnownView], present: str, left: str, dead: str, verdict: str) -> None:
    found = may_go_on(known, present=present, left=left, dead=dead)
    if isinstance(found, GoOn | Stay):
        assert verdict == ("on" if isinstance(found, GoOn) else "stay")
    else:
        assert verdict == f"{'claim' if found.size == SideSize.MOST else found.size.name.lower()} {found.after}"


def test_a_machine_that_refuses_is_no_proof_but_for_who_asks_the_storage_first() -> None:
    """A firewall that says so may be all that is between two sides, and those behind it go on."""
    alone = {"present": "a", "left": "", "dead": ""}
    assert isinstance(may_go_on([view("ab")], **alone, refusing="b"), Stay)
    assert isinstance(may_go_on([view("abcde")], **alone, refusing="bcde"), Stay)
    assert isinstance(may_go_on([view("ab", claim=1, counted=True)], **alone, refusing="b"), Stay)
    witnessed = [may_go_on([view("abc", claim=1)], **alone, refusing=refusing) for refusing in ("", "bc")]
    assert [found.size for found in witnessed if isinstance(found, NeedsClaim)] == [SideSize.FEW, SideSize.MOST]


def test_why_they_stay_names_those_who_are_missing() -> None:
    found = may_go_on([view("abcd")], present="ab", left="", dead="")
    assert isinstance(found, Stay)
    assert "2 of the 4 nodes of view 1" in found.why
    assert "c, d may be going on elsewhere" in found.why


@dataclass(frozen=True)
class Node:
    """known  the views that it was told of and may be in
    hub    the one that it is with, its own or another's; None: it looks for one
    given  the generation in whose view its workers have given their part, to meet the others
    over   the newest generation whose view they have left
    """

    known: frozenset[KnownView]
    hub: int | None = 0
    alive: bool = True
    given: int = 1
    over: int = 0


@dataclass(frozen=True)
class HubOf:
    """asked    for which nodes the claim is being asked for, if none of them has been away since
    granted  the number of the claim that it has won, and its nodes
    left     nodes that have said that they go
    """

    node: str
    asked: frozenset[str] | None = None
    granted: tuple[int, frozenset[str]] | None = None
    published: KnownView | None = None
    left: frozenset[str] = frozenset()
    over: bool = False

    def without(self, name: str) -> HubOf:
        asked = None if self.asked is None or name in self.asked else self.asked
        granted = None if self.granted is None or name in self.granted[1] else self.granted
        return replace(self, asked=asked, granted=granted)


@dataclass(frozen=True)
class Asking:
    """A worker is at the storage, whatever becomes of the hub that has sent it there.

    to  the newest claim that its hub knows
    """

    hub: int
    worker: str
    to: int
    nodes: frozenset[str]


@dataclass(frozen=True)
class Small:
    """claims: the nodes of each, in order   line: the views that have trained, in order of time"""

    nodes: tuple[tuple[str, Node], ...]
    hubs: tuple[HubOf, ...]
    claims: tuple[frozenset[str], ...]
    line: tuple[tuple[int, frozenset[str]], ...]
    faults: int
    asking: frozenset[Asking] = frozenset()

    def of(self, name: str) -> Node:
        return dict(self.nodes)[name]

    def set(self, name: str, **facts: Any) -> Small:
        return replace(self, nodes=tuple((n, replace(o, **facts) if n == name else o) for n, o in self.nodes))

    def set_hub(self, number: int, **facts: Any) -> Small:
        hubs = list(self.hubs)
        hubs[number] = replace(hubs[number], **facts)
        return replace(self, hubs=tuple(hubs))

    def leaves_hub(self, name: str, **facts: Any) -> Small:
        """Its hub notices, if only when it comes back."""
        hub = self.of(name).hub
        world = self.set(name, hub=None, **facts)
        if hub is None:
            return world
        return replace(world, hubs=tuple(o.without(name) if n == hub else o for n, o in enumerate(world.hubs)))


@dataclass(frozen=True)
class Rules:
    """The product's, or wrong ones in their place.

    generations, hubs  how many there may be in this small world
    regroups  whether a view is published for the nodes of the last one, too
    """

    may_go_on: Callable[..., GoOn | NeedsClaim | Stay] = may_go_on
    may_succeed: Callable[..., bool] = may_succeed
    suffices: Callable[..., bool] = suffices
    forgets_who_is_away: bool = True
    generations: int = 4
    hubs: int = 3
    regroups: bool = False


def _moves(world: Small, rules: Rules) -> Iterator[Small]:
    for name, node in world.nodes:
        if not node.alive:
            continue
        if world.faults:
            fewer = replace(world, faults=world.faults - 1)
            yield _without(fewer, name)
            if node.hub is not None and world.hubs[node.hub].node != name:
                yield _goes_away(fewer, name, rules)
                if all(one.generation <= node.over for one in node.known):
                    hub = world.hubs[node.hub]
                    yield _without(fewer.set_hub(node.hub, left=hub.left | {name}), name)  # it leaves in order
        if node.hub is None:
            if len(world.hubs) < rules.hubs:
                yield replace(world, hubs=(*world.hubs, HubOf(name))).set(name, hub=len(world.hubs))
            for number, hub in enumerate(world.hubs):
                if not hub.over and hub.node != name and world.of(hub.node).hub == number:
                    yield world.set(name, hub=number).set_hub(number, left=hub.left - {name})
        yield from _of_workers(world, name, node)
    for number, hub in enumerate(world.hubs):
        if not hub.over:
            yield from _of_hub(world, number, hub, rules)
    for asking in world.asking:
        yield _answered(world, asking, rules)


def _goes_away(world: Small, name: str, rules: Rules) -> Small:
    return world.leaves_hub(name) if rules.forgets_who_is_away else world.set(name, hub=None)


def _without(world: Small, name: str) -> Small:
    """That node has crashed, and its hub with it."""
    world = world.leaves_hub(name, alive=False)
    for number, hub in enumerate(world.hubs):
        if hub.node == name:
            world = world.set_hub(number, over=True, asked=None, granted=None)
            for other, node in world.nodes:
                if node.hub == number:
                    world = world.set(other, hub=None)
    return replace(world, asking=frozenset(one for one in world.asking if one.worker != name))


def _of_workers(world: Small, name: str, node: Node) -> Iterator[Small]:
    """They give their part in the view that was published, meet once all have, train, and leave it at any time.

    One that is at the storage hears of nothing meanwhile.
    """
    if any(one.worker == name for one in world.asking):
        return
    newest = max(node.known, key=lambda one: one.generation)
    if newest.generation > node.over:
        yield world.set(name, over=newest.generation)
        if newest.generation > node.given:
            yield world.set(name, given=newest.generation)
        others = [world.of(other) for other in newest.nodes]
        if not newest.met and all(other.given >= newest.generation for other in others):
            yield world.set(name, known=frozenset([replace(newest, met=True)]))


def _trains(world: Small) -> Small:
    """A step is applied only where the workers of all nodes of a view have met, and none has left it."""
    for trained in _training(world):
        if trained != world.line[-1]:
            world = replace(world, line=(*world.line, trained))
    return world


def _training(world: Small) -> set[tuple[int, frozenset[str]]]:
    within = {
        name: {(one.generation, one.nodes) for one in node.known if one.met and one.generation > node.over}
        for name, node in world.nodes
        if node.alive
    }
    views = {one for views in within.values() for one in views}
    return {one for one in views if all(one in within.get(name, ()) for name in one[1])}


def _of_hub(world: Small, number: int, hub: HubOf, rules: Rules) -> Iterator[Small]:
    here = {name for name, node in world.nodes if node.hub == number and node.alive}
    if hub.node not in here:
        return
    if hub.published is not None:
        for name in here & hub.published.nodes:
            node = world.of(name)
            if all(one.generation < hub.published.generation for one in node.known):
                yield world.set(name, known=node.known | {hub.published})
    known = frozenset(one for name in here for one in world.of(name).known)
    if hub.published is not None:
        known |= {hub.published}
    newest = max(known, key=lambda one: one.generation)
    survivors = frozenset(newest.nodes & here)
    if not survivors or newest.generation == rules.generations:
        return
    if any(one.generation > world.of(name).over for name in here for one in world.of(name).known):
        return  # somebody may still train
    fresh = KnownView(generation=newest.generation + 1, nodes=survivors)
    claims = [one.claim for one in known if one.claim is not None]
    for found in _verdicts(world, hub, known, here, rules):
        match found:
            case GoOn():
                if rules.regroups or fresh.nodes != newest.nodes:
                    yield world.set_hub(number, published=replace(fresh, claim=max(claims, default=None)))
            case NeedsClaim(after=after):
                granted = hub.granted
                if granted is not None and rules.suffices(granted[1], holding=survivors, left=hub.left):
                    yield world.set_hub(number, published=replace(fresh, claim=granted[0]), granted=None, asked=None)
                elif hub.asked != survivors and len(world.asking) < 2:
                    to = max([after, *([granted[0]] if granted is not None else [])])
                    for worker in sorted(survivors):
                        if all(one.worker != worker for one in world.asking):
                            asking = world.asking | {Asking(number, worker, to, survivors)}
                            yield replace(world, asking=asking).set_hub(number, asked=survivors, granted=None)
                            break


def _verdicts(
    world: Small, hub: HubOf, known: frozenset[KnownView], here: set[str], rules: Rules
) -> set[GoOn | NeedsClaim | Stay]:
    """Of one that knows nothing of those who are not here; and of one that knows who of them is dead, and to whom a
    firewall says so of all."""
    dead = {name for name, node in world.nodes if not node.alive}
    absent = {name for name, _ in world.nodes} - here
    silence = rules.may_go_on(known, present=here, left=hub.left, dead=set(), refusing=set())
    word = rules.may_go_on(known, present=here, left=hub.left, dead=dead, refusing=absent)
    return {silence, word}


def _answered(world: Small, asking: Asking, rules: Rules) -> Small:
    """At one instant: the next claim is taken, or those whom the newest does not name are moved on from."""
    hub = world.hubs[asking.hub]
    newest = world.claims[-1]
    world = replace(world, asking=world.asking - {asking})
    counts = hub.asked == asking.nodes and not hub.over
    facts = {"to": asking.to, "nodes": asking.nodes, "newest": len(world.claims), "its_nodes": newest}
    if rules.may_succeed(**facts):
        number = len(world.claims) + 1
        world = replace(world, claims=(*world.claims, asking.nodes))
        return world.set_hub(asking.hub, asked=None, granted=(number, asking.nodes)) if counts else world
    if counts:
        world = world.set_hub(asking.hub, asked=None)
        for name in asking.nodes - newest:
            world = _without(world, name)
    return world


def judge(world: Small) -> None:
    for before, after in pairwise(world.line):
        assert after[0] > before[0], f"{after} trained after {before}"
        assert after[1] & before[1], f"{after} goes on from {before}"


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
        fine = [world for world in self.leads_to if _training(world) or self._is_at_a_bound(world)]
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
    return any(node.alive and name in last for name, node in world.nodes)


def explore(first: Small, *, states_max: int, rules: Rules = Rules()) -> Searched:
    seen, waiting = {first}, deque([first])
    searched = Searched(rules, {}, complete=False)
    while waiting and len(seen) < states_max:
        world = waiting.popleft()
        following = [_trains(moved) for moved in _moves(world, rules)]
        searched.leads_to[world] = following
        for one in following:
            if one not in seen:
                judge(one)
                seen.add(one)
                waiting.append(one)
    searched.complete = not waiting
    return searched


def _first(views: dict[str, KnownView], *, faults: int) -> Small:
    nodes = frozenset(views)
    claims = (nodes,) if any(known.claim for known in views.values()) else ()
    every = tuple((name, Node(frozenset([known]))) for name, known in views.items())
    return Small(every, (HubOf(min(nodes)),), claims, ((1, nodes),), faults)


WITNESS: dict[str, Any]
MAJORITY: dict[str, Any]
TOLD: dict[str, Any]
WITNESS, MAJORITY, TOLD = {"claim": 1}, {"claim": None}, {"claim": 1, "counted": True}
WORLDS = {
    "the storage is a witness": {name: view("abc", **WITNESS) for name in "abc"},
    "a majority counts": {name: view("abc", **MAJORITY) for name in "abc"},
    "not everybody knows that all see the storage": {
        **{name: view("abc", **TOLD) for name in "bc"},
        "a": view("abc", **WITNESS),
    },
    "not everybody knows of the claim": {"a": view("abc", **TOLD), **{name: view("abc", **MAJORITY) for name in "bc"}},
    "two, and the storage": {name: view("ab", **WITNESS) for name in "ab"},
    "two, and a majority counts": {name: view("ab", **MAJORITY) for name in "ab"},
}


SMALL = ("two, and the storage", "two, and a majority counts")  # searched to the end in a second or two


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("faults", [1, 2])
def test_at_most_one_side_goes_on_in_any_interleaving(world: str, faults: int) -> None:
    """Worlds of two nodes are searched to the end, those of three as far as the time allows: further at night."""
    rules = Rules(generations=3, hubs=2, regroups=True) if world in SMALL else Rules()
    states_max = 400_000 if NIGHTLY or world in SMALL else 6_000
    searched = explore(_first(WORLDS[world], faults=faults), states_max=states_max, rules=rules)
    print(f"{world}, {faults} faults: {len(searched.leads_to)} states{'' if searched.complete else ', not all'}")
    assert searched.complete or world not in SMALL


@pytest.mark.parametrize("faults", [0, 1])
def test_whoever_is_left_goes_on_in_the_end(faults: int) -> None:
    """Where the storage is a witness one node is enough; from no state does everybody stand still for ever.

    With a second fault those who took the claim may die before they have gone on. The others are newcomers then, whom
    this world lacks.
    """
    first = _first(WORLDS["two, and the storage"], faults=faults)
    searched = explore(first, states_max=400_000, rules=Rules(generations=3, hubs=3, regroups=True))
    assert searched.complete
    assert not searched.stuck()


def _half_is_enough(known: Iterable[KnownView], *, present: set[str], **gone: Any) -> GoOn | NeedsClaim | Stay:
    found = may_go_on(known, present=present, **gone)
    newest = max(known, key=lambda one: one.generation)
    return GoOn() if isinstance(found, Stay) and 2 * len(newest.nodes & present) >= len(newest.nodes) - 1 else found


def _a_majority_asks_nobody(known: Iterable[KnownView], *, present: set[str], **gone: Any) -> GoOn | NeedsClaim | Stay:
    found = may_go_on(known, present=present, **gone)
    return GoOn() if isinstance(found, NeedsClaim) and found.size == SideSize.MOST else found


def _any_of_us_is_enough(*, to: int, nodes: set[str], newest: int, its_nodes: set[str]) -> bool:
    return newest <= to or not set(nodes).isdisjoint(its_nodes)


def _what_refuses_is_dead(
    known: Iterable[KnownView], *, dead: set[str], refusing: set[str], **who: Any
) -> GoOn | NeedsClaim | Stay:
    return may_go_on(known, dead=dead | refusing, **who)


def _whoever_is_here(granted: object, **here: object) -> bool:
    return True


@pytest.mark.parametrize(
    ("rules", "views", "faults"),
    [
        pytest.param(Rules(may_go_on=_half_is_enough), WORLDS["a majority counts"], 1, id="half is enough"),
        pytest.param(Rules(may_go_on=_what_refuses_is_dead), WORLDS["a majority counts"], 1, id="what refuses is dead"),
        pytest.param(
            Rules(may_go_on=_a_majority_asks_nobody),
            WORLDS["the storage is a witness"],
            1,
            id="a majority asks nobody",
        ),
        pytest.param(
            Rules(may_succeed=_any_of_us_is_enough, suffices=_whoever_is_here, forgets_who_is_away=False),
            WORLDS["the storage is a witness"],
            2,
            marks=pytest.mark.nightly,  # test_simulated_hosts.py finds it by day
            id="a claim is for whoever is here when the answer comes",
        ),
        pytest.param(
            Rules(),
            {"a": view("ab", **WITNESS), "b": view("ab", **MAJORITY), "c": view("abc", **MAJORITY)},
            2,
            marks=pytest.mark.nightly,
            id="some do not know of the claim",
        ),
    ],
)
def test_the_search_finds_rules_that_let_two_sides_go_on(
    rules: Rules, views: dict[str, KnownView], faults: int
) -> None:
    views = {name: replace(known, nodes=frozenset(views)) for name, known in views.items()}
    with pytest.raises(AssertionError, match=r"trained after|goes on from"):
        explore(_first(views, faults=faults), states_max=150_000, rules=replace(rules, generations=3))
