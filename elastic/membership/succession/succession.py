"""Nodes are lost, or the one with the hub is: may those who are left go on without them? Pure.

Two sides of a cut network cannot tell each other from the dead. So that never two of them go on, a side without some
of the last view's nodes needs one of

    the run's storage, where all nodes of that view see it   the next claim, of which storage gives one (claims.py)
    a strict majority of that view's nodes, without those    where the storage is a folder of each node's own
    that have left or are known to be dead

A view trains only once all of its workers have met in it, and whoever decides knows the last view of each node that is
with it. So the sides that may go on from one view, or from the one that came of it, always share a node or the claim:
the argument of dynamic voting (Jajodia and Mutchler, 1990), with the storage as a witness that has every vote. A node
that is counted and is in no part of the next view, for its workers have lost the state, notes that view first: it
would be counted once more on another side.
tests/pure/test_succession.py tries all interleavings of a small world.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto


@dataclass(frozen=True, kw_only=True)
class KnownView:
    """A view, as one of its nodes knows it.

    nodes    that have a worker in it
    claim    the number of the claim that the run had then, where all of them have read it in the storage; else None
    counted  a majority is needed all the same: not everybody knows of the claim yet
    met      all of its workers have met in it
    noted    it was to come, and may never have: a node that is in no part of it was counted for it
    """

    generation: int
    nodes: frozenset[str]
    claim: int | None = None
    counted: bool = False
    met: bool = False
    noted: bool = False

    @property
    def is_counted(self) -> bool:
        """Return whether a majority decides who goes on from it."""
        return self.claim is None or self.counted


class SideSize(Enum):
    """The size of one side of a cut network: how many of those who might go on are on it."""

    MAJORITY, HALF, MINORITY = auto(), auto(), auto()


@dataclass(frozen=True)
class GoOn:
    """They may: nobody can go on elsewhere."""


@dataclass(frozen=True, kw_only=True)
class NeedsClaim:
    """They may go on once they have the next claim.

    after  the newest claim that they know of
    size   of the last view's nodes that are here: those who are fewer let the others try first
    why    they need it, for people
    """

    after: int
    size: SideSize
    why: str = field(compare=False)


@dataclass(frozen=True)
class Stay:
    """They may not go on; why: for people."""

    why: str


def may_go_on(
    known: Iterable[KnownView],
    *,
    present: Collection[str],
    knowing: Collection[str],
    departed: Collection[str],
    dead: Collection[str],
    refusing: Collection[str] = (),
    signs: bool = True,
) -> GoOn | NeedsClaim | Stay:
    """Return whether those who are here may go on, may once they have the next claim, or may not.

    known    the last views of all nodes that are present: those that they have met in, and what was published since
    present  nodes that are here
    knowing  those of them that know of the next view before anybody trains in it: its own, and who has noted it
    departed  nodes that said that they go
    dead     nodes of this machine whose process has ended, as its kernel says; the claim is needed all the same,
             because storage knows nothing of processes
    refusing  nodes whose address refuses connections: they are dead, it seems, and a majority of the others need not
             let anybody ask the storage first
    signs    of life are given in the storage, or were until just now, so that nobody can have begun anew from it
             (membership/hub/claiming.py)
    """
    bases = possible(known)
    claims = [view.claim for view in bases if view.claim is not None]
    sizes = [SideSize.MAJORITY]
    why = ""
    for view in bases:
        missing = view.nodes - set(present) - set(departed)
        here = view.nodes & set(present)
        # A refused connection proves nothing: a firewall may refuse it, and what is behind that go on. Only of its own
        # processes a machine's kernel knows that they have ended.
        voters = view.nodes - set(departed) - set(dead)
        if view.is_counted and _side_size(len(here & set(knowing)), len(voters)) != SideSize.MAJORITY:
            return Stay(_stay(view, here, missing))
        if view.claim is not None and missing:
            why = f"{_who(view, here)}: {', '.join(sorted(missing))} may be going on elsewhere"
        elif not view.is_counted and not signs:
            # who holds no state takes the next claim, and begins anew, once nobody has given signs for a while
            why = "whoever gave the run's heartbeats in its storage is gone, and others may have begun anew from it"
        else:
            continue
        sizes.append(_side_size(len(here), len(voters - set(refusing))))
    # the smallest side that any view makes of these has to wait longest: SideSize rises as sides get smaller
    return NeedsClaim(after=max(claims), size=max(sizes, key=lambda one: one.value), why=why) if why else GoOn()


def _side_size(here: int, voters: int) -> SideSize:
    if 2 * here > voters or not voters:
        return SideSize.MAJORITY
    return SideSize.HALF if 2 * here == voters else SideSize.MINORITY


def possible(known: Iterable[KnownView]) -> Sequence[KnownView]:
    """Return the views in which the run may stand: the last one that was met, and what was published after it."""
    views = list(known)
    newest = max((view.generation for view in views if view.met), default=0)
    return [view for view in views if view.generation > newest or (view.generation == newest and view.met)]


def _who(view: KnownView, here: Collection[str]) -> str:
    of = f"{len(here)} of the {len(view.nodes)} nodes of view {view.generation} are here"
    return of if 2 * len(here) > len(view.nodes) else f"{of}, which is no majority"


def _stay(view: KnownView, here: Collection[str], missing: Collection[str]) -> str:
    return (
        f"{_who(view, here)}: {', '.join(sorted(missing))} may be going on elsewhere, and the run's storage, which not "
        "all of them see, cannot tell"
    )


def may_be_elsewhere(
    known: Iterable[KnownView],
    *,
    knowing: Callable[[KnownView], Collection[str]],
    departed: Collection[str],
    asked: bool,
) -> bool:
    """Return whether others may go on under a claim for which this hub's agent answers, if none here has the state.

    knowing  nodes that are here and have said that they know of that view, or were told of it here
    asked    this agent's hub, or an earlier one of its, may have asked for a claim of which it does not know
    """
    # Whoever holds the state got it in the last view, or in one that came of that, and there from a node of the last
    # one. That node would have told of the newer one as it came here. One that knows less than others may have gone
    # back to them, and its end of the connection has not been noticed yet. What refuses connections may be there, and
    # go on. Without a node of that view which is here the others need another claim, for which another hub asks;
    # unless this one has, before.
    bases = possible(known)
    away = [view.nodes - set(knowing(view)).union(departed) for view in bases]
    if asked:
        return not bases or any(away)
    return any(gone and gone == view.nodes - set(departed) for gone, view in zip(away, bases, strict=True))


def may_succeed(*, to: int, nodes: Collection[str], newest: int, its_nodes: Collection[str]) -> bool:
    """Return whether these may take the claim after the newest one.

    to         the newest claim that they know
    nodes      whose workers hold the state, and that would go on
    newest     the newest claim in the storage   its_nodes: for which it was taken
    """
    # Nobody goes on under a claim without all of its nodes (`suffices`). So where all who ask are named by the newest,
    # nobody does under that one. One that is not named may be with those who ask, and another, which is named, with
    # others.
    return newest <= to or set(nodes) <= set(its_nodes)


def suffices(granted: Collection[str], *, holding: Collection[str], departed: Collection[str]) -> bool:
    """Return whether those for whom a claim was taken may go on under it.

    granted  its nodes, none of which has been away since it was asked for
    holding  nodes here whose workers hold the state, and are in the next view
    departed  see may_go_on
    """
    return set(granted) <= set(holding).union(departed)
