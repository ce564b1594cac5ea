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

from elastic.membership.succession import Claim, GoOn, KnownView, Share, Stay, may_go_on
from tests.kit.sampling import NIGHTLY

GENERATIONS, HUBS = 4, 3  # at most


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
        pytest.param([view("abc", claim=4)], "ab", "", "c", "claim 4", id="what looks dead is not taken on trust"),
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
        assert verdict == f"{'claim' if found.share == Share.MOST else found.share.name.lower()} {found.after}"


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
    """granted: the number of the claim that it has won, and its nodes"""

    node: str
    granted: tuple[int, frozenset[str]] | None = None
    published: KnownView | None = None
    over: bool = False


@dataclass(frozen=True)
class Small:
    """claims: the nodes of each, in order   line: the views that have trained, in order of time"""

    nodes: tuple[tuple[str, Node], ...]
    hubs: tuple[HubOf, ...]
    claims: tuple[frozenset[str], ...]
    line: tuple[tuple[int, frozenset[str]], ...]
    faults: int

    def of(self, name: str) -> Node:
        return dict(self.nodes)[name]

    def set(self, name: str, **facts: Any) -> Small:
        return replace(self, nodes=tuple((n, replace(o, **facts) if n == name else o) for n, o in self.nodes))

    def set_hub(self, number: int, **facts: Any) -> Small:
        hubs = list(self.hubs)
        hubs[number] = replace(hubs[number], **facts)
        return replace(self, hubs=tuple(hubs))


Rule = Callable[..., GoOn | Claim | Stay]


def _moves(world: Small, hubs_max: int, rule: Rule) -> Iterator[Small]:
    for name, node in world.nodes:
        if not node.alive:
            continue
        if world.faults:
            yield replace(_without(world, name), faults=world.faults - 1)
            if node.hub is not None and world.hubs[node.hub].node != name:
                yield replace(world.set(name, hub=None), faults=world.faults - 1)
        if node.hub is None:
            if len(world.hubs) < hubs_max:
                yield replace(world, hubs=(*world.hubs, HubOf(name))).set(name, hub=len(world.hubs))
            for number, hub in enumerate(world.hubs):
                if not hub.over and hub.node != name and world.of(hub.node).hub == number:
                    yield world.set(name, hub=number)
        yield from _of_workers(world, name, node)
    for number, hub in enumerate(world.hubs):
        if not hub.over:
            yield from _of_hub(world, number, hub, rule)


def _without(world: Small, name: str) -> Small:
    """That node has crashed, and its hub with it."""
    world = world.set(name, alive=False, hub=None)
    for number, hub in enumerate(world.hubs):
        if hub.node == name:
            world = world.set_hub(number, over=True)
            for other, node in world.nodes:
                if node.hub == number:
                    world = world.set(other, hub=None)
    return world


def _of_workers(world: Small, name: str, node: Node) -> Iterator[Small]:
    """They give their part in the view that was published, meet once all have, train, and leave it at any time."""
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
    within = {
        name: {(one.generation, one.nodes) for one in node.known if one.met and one.generation > node.over}
        for name, node in world.nodes
    }
    for trained in {one for views in within.values() for one in views}:
        if trained != world.line[-1] and all(trained in within[name] for name in trained[1]):
            world = replace(world, line=(*world.line, trained))
    return world


def _of_hub(world: Small, number: int, hub: HubOf, rule: Rule) -> Iterator[Small]:
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
    survivors = newest.nodes & here
    if not survivors or newest.nodes == here or newest.generation == GENERATIONS:
        return
    if any(one.generation > world.of(name).over for name in here for one in world.of(name).known):
        return  # somebody may still train
    fresh = KnownView(generation=newest.generation + 1, nodes=survivors)
    claims = [one.claim for one in known if one.claim is not None]
    match rule(known, present=here, left="", dead=""):
        case GoOn():
            yield world.set_hub(number, published=replace(fresh, claim=max(claims, default=None)))
        case Claim(after=after):
            if hub.granted is not None and hub.granted[0] > after and hub.granted[1] == survivors:
                yield world.set_hub(number, published=replace(fresh, claim=hub.granted[0]))
            elif moved_on := survivors - world.claims[-1]:
                for name in moved_on:
                    world = _without(world, name)
                yield world
            else:
                granted = (len(world.claims) + 1, survivors)
                yield replace(world, claims=(*world.claims, survivors)).set_hub(number, granted=granted)


def judge(world: Small) -> None:
    for before, after in pairwise(world.line):
        assert after[0] > before[0], f"{after} trained after {before}"
        assert after[1] & before[1], f"{after} goes on from {before}"


def explore(first: Small, *, states_max: int, rule: Rule = may_go_on) -> None:
    seen, waiting = {first}, deque([first])
    while waiting and len(seen) < states_max:
        world = waiting.popleft()
        for moved in _moves(world, HUBS, rule):
            following = _trains(moved)
            if following not in seen:
                judge(following)
                seen.add(following)
                waiting.append(following)


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
}


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("faults", [1, 2])
def test_at_most_one_side_goes_on_in_any_interleaving(world: str, faults: int) -> None:
    """With one fault the search is complete; with two it is at night."""
    explore(_first(WORLDS[world], faults=faults), states_max=400_000 if NIGHTLY else 12_000)


def _half_is_enough(known: Iterable[KnownView], *, present: set[str], **gone: str) -> GoOn | Claim | Stay:
    found = may_go_on(known, present=present, **gone)
    newest = max(known, key=lambda one: one.generation)
    return GoOn() if isinstance(found, Stay) and 2 * len(newest.nodes & present) >= len(newest.nodes) - 1 else found


def _what_was_not_met_is_forgotten(known: Iterable[KnownView], **here: Any) -> GoOn | Claim | Stay:
    return may_go_on([one for one in known if one.met], **here)


def _a_majority_asks_nobody(known: Iterable[KnownView], *, present: set[str], **gone: str) -> GoOn | Claim | Stay:
    found = may_go_on(known, present=present, **gone)
    return GoOn() if isinstance(found, Claim) and found.share == Share.MOST else found


@pytest.mark.parametrize(
    ("rule", "views", "faults"),
    [
        pytest.param(_half_is_enough, WORLDS["a majority counts"], 1, id="half is enough"),
        pytest.param(_a_majority_asks_nobody, WORLDS["the storage is a witness"], 1, id="a majority asks nobody"),
        pytest.param(
            may_go_on,
            {"a": view("ab", **WITNESS), "b": view("ab", **MAJORITY), "c": view("abc", **MAJORITY)},
            2,
            id="some do not know of the claim",
        ),
    ],
)
def test_the_search_finds_a_rule_that_lets_two_sides_go_on(
    rule: Rule, views: dict[str, KnownView], faults: int
) -> None:
    views = {name: replace(known, nodes=frozenset(views)) for name, known in views.items()}
    with pytest.raises(AssertionError, match=r"trained after|goes on from"):
        explore(_first(views, faults=faults), states_max=60_000, rule=rule)
