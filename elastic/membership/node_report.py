"""What a node knows of the run, kept by its agent for the next hub: the one that there is may be gone at any time.

Views are soft state: a hub that takes over knows nothing but what the agents that come to it report, and the words that
their workers said last, which are said to it once more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from elastic.membership.messages import (
    TO_HUB,
    TO_WORKER,
    Claimed,
    Entered,
    Exited,
    Failed,
    Finished,
    Leaving,
    NewView,
    Ready,
    Roster,
    Saved,
    Started,
    ViewIsOver,
    Witness,
    as_message,
    parse,
)
from elastic.membership.succession import KnownView
from elastic.membership.wire import Message, WireError

_KEPT = {Ready: "ready", ViewIsOver: "stands", Leaving: "stands", Failed: "failed"}


@dataclass
class ReportedWorker:
    """generation: of the view that it is in; 0: none yet   said: its last words, in order"""

    worker: str
    local_rank: int
    generation: int = 0
    said: dict[str, Any] = field(default_factory=dict)


@dataclass
class NodeReport:
    """generation  the newest that this node has heard of
    view    the newest that any worker of this node was told of
    claim   the run's, as far as is known here
    """

    generation: int = 0
    view: NewView | None = None
    known: tuple[KnownView, ...] = ()
    claim: dict[str, Any] | None = None
    saved: int = -1
    finished: bool = False
    workers: dict[str, ReportedWorker] = field(default_factory=dict)

    def told(self, said: Any) -> None:
        """By this node's agent or one of its workers, to the hub."""
        match said:
            case Started(worker=worker, local_rank=local_rank):
                self.workers[worker] = ReportedWorker(worker, local_rank)
            case Exited(worker=worker):
                self.workers.pop(worker, None)
            case Entered(generation=generation):
                self._met(generation)
            case Witness(claim=claim, agreed=agreed):
                self._witness(claim, agreed=agreed)
            case Claimed(claim=claim) if claim is not None:
                self.claim = claim
            case Saved(step=step):
                self.saved = max(self.saved, step)
            case Finished():
                self.finished = True
        speaker = self.workers.get(getattr(said, "worker", ""))
        if speaker is not None and type(said) in _KEPT:
            speaker.said[_KEPT[type(said)]] = said

    def ordered(self, worker: str | None, said: Any) -> None:
        """By the hub."""
        if isinstance(said, Roster | NewView):
            self.generation = max(self.generation, said.generation)
        if not isinstance(said, NewView):
            return
        if worker in self.workers:
            self.workers[worker].generation = said.generation
            self.workers[worker].said.pop("stands", None)
        if self.view is None or said.generation > self.view.generation:
            self.view = replace(said, gone=[])  # of which this view has told
            self.claim = said.claim or self.claim
            fresh = KnownView(
                generation=said.generation,
                nodes=frozenset(said.nodes),
                claim=number_of(said.claim) if said.witness else None,
            )
            self.known = (*(one for one in self.known if one.met), fresh)

    def document(self) -> dict[str, Any]:
        return {
            "generation": self.generation,
            "view": as_message(self.view) if self.view is not None else None,
            "known": [_document(one) for one in self.known],
            "claim": self.claim,
            "saved": self.saved,
            "finished": self.finished,
            "workers": [
                {
                    "worker": one.worker,
                    "local_rank": one.local_rank,
                    "generation": one.generation,
                    "said": [as_message(said) for said in one.said.values()],
                }
                for one in self.workers.values()
            ],
        }

    @classmethod
    def from_document(cls, facts: Mapping[str, Any]) -> NodeReport:
        """Raises WireError."""
        try:
            return cls(
                generation=int(facts["generation"]),
                view=_view(facts["view"]),
                known=tuple(_known(one) for one in facts["known"]),
                claim=facts["claim"] if isinstance(facts["claim"], dict) else None,
                saved=int(facts["saved"]),
                finished=bool(facts["finished"]),
                workers={one.worker: one for one in _workers(facts["workers"])},
            )
        except (KeyError, TypeError, ValueError, AttributeError) as wrong:
            raise WireError(f"no report of a node: {wrong!r}") from wrong

    def _met(self, generation: int) -> None:
        if self.known and self.known[-1].generation == generation:
            self.known = (replace(self.known[-1], met=True),)

    def _witness(self, claim: dict[str, Any], *, agreed: bool) -> None:
        self.claim = claim
        self.known = tuple(replace(one, claim=number_of(claim), counted=not agreed) for one in self.known)


def number_of(claim: Mapping[str, Any] | None) -> int | None:
    """Of a claim's document."""
    return int(claim["claim"]) if claim is not None else None


def _view(message: Message | NewView | None) -> NewView | None:
    if isinstance(message, NewView):  # many nodes report one, which was read once
        return message
    view = parse(TO_WORKER, message) if message is not None else None
    if not isinstance(view, NewView | None):
        raise WireError(f"no view: {message}")
    return view


def _document(view: KnownView) -> dict[str, Any]:
    return {**asdict(view), "nodes": sorted(view.nodes)}


def _known(facts: Mapping[str, Any]) -> KnownView:
    return KnownView(
        generation=int(facts["generation"]),
        nodes=nodes if isinstance(nodes := facts["nodes"], frozenset) else frozenset(map(str, nodes)),
        claim=int(facts["claim"]) if facts["claim"] is not None else None,
        counted=bool(facts["counted"]),
        met=bool(facts["met"]),
    )


def _workers(documents: Any) -> Iterator[ReportedWorker]:
    for one in documents:
        worker = ReportedWorker(str(one["worker"]), int(one["local_rank"]), int(one["generation"]))
        for message in one["said"]:
            said = parse(TO_HUB, message)
            if said.worker != worker.worker:
                raise WireError(f"a word of {said.worker} among those of {worker.worker}")
            worker.said[_KEPT[type(said)]] = said
        yield worker
