"""What may happen next in the small world, and who trains then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from elastic.membership.succession.succession import (
    GoOn,
    KnownView,
    NeedsClaim,
    Stay,
    may_be_elsewhere,
    may_go_on,
    may_succeed,
    suffices,
)
from elastic_checkpoint.format.names import CommitId
from tests.kit.small_world.state import Anew, Asking, HubOf, Node, Save, Small, Trained


@dataclass(frozen=True)
class Rules:
    """The product's, or wrong ones in their place.

    generations, hubs  how many there may be in this small world
    regroups  whether a view is published for the nodes of the last one, too
    looks_again  whether a coordinator looks for a newer claim after each commit, too (newer_claim.py)
    """

    may_go_on: Callable[..., GoOn | NeedsClaim | Stay] = may_go_on
    may_succeed: Callable[..., bool] = may_succeed
    suffices: Callable[..., bool] = suffices
    may_be_elsewhere: Callable[..., bool] = may_be_elsewhere
    forgets_who_is_away: bool = True
    looks_again: bool = True
    generations: int = 4
    hubs: int = 3
    regroups: bool = False


PRODUCT = Rules()


def moves(world: Small, rules: Rules) -> Iterator[Small]:
    for name, node in world.nodes:
        if not node.alive:
            continue
        if world.faults:
            fewer = world._replace(faults=world.faults - 1)
            yield _without(fewer, name)
            if node.hub is not None and world.hubs[node.hub].node != name:
                yield _goes_away(fewer, name, rules)
                if all(one.generation <= node.over for one in node.known):
                    hub = world.hubs[node.hub]
                    yield _without(fewer.set_hub(node.hub, departed=hub.departed | {name}), name)  # it leaves in order
        if world.kills and node.holds:
            yield _killed(world._replace(kills=world.kills - 1), name)
        if node.hub is None:
            if len(world.hubs) < rules.hubs:
                yield attached(world._replace(hubs=(*world.hubs, HubOf(name))), name, len(world.hubs))
            for number, hub in enumerate(world.hubs):
                if not hub.over and hub.node != name and world.of(hub.node).hub == number:
                    yield attached(world, name, number)
        yield from of_workers(world, name, node)
        yield from _of_saves(world, name, node, rules)
    for number, hub in enumerate(world.hubs):
        if not hub.over:
            yield from of_hub(world, number, hub, rules)
    for asking in world.asking:
        yield answered(world, asking, rules)
    yield from _signs_end(world)


def attached(world: Small, name: str, number: int) -> Small:
    hub, node = world.hubs[number], world.of(name)
    claim = max([hub.claim, node.claim, *(one.claim or 0 for one in node.known)])
    world = _learns(world.set(name, hub=number).set_hub(number, departed=hub.departed - {name}), number, claim)
    newest = max(node.known, key=lambda one: (one.generation, one.met))
    present = hub.published
    if present is not None and name not in present.nodes and newest.generation <= present.generation and node.holds:
        return _killed(world, name)  # the run has gone on without it
    is_coordinator = newest.met and newest.claim == claim and name == min(newest.nodes)
    return _gives(world, name) if name == world.hubs[number].giver or is_coordinator else world


def _learns(world: Small, number: int, claim: int) -> Small:
    """That hub, of a newer claim: who gives heartbeats under it, it does not know."""
    is_newer = claim > world.hubs[number].claim
    return world.set_hub(number, claim=claim, giver=None, silent=True) if is_newer else world


def _gives(world: Small, name: str) -> Small:
    """Heartbeats, as far as its hub knows."""
    number = world.of(name).hub
    return world if number is None or not world.gives(name) else world.set_hub(number, giver=name, silent=False)


def _goes_away(world: Small, name: str, rules: Rules) -> Small:
    return world.leaves_hub(name) if rules.forgets_who_is_away else world.set(name, hub=None)


def _without(world: Small, name: str) -> Small:
    """That node has crashed, and its hub with it."""
    world = world.leaves_hub(name, alive=False, save=None)
    for number, hub in enumerate(world.hubs):
        if hub.node == name:
            world = world.set_hub(number, over=True, asked=None, granted=None, unanswered=frozenset())
            for other, node in world.nodes:
                if node.hub == number:
                    world = world.set(other, hub=None)
    return world._replace(asking=frozenset(one for one in world.asking if one.worker != name))


def _killed(world: Small, name: str) -> Small:
    """Its workers were. Their agent is there, and says so; others take their places, and have nothing."""
    node = world.of(name)
    over = max(one.generation for one in node.known)
    world = world.set(name, holds=False, over=over, save=None)
    if node.hub is not None:
        world = world.set_hub(node.hub, unanswered=world.hubs[node.hub].unanswered - {name})
    return world._replace(asking=frozenset(one for one in world.asking if one.worker != name))


def of_workers(world: Small, name: str, node: Node) -> Iterator[Small]:
    """They give their part in the view that was published, meet once all have, train, and leave it at any time.

    One that is at the storage hears of nothing meanwhile.
    """
    if any(one.worker == name for one in world.asking):
        return
    newest = max(node.known, key=lambda one: one.generation)
    if newest.generation > node.over:
        yield world.set(name, over=newest.generation, save=None)
        if newest.generation > node.given[0]:
            yield world.set(name, given=key(newest))
        others = [world.of(other) for other in newest.nodes]
        if newest.met or not all(other.given[0] > newest.generation or other.given == key(newest) for other in others):
            return
        anew = next((one for one in world.anew if key(one.view) == key(newest)), None)
        if anew is None:
            met = world.set(name, known=frozenset([replace(newest, met=True)]))
            yield _renewed(met, newest, name) if name == min(newest.nodes) else met
        elif name == min(newest.nodes) and all(other.alive and other.over < newest.generation for other in others):
            yield _begins_anew(world, anew)


def _renewed(world: Small, view: KnownView, name: str) -> Small:
    """All have met in it, and its coordinator gives heartbeats."""
    number = world.of(name).hub
    if number is not None and view.claim == world.hubs[number].claim:
        world = _gives(world, name)
    return world._replace(giving=name) if view.claim == len(world.claims) else world


def _signs_end(world: Small) -> Iterator[Small]:
    """Who gave them has gone. They last longer than hubs that know of that go on without another claim, and than those
    who have been told of a view take to meet."""
    if not world.claims or world.giving is None or world.gives(world.giving) or _meet_soon(world):
        return
    world = world._replace(giving=None)
    for number, hub in enumerate(world.hubs):
        gives = world.gives(hub.giver) and world.of(hub.giver or "").hub == number
        world = world if gives else world.set_hub(number, silent=True)
    yield world


def _meet_soon(world: Small) -> bool:
    """Whether all of a view that was published under the newest claim will."""
    views = {one for hub in world.hubs for one in [hub.published] if one is not None}
    views |= {one for _, node in world.nodes for one in node.known}
    return any(
        not view.met
        and not view.noted
        and view.claim == len(world.claims)
        and all(_will_meet(world, view, name) for name in view.nodes)
        for view in views
    )


def _will_meet(world: Small, view: KnownView, name: str) -> bool:
    node = world.of(name)
    hub = world.hubs[node.hub] if node.hub is not None else None
    is_told = hub is not None and hub.published == view and name not in hub.missed
    return node.alive and node.holds and node.over < view.generation and (view in node.known or is_told)


def _begins_anew(world: Small, anew: Anew) -> Small:
    """The coordinator of a view of newcomers claims the storage, and all read it; or it is held by somebody who lives.

    Where its own agent answers for the newest claim, nobody else is looked for, unless there may be one.
    """
    is_free = world.claims[-1].liveness == anew.liveness and not anew.may_be_elsewhere
    if not is_free and _is_held(world):
        return world.set(min(anew.view.nodes), over=anew.view.generation)
    world = world.claimed(anew.view.nodes, anew.liveness, min(anew.view.nodes), anew=True)
    claim = len(world.claims)
    begun = frozenset([replace(anew.view, claim=claim, met=True)])
    for name in anew.view.nodes:
        world = world.set(name, known=begun, holds=True, claim=claim)
        if (hub := world.of(name).hub) is not None:
            world = _learns(world, hub, claim)
    return _gives(world, min(anew.view.nodes))


def _is_held(world: Small) -> bool:
    """Whether somebody shows heartbeats under the newest claim: who took it, and then each coordinator under it."""
    return world.giving is not None


def _of_saves(world: Small, name: str, node: Node, rules: Rules) -> Iterator[Small]:
    """It looks for a newer claim before it commits, and once more after it; then it is reported (newer_claim.py)."""
    if node.save is None:
        for one in training(world) if world.saves else ():
            id = CommitId(one.claim, len(world.line), "0")
            if name == min(one.nodes) and one == world.line[-1] and id not in world.commits:
                yield world._replace(saves=world.saves - 1).set(name, save=Save(id))
        return
    id, what = node.save
    lost = len(world.claims) > id.claim
    if what == "commit":
        world = world._replace(commits=world.commits | {id})
        if rules.looks_again:
            yield world.set(name, save=Save(id, "look again"))
        else:
            yield world._replace(reported=world.reported | {id}).set(name, save=None)
    elif lost:
        yield world.set(name, save=None)
    elif what == "look":
        yield world.set(name, save=Save(id, "commit"))
    else:
        yield world._replace(reported=world.reported | {id}).set(name, save=None)


def of_hub(world: Small, number: int, hub: HubOf, rules: Rules) -> Iterator[Small]:
    here = {name for name, node in world.nodes if node.hub == number and node.alive}
    if hub.node not in here:
        return
    if hub.published is not None:
        for name in (here & hub.published.nodes) - hub.missed:
            node = world.of(name)
            if all(one.generation < hub.published.generation for one in node.known):
                yield world.set(name, known=node.known | {hub.published})
    known = frozenset(one for name in here for one in world.of(name).known if one != hub.ahead)
    if hub.published is not None:
        known |= {hub.published}
    newest = max(known, key=lambda one: (one.generation, one.met))
    if newest.generation == rules.generations:
        return
    if any(one.generation > world.of(name).over for name in here for one in world.of(name).known):
        return  # somebody may still train
    survivors = frozenset(name for name in newest.nodes & here if world.of(name).holds)
    if not survivors:
        yield from _of_newcomers(world, number, hub, here, known, newest, rules)
        return
    fresh = KnownView(generation=newest.generation + 1, nodes=survivors)
    claim = max([hub.claim, *(one.claim or 0 for one in known)])
    yield from _notes(world, number, hub, known, here, rules, fresh)
    for found in dict.fromkeys(_verdicts(world, hub, known, here, rules, fresh)):
        match found:
            case GoOn():
                if rules.regroups or fresh.nodes != newest.nodes:
                    yield _published(world, number, replace(fresh, claim=claim or None))
            case NeedsClaim(after=after):
                granted = hub.granted
                if granted is not None and rules.suffices(granted[1], holding=survivors, departed=hub.departed):
                    yield _published(world, number, replace(fresh, claim=granted[0]))
                elif hub.asked != survivors:
                    yield from _asks(world, number, hub, survivors, max(after, claim))


def _asks(world: Small, number: int, hub: HubOf, survivors: frozenset[str], to: int) -> Iterator[Small]:
    """The first worker that is not at the storage already; one that is hears of it later, and its answer counts, if it
    is for these."""
    for worker in sorted(survivors):
        there = next((one for one in world.asking if one.worker == worker), None)
        asked = {"asked": survivors, "granted": None, "unanswered": hub.unanswered | {worker}}
        if there is not None and there.hub != number and there.nodes == survivors:
            yield world.set_hub(number, **asked)
        if there is None and len(world.asking) < 2:
            asking = world.asking | {Asking(number, worker, to, survivors)}
            yield world._replace(asking=asking).set_hub(number, **asked)
            return


def _of_newcomers(
    world: Small,
    number: int,
    hub: HubOf,
    here: set[str],
    known: frozenset[KnownView],
    newest: KnownView,
    rules: Rules,
) -> Iterator[Small]:
    """Nobody here holds the state of the last view."""
    newcomers = frozenset(name for name in here if not world.of(name).holds)
    if not newcomers or not world.claims:
        return

    def knowing(view: KnownView) -> set[str]:
        told = {name for name in here if key(view) in map(key, world.of(name).known)}
        is_its_own = hub.published is not None and key(hub.published) == key(view)
        return told | (view.nodes & here if is_its_own else set())

    at_storage = {one.worker for one in world.asking}
    asked = number > 0 or bool(hub.unanswered - (here - at_storage))
    elsewhere = rules.may_be_elsewhere(known, knowing=knowing, departed=hub.departed, asked=asked)
    view = KnownView(generation=newest.generation + 1, nodes=newcomers, claim=newest.claim)
    yield from _notes(world, number, hub, known, here, rules, replace(view, claim=None))
    for found in dict.fromkeys(_verdicts(world, hub, known, here, rules, replace(view, claim=None))):
        if not isinstance(found, Stay):
            anew = world.anew | {Anew(view, hub.node, elsewhere)}
            yield _published(world._replace(anew=anew), number, view)


def _published(world: Small, number: int, view: KnownView) -> Small:
    return world.set_hub(number, published=view, granted=None, asked=None, missed=frozenset())


def _notes(
    world: Small,
    number: int,
    hub: HubOf,
    known: frozenset[KnownView],
    here: set[str],
    rules: Rules,
    fresh: KnownView,
) -> Iterator[Small]:
    """Those who are counted, and in no part of the next view, are asked to note it, and do."""
    if hub.ahead != fresh:
        without, with_all = (_verdicts(world, hub, known, here, rules, fresh, noted=noted) for noted in (set(), here))
        if any(
            isinstance(one, Stay) and not isinstance(other, Stay) for one, other in zip(without, with_all, strict=True)
        ):
            yield world.set_hub(number, ahead=fresh)
        return
    for name in here - fresh.nodes:
        node = world.of(name)
        if fresh not in node.known:
            yield world.set(name, known=node.known | {fresh}, over=max(node.over, fresh.generation))


def _verdicts(
    world: Small,
    hub: HubOf,
    known: frozenset[KnownView],
    here: set[str],
    rules: Rules,
    fresh: KnownView,
    noted: set[str] | None = None,
) -> list[GoOn | NeedsClaim | Stay]:
    """Of one that knows nothing of those who are not here; and of one that knows who of them is dead, and to whom a
    firewall says so of all.

    fresh  the next view   noted: who knows of it beside its own nodes; None: who has said so
    """
    if noted is None:
        noted = {name for name in here if hub.ahead == fresh and fresh in world.of(name).known}
    dead = {name for name, node in world.nodes if not node.alive}
    absent = {name for name, _ in world.nodes} - here
    who = {"present": here, "knowing": fresh.nodes | noted, "departed": hub.departed}
    signs = not hub.silent or (hub.giver in here and world.gives(hub.giver))
    silence = rules.may_go_on(known, **who, dead=set(), refusing=set(), signs=signs)
    word = rules.may_go_on(known, **who, dead=dead, refusing=absent, signs=signs)
    return [silence, word]


def answered(world: Small, asking: Asking, rules: Rules) -> Small:
    """At one instant: the next claim is taken, or those whom the newest does not name are moved on from.

    The hub that its worker is with now hears of it. It counts there, if it is what that hub has asked for.
    """
    world = world._replace(asking=world.asking - {asking})
    number = world.of(asking.worker).hub
    hub = world.hubs[number] if number is not None else None
    counts = hub is not None and hub.asked == asking.nodes and not hub.over
    if number is not None:
        world = world.set_hub(number, unanswered=world.hubs[number].unanswered - {asking.worker})
    newest = world.claims[-1].nodes
    facts = {"to": asking.to, "nodes": asking.nodes, "newest": len(world.claims), "its_nodes": newest}
    if rules.may_succeed(**facts):
        world = world.claimed(asking.nodes, world.hubs[asking.hub].node, asking.worker)
        claim = len(world.claims)
        world = world.set(asking.worker, claim=claim)
        if number is None:
            return world
        world = _gives(_learns(world, number, claim), asking.worker)
        return world.set_hub(number, asked=None, granted=(claim, asking.nodes)) if counts else world
    if counts and number is not None:
        world = world.set_hub(number, asked=None)
        for name in asking.nodes - newest:
            world = _without(world, name)
    return world


def key(view: KnownView) -> tuple[int, frozenset[str]]:
    return view.generation, view.nodes


# who trains


def trains(world: Small) -> Small:
    """A step is applied only where the workers of all nodes of a view have met, and none has left it."""
    for trained in sorted(training(world)):
        if trained[:2] != world.line[-1][:2]:
            world = world._replace(line=(*world.line, trained))
    return world


def training(world: Small) -> set[Trained]:
    within: dict[tuple[int, frozenset[str]], dict[str, int]] = {}
    for name, node in world.nodes:
        for one in node.known if node.alive and node.holds else ():
            if one.met and one.generation > node.over:
                within.setdefault(key(one), {})[name] = one.claim or 0
    return {Trained(*key, max(claims.values())) for key, claims in within.items() if claims.keys() >= key[1]}
