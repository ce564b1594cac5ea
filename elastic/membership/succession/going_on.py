"""What a hub knows of those who might go on elsewhere, and what it must have before its own side does.

Pure but for what it remembers.

The rule is succession.py's. Here is what it is asked with, and what becomes of its answers: who is asked to take the
claim, how long a side that is no majority lets others try first, and what people are told while nobody may go on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from elastic.membership.succession.node_report import NodeReport, number_of
from elastic.membership.succession.succession import (
    GoOn,
    KnownView,
    NeedsClaim,
    SideSize,
    Stay,
    may_be_elsewhere,
    may_go_on,
    possible,
    suffices,
)

# so long a side leaves the claim to the others
LET_FIRST_S = {SideSize.MAJORITY: 0.0, SideSize.HALF: 1.0, SideSize.MINORITY: 2.5}
# the same where nobody of it holds the state: it is looked for with them once a second (launch/hub/step_down.py), and
# who begins anew from a storage that is theirs finds that out after another 15 s, and has its worker start once more
LET_HOLDERS_S = 5.0
_AGAIN_S = 1.0  # after a storage that failed
_PATIENCE_S = 5.0  # with a worker that is at its storage, before another one is asked; then twice as long, and so on
ClaimDocument = dict[str, Any]
_Name = tuple[str, ...]
_View = tuple[int, frozenset[str]]


@dataclass(frozen=True, kw_only=True)
class Ask:
    """A worker is to take the claim under which these nodes go on, in the view with that generation."""

    worker: str
    generation: int
    nodes: frozenset[str]
    at_s: float


@dataclass(kw_only=True)
class Noting:
    """The next view, as those who are counted, and in no part of it, are to note it.

    number  of this question
    asked   them, and who of them has
    """

    number: int
    view: _View
    since_s: float
    asked: dict[str, bool] = field(default_factory=dict)

    @property
    def knowing(self) -> frozenset[str]:
        """Return the nodes that know of the view: its own, and those that have noted it."""
        return self.view[1].union(node for node, has_noted in self.asked.items() if has_noted)

    @property
    def awaited(self) -> list[str]:
        return [node for node, has_noted in self.asked.items() if not has_noted]


class GoingOn:
    """Keeps what one hub knows of those who might go on elsewhere. claim: the run's, as far as is known."""

    def __init__(self) -> None:
        self.claim: ClaimDocument | None = None
        self._known: tuple[KnownView, ...] = ()
        self._knowing: dict[_View, set[str]] = {}  # nodes here that know of a view, as they have said or were told here
        self._departed: set[str] = set()
        self._dead: set[str] = set()
        self._refusing: set[str] = set()
        self._read: dict[str, set[_Name]] = {}  # node -> claims that it has read in its storage
        self._sees: set[str] = set()  # nodes of a view of which the storage was the witness: they have one
        self._granted: frozenset[str] | None = None
        self._noting: Noting | None = None
        self._notings = 0
        self._alone_since_s: float | None = None
        self._ask: Ask | None = None  # whose answer counts
        self._busy: set[str] = set()  # workers of which no answer has come, and another one was asked
        self._unanswered: set[str] = set()  # workers that were asked, those that are away among them
        self._unsure = False  # whether there is a claim that is known to nobody: one who was asked ended, or went
        self._patience_s = _PATIENCE_S
        self._again_s = 0.0

    # who is where

    def departs(self, node: str) -> None:
        """Note that a node has said that it goes."""
        self._departed.add(node)

    @property
    def departed(self) -> frozenset[str]:
        return frozenset(self._departed)

    def dead(self, node: str) -> None:
        """Note that a node's process has ended, as the kernel of this machine says, which is its own."""
        self._dead.add(node)

    def refuses(self, node: str) -> None:
        """Note that a node's machine does not take connections for it, or something in between says so."""
        self._refusing.add(node)

    def is_away(self, node: str) -> None:
        """Note that a node is not with this hub any more."""
        # even if it comes back: it may have been with others meanwhile, who took the next claim
        for nodes in self._knowing.values():
            nodes.discard(node)
        if self._noting is not None:
            self._noting.asked.pop(node, None)
        if self._granted is not None and node in self._granted:
            self._granted = None
        if self._ask is not None and node in self._ask.nodes:
            self._ask = None

    def is_here(self, node: str, newest: Mapping[str, Any] | None = None) -> None:
        """Note that a node is here; newest: the claim that one of its workers has read in its storage."""
        self._departed.discard(node)
        self._dead.discard(node)
        self._refusing.discard(node)
        if newest is not None:
            self.has_read(node, newest)

    def has_read(self, node: str, claim: Mapping[str, Any]) -> None:
        """Note that a worker of this node has read the claim in its storage."""
        # a view that was published before stays what it was: others may know of it, and of this not
        self._read.setdefault(node, set()).add(_name_of(claim))

    def worker_ended(self, worker: str) -> None:
        """Note the end of a worker whose node is here: it may have had a claim to take."""
        self._unsure |= worker in self._unanswered
        self._unanswered.discard(worker)

    def reported(self, node: str, report: NodeReport) -> None:
        """Take in the report of a node that comes from another hub, or back."""
        for view in report.known:
            self._knowing.setdefault(_view(view), set()).add(node)
            if view.claim is not None and not view.counted:
                self._sees |= view.nodes
        self._known = (*self._known, *(view for view in report.known if view not in self._known))
        if report.claim is not None:
            self.learn(report.claim)
        self._unsure |= bool(report.asked)
        self._unanswered -= report.workers.keys() - report.asked  # they have told another hub

    def missing(self, present: Collection[str]) -> frozenset[str]:
        """Return the nodes that may be going on elsewhere, while this side may not."""
        found = self._may_go_on(present, present)
        return frozenset() if isinstance(found, GoOn) else self.nodes - set(present) - self._departed

    def may_be_elsewhere(self, *, took_over: bool) -> bool:
        """Return whether others may go on, where nobody here holds the state: see succession.py.

        took_over  this hub may not know what an earlier one of its agent's has asked for
        """
        asked = took_over or bool(self._unanswered)  # by a worker that may go on with another hub
        return may_be_elsewhere(self._known, knowing=self._knows, departed=self._departed, asked=asked)

    @property
    def nodes(self) -> frozenset[str]:
        """Return the nodes of the views in which the run may stand."""
        return frozenset[str]().union(*(view.nodes for view in self._known))

    # views

    def publishes(self, generation: int, nodes: Collection[str], *, anew: bool = False) -> bool:
        """Note that a view is published; return whether the storage is its witness.

        anew  nobody in it holds the state: until it has met, others may go on in one that was published before
        """
        witness = self._is_witness_of(nodes)
        if witness:
            self._sees |= set(nodes)
        claim = number_of(self.claim) if witness else None
        fresh = KnownView(generation=generation, nodes=frozenset(nodes), claim=claim)
        before = self._newest_met()
        if anew:
            before += tuple(view for view in possible(self._known) if view not in before and self._is_away(view))
        self._known = (*before, fresh)
        self._knowing = {_view(view): self._knows(view) for view in self._known}
        self._knowing[_view(fresh)] = set(nodes)
        self._unsure &= self._granted is None
        self._granted = self._alone_since_s = self._ask = self._noting = None
        self._patience_s = _PATIENCE_S
        return witness

    def met(self, generation: int, node: str) -> None:
        """Note that all workers of the view have met, as one of this node says."""
        published = [view for view in self._known if view.generation == generation and not view.noted]
        one = next((view for view in published if node in view.nodes), None)
        if one is not None and not one.met:
            newer = (view for view in self._known if view.generation > generation)
            self._known = (replace(one, met=True), *newer)

    def known_view(self, generation: int, nodes: frozenset[str]) -> KnownView | None:
        """Return what is known of a view; of two nodes' words the one that says more."""
        of_it = [view for view in self._known if view.generation == generation]
        found = [view for view in of_it if view.nodes is nodes or view.nodes == nodes]  # to compare takes each node
        return max(found, key=lambda view: (view.met, view.claim or 0), default=None)

    def has_met(self, generation: int, nodes: frozenset[str]) -> bool:
        """Return whether all workers of this view have met, as far as is known."""
        view = self.known_view(generation, nodes)
        return view is not None and view.met

    def is_witnessed(self, generation: int) -> bool:
        """Return whether the storage decides who goes on without others of this view."""
        return any(
            view.generation == generation and view.claim is not None and not view.counted for view in self._known
        )

    def may_be_witnessed(self, generation: int) -> bool:
        """Return whether the storage is no witness of this view, and would be of its nodes' next one."""
        view = next((view for view in self._known if view.generation == generation and not view.noted), None)
        return view is not None and view.claim is None and self._is_witness_of(view.nodes)

    def has_moved_on_from(self, node: str, generation: int) -> bool:
        """Return whether there was a newer view, without that node, whose nodes have all left in order.

        What they held is in the storage, and is newer than what that node holds.
        """
        newer = (view for view in self._known if view.generation > generation and not view.noted)
        return any(node not in view.nodes and view.nodes <= self._departed for view in newer)

    def witness(self, claim: ClaimDocument, *, agreed: bool) -> None:
        """Note a view's claim, as messages.Witness says it."""
        self.learn(claim)
        number = number_of(claim)
        # one that has agreed says so for all: whatever comes later was said before
        self._known = tuple(
            replace(view, claim=number, counted=not agreed and (view.claim != number or view.counted))
            for view in self._known
        )
        if agreed:
            self._sees |= self.nodes

    def _is_witness_of(self, nodes: Collection[str]) -> bool:
        """Return whether the storage is the witness of a view of these nodes."""
        # Where no node is known to see the run's storage, who finds the claim there may have taken it in a folder of
        # its own, and others who come have another one.
        return not self._sees.isdisjoint(nodes) and all(self._sees_storage(node) for node in nodes)

    def _sees_storage(self, node: str) -> bool:
        """Return whether a node is known to see the run's storage."""
        # One that has read an older claim of the run may have done so in a folder of its own: where no storage is the
        # witness, a majority takes claims wherever it can.
        is_read = self.claim is not None and _name_of(self.claim) in self._read.get(node, ())
        return is_read or node in self._sees

    # going on

    def learn(self, claim: ClaimDocument) -> bool:
        """Take the claim as the run's, and return True, if it is newer than the one that is known."""
        is_newer = (number_of(claim) or 0) > (number_of(self.claim) or 0)
        if is_newer:
            self.claim = claim
        return is_newer

    def won(self, worker: str, generation: int, claim: ClaimDocument) -> bool:
        """Note that this worker has got a claim; return whether this hub has asked for it and still needs it."""
        self._has_answered(worker)
        is_newer, ask = self.learn(claim), self._ask
        if ask is None or (ask.worker, ask.generation, ask.nodes) != (worker, generation, nodes_of(claim)):
            return False  # somebody else may have taken another one since
        self._ask = None
        if any(view.counted for view in self._known):  # a majority decides, and its own folder counts as it can
            self.claim, self._sees = claim, set()
        elif not is_newer:
            return False
        self._granted = ask.nodes
        return True

    def failed(self, now_s: float, worker: str) -> None:
        """Note that this worker could not ask the storage."""
        self._has_answered(worker)
        if self._ask is not None and self._ask.worker == worker:
            self._ask, self._again_s = None, now_s + _AGAIN_S

    def lost_to(self, worker: str, theirs: ClaimDocument) -> frozenset[str] | None:
        """Note that others have that claim, as a worker says; return its nodes, which may ask again.

        None: what it says is older than what is known here.
        """
        self._has_answered(worker)
        if self._ask is not None and self._ask.worker == worker:
            self._ask = None
        return nodes_of(theirs) if (number_of(theirs) or 0) > (number_of(self.claim) or 0) else None

    def verdict(
        self, now_s: float, present: Collection[str], *, holding: Collection[str], signs: bool
    ) -> GoOn | NeedsClaim | Stay | str:
        """Return whether this side may go on; a text: it is not time yet, and why.

        present  nodes that are here
        holding  those of them whose workers hold the state
        signs    see succession.may_go_on
        """
        found = self._may_go_on(present, present, signs=signs)
        newest = number_of(self.claim)
        if isinstance(found, GoOn) and self._unsure and newest is not None:
            found = NeedsClaim(
                after=newest, size=SideSize.MAJORITY, why="a worker that was to take the next claim is gone"
            )
        if isinstance(found, GoOn):
            self._alone_since_s = None
            return found
        if self._alone_since_s is None:
            self._alone_since_s = now_s
        if isinstance(found, Stay):
            return found
        if self._granted is not None and suffices(self._granted, holding=holding, departed=self._departed):
            return GoOn()
        let_first_s = LET_FIRST_S[found.size]
        if not holding and not self.missing(present) <= self._dead | self._refusing:
            let_first_s = max(let_first_s, LET_HOLDERS_S)
        if now_s - self._alone_since_s < let_first_s:
            return found.why
        return found if now_s >= self._again_s else found.why

    def to_note(
        self, now_s: float, present: Collection[str], *, generation: int, nodes: Collection[str]
    ) -> tuple[Noting, list[str]] | None:
        """Return who is to note the next view before it is published, and whom of these to ask now.

        None: enough of those who are counted know of it. Called at the last moment: what was noted and does not come
        must be reckoned with by whoever they come to.
        """
        view = generation, frozenset(nodes)
        noting = self._noting
        if noting is None or noting.view != view:
            self._notings += 1
            noting = self._noting = Noting(number=self._notings, view=view, since_s=now_s)
        if not isinstance(self._may_go_on(present, noting.knowing), Stay):
            return None
        counted = frozenset[str]().union(*(one.nodes for one in possible(self._known) if one.is_counted))
        asked = sorted(counted.intersection(present) - view[1] - noting.asked.keys())
        noting.asked.update(dict.fromkeys(asked, False))
        return noting, asked

    def noted(self, node: str, number: int) -> None:
        """Note that a node knows of the view that it was asked to note by that number."""
        if self._noting is not None and self._noting.number == number and node in self._noting.asked:
            self._noting.asked[node] = True

    def asks(self, now_s: float, generation: int, holding: Mapping[str, str]) -> Ask | None:
        """Return who is to be asked for the claim now; None: one of them was, and has a while to answer.

        holding  worker -> node, of those who hold the state, the first choice first
        """
        nodes, ask = frozenset(holding.values()), self._ask
        self._busy.intersection_update(holding)
        free = [worker for worker in holding if worker not in self._busy]
        if ask is not None and (ask.generation, ask.nodes) == (generation, nodes) and ask.worker in holding:
            others = [worker for worker in free if worker != ask.worker]
            if now_s - ask.at_s < self._patience_s or not others:
                return None
            self._busy.add(ask.worker)
            self._patience_s *= 2
            free = others
        worker = free[0] if free else next(iter(holding))
        self._ask = Ask(worker=worker, generation=generation, nodes=nodes, at_s=now_s)
        self._unanswered.add(worker)
        return self._ask

    def _has_answered(self, worker: str) -> None:
        self._busy.discard(worker)
        self._unanswered.discard(worker)

    def _may_go_on(
        self, present: Collection[str], knowing: Collection[str], *, signs: bool = True
    ) -> GoOn | NeedsClaim | Stay:
        """Return what succession.py says of a side with these nodes, by all that is known here."""
        gone = {"departed": self._departed, "dead": self._dead, "refusing": self._refusing}
        return may_go_on(self._known, present=present, knowing=knowing, signs=signs, **gone)

    def waits_s(self, now_s: float) -> float:
        """Return for how many seconds this side has not been free to go on."""
        return now_s - self._alone_since_s if self._alone_since_s is not None else 0.0

    def _knows(self, view: KnownView) -> set[str]:
        """Return the nodes here that know of a view."""
        return self._knowing.get(_view(view), set())

    def _is_away(self, view: KnownView) -> bool:
        """Return whether a node of the view is not known to be here with it, and has not left in order."""
        return not view.nodes <= self._knows(view) | self._departed

    def _newest_met(self) -> tuple[KnownView, ...]:
        """Return the newest view that has met, if any has."""
        met = [view for view in self._known if view.met]
        return (max(met, key=lambda view: view.generation),) if met else ()


def _view(view: KnownView) -> _View:
    return view.generation, view.nodes


def nodes_of(claim: Mapping[str, Any]) -> frozenset[str]:
    """Return the nodes for which a claim was taken; none for what another job has written there."""
    world = claim.get("world")
    nodes = world.get("nodes") if isinstance(world, Mapping) else None
    return frozenset(map(str, nodes)) if isinstance(nodes, list) else frozenset()


def _name_of(claim: Mapping[str, Any]) -> _Name:
    """Return a name of the claim that no claim of another folder has."""
    # folders count alike, and an agent's liveness endpoint gives all claims of its life one nonce
    return tuple(str(claim.get(key)) for key in ("claim", "nonce", "taken_at"))
