"""What a hub knows of those who might go on elsewhere, and what it must have before its own side does. Pure.

The rule is succession.py's. Here is what it is asked with, and what becomes of its answers: who is asked to take the
claim, how long a side that is no majority lets others try first, and what people are told while nobody may go on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from elastic.membership.node_report import NodeReport, number_of
from elastic.membership.succession import Claim, GoOn, KnownView, Share, Stay, may_go_on

LET_FIRST_S = {Share.MOST: 0.0, Share.HALF: 1.0, Share.FEW: 2.5}  # so long a side leaves the claim to the others
_AGAIN_S = 1.0  # after a storage that failed
ClaimDocument = dict[str, Any]


class GoingOn:
    """Of one hub.

    claim  the run's, as far as is known
    """

    def __init__(self) -> None:
        self.claim: ClaimDocument | None = None
        self._known: tuple[KnownView, ...] = ()
        self._left: set[str] = set()
        self._dead: set[str] = set()
        self._sees: set[str] = set()  # nodes that have read the run's claim in their storage
        self._granted: frozenset[str] | None = None
        self._alone_since_s: float | None = None
        self._asked: str | None = None
        self._again_s = 0.0

    # who is where

    def left(self, node: str) -> None:
        """It has said that it goes."""
        self._left.add(node)

    def dead(self, node: str) -> None:
        """The kernel of its machine says that its process has ended."""
        self._dead.add(node)

    def is_here(self, node: str, newest: Mapping[str, Any] | None = None) -> None:
        """newest: the claim that one of its workers has read in its storage"""
        self._left.discard(node)
        self._dead.discard(node)
        if newest is not None and self.claim is not None and newest.get("nonce") == self.claim.get("nonce"):
            self._sees.add(node)

    def reported(self, report: NodeReport) -> None:
        """By a node that comes from another hub."""
        for view in report.known:
            if view.claim is not None and not view.counted:
                self._sees |= view.nodes
        self._known = (*self._known, *(view for view in report.known if view not in self._known))
        if (number_of(report.claim) or 0) > (number_of(self.claim) or 0):
            self.claim = report.claim

    def missing(self, present: Collection[str]) -> frozenset[str]:
        """Who may be going on elsewhere, while nobody may here."""
        found = may_go_on(self._known, present=present, left=self._left, dead=self._dead)
        return frozenset() if isinstance(found, GoOn) else self.nodes - set(present) - self._left

    @property
    def nodes(self) -> frozenset[str]:
        """Of the views in which the run may stand."""
        return frozenset[str]().union(*(view.nodes for view in self._known))

    # views

    def publishes(self, generation: int, nodes: Collection[str]) -> bool:
        """A view. Whether the storage is its witness."""
        witness = self.claim is not None and self._sees.issuperset(nodes)
        claim = number_of(self.claim) if witness else None
        fresh = KnownView(generation=generation, nodes=frozenset(nodes), claim=claim)
        self._known = (*self._newest_met(), fresh)
        self._granted = self._alone_since_s = self._asked = None
        return witness

    def met(self, generation: int) -> None:
        """All workers of the view have met."""
        if self._known and self._known[-1].generation == generation:
            self._known = (replace(self._known[-1], met=True),)

    def has_met(self, generation: int) -> bool:
        """Whether all workers of this view have met, as far as is known."""
        return any(view.met and view.generation == generation for view in self._known)

    def witness(self, claim: ClaimDocument, *, agreed: bool) -> None:
        """See messages.Witness."""
        self.claim = claim
        self._known = tuple(replace(view, claim=number_of(claim), counted=not agreed) for view in self._known)
        if agreed:
            self._sees |= self.nodes

    # going on

    def granted(self, claim: ClaimDocument, nodes: Collection[str]) -> None:
        """The storage has given this side the next claim."""
        self.claim, self._granted = claim, frozenset(nodes)

    def failed(self, now_s: float) -> None:
        """The storage could not be asked."""
        self._asked, self._again_s = None, now_s + _AGAIN_S

    def verdict(self, now_s: float, present: Collection[str]) -> GoOn | Claim | Stay | str:
        """A text: it is not time yet, and why."""
        found = may_go_on(self._known, present=present, left=self._left, dead=self._dead)
        if isinstance(found, GoOn):
            self._alone_since_s = None
            return found
        if self._alone_since_s is None:
            self._alone_since_s = now_s
        if isinstance(found, Stay):
            return found
        if self._granted is not None and self._granted <= self._left.union(present):
            return GoOn()
        if now_s - self._alone_since_s < LET_FIRST_S[found.share]:
            return found.why
        return found if now_s >= self._again_s else found.why

    def asks(self, living: Iterable[str]) -> str | None:
        """Which of these workers, the first choice first, is to be asked for the claim now; None: one of them was."""
        candidates = list(living)
        if self._asked in candidates:
            return None
        self._asked = candidates[0]
        return self._asked

    def waits_s(self, now_s: float) -> float:
        """Since when somebody is missing."""
        return now_s - self._alone_since_s if self._alone_since_s is not None else 0.0

    def _newest_met(self) -> tuple[KnownView, ...]:
        met = [view for view in self._known if view.met]
        return (max(met, key=lambda view: view.generation),) if met else ()
