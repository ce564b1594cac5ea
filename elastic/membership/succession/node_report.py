"""What a node knows of the run, kept by its agent for the next hub: the one that there is may be gone at any time.

Views are soft state: a hub that takes over knows nothing but what the agents that come to it report, and the words that
their workers said last, which are said to it once more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec import structs

from elastic.membership.messages.message_checks import Port, Slot, check_claim
from elastic.membership.messages.messages import (
    TO_HUB,
    TO_WORKER,
    Claimed,
    Entered,
    Exited,
    Failed,
    Finished,
    GroupForms,
    Leaving,
    NewView,
    Ready,
    Roster,
    Saved,
    Started,
    StopAll,
    TakeClaim,
    TakeNote,
    ViewIsOver,
    Witness,
    World,
    as_message,
    parse_nested,
)
from elastic.membership.messages.wire import WireError
from elastic.membership.succession.ended_before import EndedBefore, with_exit
from elastic.membership.succession.succession import KnownView
from elastic_checkpoint.net.codec import Facts, Int, Name, NotAMessage, Tagged, made, short

_KEPT: dict[type[Tagged], str] = {Ready: "ready", ViewIsOver: "stands", Leaving: "stands", Failed: "failed"}


@dataclass
class ReportedWorker:
    """A worker, as its agent reports it.

    generation  of the view that it is in; 0: none yet
    said        its last words, in order
    started_s   on its agent's clock
    """

    worker: str
    local_rank: int
    generation: int = 0
    said: dict[str, Any] = field(default_factory=dict)
    started_s: float = 0.0


@dataclass
class NodeReport:
    """What one node knows of the run.

    generation  the newest that this node has heard of
    view    the newest that any worker of this node was told of
    claim   the run's, as far as is known here
    asked   workers of this node that were to take the next claim, and nobody knows whether they have
    ended   workers of this node that were not to
    meets_at  where the default group of this node's workers would meet; None: they have no place in a world
    restarts  see World.restart_count; None: torch.distributed's default group has not formed, as far as is known here
    noted_here  of the known, what the present hub has asked to be noted: it may say otherwise
    """

    generation: int = 0
    view: NewView | None = None
    known: tuple[KnownView, ...] = ()
    claim: dict[str, Any] | None = None
    saved: int = -1
    finished: bool = False
    workers: dict[str, ReportedWorker] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)
    ended: tuple[EndedBefore, ...] = ()
    meets_at: tuple[str, int] | None = None
    restarts: int | None = None
    noted_here: KnownView | None = None

    def note_said(self, said: Any, now_s: float = 0.0) -> None:
        """Take in what this node's agent, or one of its workers, says to the hub."""
        match said:
            case Started(worker=worker, local_rank=local_rank):
                self.workers[worker] = ReportedWorker(worker, local_rank, started_s=now_s)
            case Exited(worker=worker):
                one = self.workers.pop(worker, None)
                if one is not None and not self.finished:
                    self.ended = with_exit(
                        self.ended, said, one.said, local_rank=one.local_rank, now_s=now_s, started_s=one.started_s
                    )
            case Entered(generation=generation):
                self._met(generation)
            case Witness(claim=claim, agreed=agreed):
                self._witness(claim, agreed=agreed)
            case Claimed(worker=worker, claim=claim):
                self.asked.discard(worker)
                if not said.moved_on and (number_of(claim) or 0) > (number_of(self.claim) or 0):
                    self.claim = claim
            case Saved(step=step):
                self.saved = max(self.saved, step)
            case Finished():
                self.finished = True
        speaker = self.workers.get(getattr(said, "worker", ""))
        if speaker is not None and type(said) in _KEPT:
            speaker.said[_KEPT[type(said)]] = said

    def note_ordered(self, worker: str | None, said: Any) -> None:
        """Take in what the hub says to this node's agent, or to one of its workers."""
        if isinstance(said, Roster | NewView):
            self.generation = max(self.generation, said.generation)
        if isinstance(said, Roster):
            self._note_roster(said)
        if isinstance(said, TakeNote):
            self._note_next(said)
        if isinstance(said, GroupForms):
            self.restarts = said.restarts
        if isinstance(said, World):
            self.meets_at = said.master_addr, said.master_port
            if said.formed:
                self.restarts = said.restart_count
        if isinstance(said, StopAll):
            self.meets_at = None
        if isinstance(said, TakeClaim) and worker is not None:
            self.asked.add(worker)
        if not isinstance(said, NewView):
            return
        if worker in self.workers:
            self.workers[worker].generation = said.generation
            self.workers[worker].said.pop("stands", None)
        if self.view is None or said.generation > self.view.generation:
            if self.view is not None and said.run != self.view.run:
                self._begin_run()
            self.view = structs.replace(said, gone=[], not_lost=[])  # of which this view has told
            if (number_of(said.claim) or 0) > (number_of(self.claim) or 0):
                self.claim = said.claim
                self.asked.clear()
            fresh = KnownView(
                generation=said.generation,
                nodes=frozenset(said.nodes),
                claim=number_of(said.claim) if said.witness else None,
            )
            self.known = (*(one for one in self.known if one.met), fresh)

    def _begin_run(self) -> None:
        """Forget the run before, which says nothing of the script's next."""
        self.known, self.claim, self.saved, self.finished, self.ended = (), None, -1, False, ()
        self.asked.clear()

    def _note_roster(self, roster: Roster) -> None:
        """Note the view of a roster, if this node has no part in it, or was not told of it yet."""
        nodes = frozenset(name for name, *_ in roster.nodes).difference(roster.outside).union(roster.away)
        others = [one for one in self.known if one is not self.noted_here]
        if nodes and roster.generation > max((one.generation for one in others), default=0):
            fresh = KnownView(generation=roster.generation, nodes=nodes, claim=roster.claim)
            self.known, self.noted_here = (*(one for one in others if one.met), fresh), None

    def _note_next(self, said: TakeNote) -> None:
        """Note a view that may be published next."""
        self.generation = max(self.generation, said.generation)
        others = [one for one in self.known if one is not self.noted_here]
        self.noted_here = KnownView(generation=said.generation, nodes=frozenset(said.nodes), noted=True)
        self.known = (*others, self.noted_here)  # others may stand in those that were

    def without_workers(self) -> NodeReport:
        """Return what stays where the node's workers are of no use: views that others may be in."""
        return NodeReport(
            generation=self.generation, known=self.known, claim=self.claim, asked=self.asked, ended=self.ended
        )

    def document(self, now_s: float = 0.0) -> dict[str, Any]:
        """Return it for a hub. What is noted by now stays noted, whatever that one says of views to come."""
        self.noted_here = None
        return as_message(
            _Report(
                ended=[structs.replace(one, at_s=now_s - one.at_s) for one in self.ended],
                generation=self.generation,
                view=self.view,
                known=[_Known(**{**vars(one), "nodes": sorted(one.nodes)}) for one in self.known],
                claim=self.claim,
                asked=sorted(self.asked),
                saved=self.saved,
                finished=self.finished,
                meets_at=self.meets_at,
                restarts=self.restarts,
                workers=[
                    _Worker(
                        worker=one.worker,
                        local_rank=one.local_rank,
                        generation=one.generation,
                        said=[as_message(said) for said in one.said.values()],
                    )
                    for one in self.workers.values()
                ],
            )
        )

    @classmethod
    def from_document(cls, facts: Mapping[str, Any]) -> NodeReport:
        """Return the report in these facts. Raises WireError."""
        try:
            found = made(_Report, facts)
            view, workers = _view(found.view), [one.reported() for one in found.workers]
            if max((one.generation for one in workers), default=0) > (view.generation if view is not None else 0):
                raise WireError("a worker is in a view that is newer than the one that is reported")
            return cls(
                generation=found.generation,
                view=view,
                known=tuple(one.view() for one in found.known),
                claim=found.claim,
                asked=set(found.asked),
                saved=found.saved,
                finished=found.finished,
                meets_at=found.meets_at,
                restarts=found.restarts,
                ended=tuple(found.ended),
                workers={one.worker: one for one in workers},
            )
        except (NotAMessage, WireError) as wrong:
            raise WireError(f"no report of a node: {wrong}") from wrong

    def _met(self, generation: int) -> None:
        """Note that the newest view has met, if it is the one of this generation: older ones are over."""
        if self.known and self.known[-1].generation == generation:
            self.known = (replace(self.known[-1], met=True),)

    def _witness(self, claim: dict[str, Any], *, agreed: bool) -> None:
        """Note the run's claim, and that a majority is needed as long as not all nodes know of it."""
        self.claim = claim
        self.known = tuple(replace(one, claim=number_of(claim), counted=not agreed) for one in self.known)


def number_of(claim: Mapping[str, Any] | None) -> int | None:
    """Return the number in a claim's document; None: there is no claim."""
    return int(claim["claim"]) if claim is not None else None


class _Known(Facts):
    """A KnownView as it travels; nodes: names, or read already (known_lists.py), as many nodes report it."""

    generation: Int
    nodes: Any
    claim: Int | None
    counted: bool
    met: bool
    noted: bool

    def __post_init__(self) -> None:
        read_already = isinstance(self.nodes, frozenset)
        if not read_already and not (
            isinstance(self.nodes, list) and all(isinstance(node, str) for node in self.nodes)
        ):
            raise ValueError(f"no nodes of a view: {short(self.nodes)}")

    def view(self) -> KnownView:
        return KnownView(**{**structs.asdict(self), "nodes": frozenset(self.nodes)})


class _Worker(Facts):
    """A ReportedWorker as it travels."""

    worker: Name
    local_rank: Slot
    generation: Int
    said: list[dict[str, Any]]

    def reported(self) -> ReportedWorker:
        """Return it with its last words. Raises WireError."""
        worker = ReportedWorker(self.worker, self.local_rank, self.generation)
        for message in self.said:
            said = parse_nested(TO_HUB, message)
            if type(said) not in _KEPT or said.worker != self.worker:
                raise WireError(f"among the last words of {self.worker}: {short(message)}")
            worker.said[_KEPT[type(said)]] = said
        return worker


class _Report(Facts):
    """A NodeReport as it travels; view: read already, where it travelled by its hash."""

    generation: Int
    view: Any
    known: list[_Known]
    claim: dict[str, Any] | None
    asked: list[str]
    saved: Int
    finished: bool
    ended: list[EndedBefore]
    workers: list[_Worker]
    meets_at: tuple[Name, Port] | None = None
    restarts: Int | None = None

    def __post_init__(self) -> None:
        check_claim(self.claim)


def _view(message: Any) -> NewView | None:
    """Return the view of a report. Raises WireError."""
    if message is None or isinstance(message, NewView):  # many nodes report one, which was read once
        return message
    view = parse_nested(TO_WORKER, message) if isinstance(message, dict) else None
    if not isinstance(view, NewView):
        raise WireError(f"no view: {short(message)}")
    return view
