"""A state of the small world: what nodes, hubs and the storage are at, and what is on its way. Immutable."""

from __future__ import annotations

from typing import Any, NamedTuple

from elastic.membership.succession.succession import KnownView
from elastic_checkpoint.format.names import CommitId
from elastic_checkpoint.runs.lineage import lineage


class Save(NamedTuple):
    """Of a coordinator. next: what it does now, "look", "commit", or "look again" """

    id: CommitId
    next: str = "look"


class Node(NamedTuple):
    """known  the views that it was told of and may be in
    hub    the one that it is with, its own or another's; None: it looks for one
    given  the newest view in which its workers have given their part, to meet the others
    over   the newest generation whose view they have left
    holds  its workers have the run's state
    claim  the newest that its agent has heard of
    """

    known: frozenset[KnownView]
    hub: int | None = 0
    alive: bool = True
    given: tuple[int, frozenset[str]] = (1, frozenset())
    over: int = 0
    holds: bool = True
    claim: int = 0
    save: Save | None = None


class HubOf(NamedTuple):
    """ahead    the next view, which those who are in no part of it are to note
    giver    the node whose worker gives heartbeats in the storage, if that lives, as far as this hub knows
    silent   they may have ended, once that one is gone
    asked    for which nodes the claim is being asked for, if none of them has been away since
    granted  the number of the claim that it has won, and its nodes
    departed  nodes that have said that they go
    missed   nodes that were away since the view was published, and are not told of it any more
    unanswered  workers that were asked, and may have answered to another hub
    claim    the newest that it has heard of
    """

    node: str
    ahead: KnownView | None = None
    giver: str | None = None
    silent: bool = True
    asked: frozenset[str] | None = None
    granted: tuple[int, frozenset[str]] | None = None
    published: KnownView | None = None
    departed: frozenset[str] = frozenset()
    missed: frozenset[str] = frozenset()
    over: bool = False
    unanswered: frozenset[str] = frozenset()
    claim: int = 0

    def without(self, name: str) -> HubOf:
        asked = None if self.asked is None or name in self.asked else self.asked
        granted = None if self.granted is None or name in self.granted[1] else self.granted
        is_told = self.published is None or name not in self.published.nodes
        missed = self.missed if is_told else self.missed | {name}
        return self._replace(asked=asked, granted=granted, missed=missed)


class Asking(NamedTuple):
    """A worker is at the storage, whatever becomes of the hub that has sent it there.

    to  the newest claim that its hub knows
    """

    hub: int
    worker: str
    to: int
    nodes: frozenset[str]


class Claim(NamedTuple):
    """liveness  the node whose agent answers for it   anew: newcomers took it, who went on from `resumed`"""

    nodes: frozenset[str]
    liveness: str
    taker: str
    resumed: CommitId | None = None
    anew: bool = False


class Anew(NamedTuple):
    """A view of newcomers, which was published by the hub of `liveness`."""

    view: KnownView
    liveness: str
    may_be_elsewhere: bool


class Trained(NamedTuple):
    generation: int
    nodes: frozenset[str]
    claim: int


class Small(NamedTuple):
    """line: the views that have trained, in order of time   faults, kills, saves: how many there may still be

    giving  whose worker gives heartbeats for the newest claim; they last for a while after it. None: they have ended
    """

    nodes: tuple[tuple[str, Node], ...]
    hubs: tuple[HubOf, ...]
    claims: tuple[Claim, ...]
    line: tuple[Trained, ...]
    giving: str | None
    faults: int
    kills: int = 0
    saves: int = 0
    asking: frozenset[Asking] = frozenset()
    anew: frozenset[Anew] = frozenset()
    commits: frozenset[CommitId] = frozenset()
    reported: frozenset[CommitId] = frozenset()

    def of(self, name: str) -> Node:
        return dict(self.nodes)[name]

    def set(self, name: str, **facts: Any) -> Small:
        return self._replace(nodes=tuple((n, o._replace(**facts) if n == name else o) for n, o in self.nodes))

    def set_hub(self, number: int, **facts: Any) -> Small:
        hubs = list(self.hubs)
        hubs[number] = hubs[number]._replace(**facts)
        return self._replace(hubs=tuple(hubs))

    def leaves_hub(self, name: str, **facts: Any) -> Small:
        """Its hub notices, if only when it comes back."""
        hub = self.of(name).hub
        world = self.set(name, hub=None, **facts)
        if hub is None:
            return world
        return world._replace(hubs=tuple(o.without(name) if n == hub else o for n, o in enumerate(world.hubs)))

    def gives(self, name: str | None) -> bool:
        """Whether its worker does, if it was the last one that did."""
        return name is not None and self.of(name).alive and self.of(name).holds

    def saved(self) -> list[CommitId]:
        """The run's commits, newest first."""
        top = max((id.claim for id in self.commits), default=None)
        return lineage(top, self.commits, lambda number: self.claims[number - 1].resumed)

    def claimed(self, nodes: frozenset[str], liveness: str, taker: str, *, anew: bool = False) -> Small:
        """The next claim, at one instant: of two who take it at once, claims.py."""
        resumed = next(iter(self.saved()), None)
        return self._replace(claims=(*self.claims, Claim(nodes, liveness, taker, resumed, anew)), giving=taker)


def first(
    views: dict[str, KnownView], *, faults: int, kills: int = 0, saves: int = 0, without_state: str = "", hub: str = ""
) -> Small:
    """without_state: nodes that are with no hub and have no part in the view"""
    nodes = frozenset(views).difference(without_state)
    hub = hub or min(nodes)
    is_claimed = any(known.claim for known in views.values())
    claims = (Claim(nodes, hub, min(nodes)),) if is_claimed else ()
    every = {name: Node(frozenset([known])) for name, known in views.items()}
    every |= {name: every[name]._replace(hub=None, holds=False, over=1) for name in without_state}
    line = (Trained(1, nodes, len(claims)),)
    of_hub = HubOf(hub, giver=min(nodes), silent=False, claim=len(claims))
    return Small(tuple(every.items()), (of_hub,), claims, line, min(nodes), faults, kills, saves)
