"""What workers say to their agent and the hub, and what is said to them. Which words these are is messages.py's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import field

from elastic.membership.messages.message_checks import Base64, Positive, check_claim, check_nonce
from elastic_checkpoint.net.codec import Float, Int, Name, Tagged

ME = "me"  # of a worker, to its agent, which knows who speaks and puts the worker's id there

_BOARD_MAX = 1 << 18  # characters of keys and values in one message


class OfWorker(Tagged):
    """A message of a worker; worker: who says it, or of whom its agent does."""

    worker: Name


# worker -> agent -> hub


class Ready(OfWorker):
    """A worker is ready to join.

    newest  the newest claim that it reads in the run's storage
    runs    of its script so far, by their URLs; it is ready for the last of them
    """

    shares: Positive
    identity: Any = None
    accepted: bool = False
    newest: dict[str, Any] | None = None
    runs: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        check_nonce(self.newest)


class ViewIsOver(OfWorker):
    generation: Int
    step: Int
    at: str
    lost: bool = False
    whole: bool = True
    torn: bool = False


class Leaving(OfWorker):
    """See Live.leaving."""

    generation: Int
    step: Int
    lost: bool = False
    saved: bool = False
    whole: bool = True
    torn: bool = False
    joins: bool = True


class Saved(OfWorker):
    generation: Int
    step: Int


class Entered(OfWorker):
    """All workers of the view have met."""

    generation: Int


class Witness(OfWorker):
    """In a view that began from storage: the run's claim.

    agreed  all nodes of the view have read it in the storage, and all of them know of it; else this worker knows of it
    """

    generation: Int
    claim: dict[str, Any]
    agreed: bool

    def __post_init__(self) -> None:
        check_claim(self.claim)


class HasRead(OfWorker):
    """In a view of which the storage is no witness: the view's claim, which this worker finds there by now."""

    claim: dict[str, Any]

    def __post_init__(self) -> None:
        check_claim(self.claim)


class Claimed(OfWorker):
    """The answer to `claim`; or, unasked and with `moved_on` alone, what came of beginning anew in the present view.

    claim     what was won; None: nothing, and why
    moved_on  others have gone on with the run; else the storage failed
    """

    generation: Int
    claim: dict[str, Any] | None
    why: str = ""
    moved_on: bool = False

    def __post_init__(self) -> None:
        check_claim(self.claim)


class Put(OfWorker):
    """A key that a worker sets on the view's board; value: base64."""

    generation: Int
    key: str
    value: Base64


class Finished(OfWorker):
    step: Int


class Failed(OfWorker):
    """What a worker says last, where its script has failed."""

    error: str
    trace: str = ""
    step: Int | None = None
    shown: bool = False


class RunStatus(OfWorker):
    """The run's status, for the agent's own terminal."""

    status: dict[str, Any]


class Figures(OfWorker):
    """A worker's figures, for the metrics of its node."""

    figures: dict[str, Any]


# hub -> agent -> worker


class NewView(Tagged, tag="view"):
    """The next view, to each worker that is in it.

    not_lost  of the view before, and not of this one: they leave, or have received no state yet and wait to join
    claim    that the run writes under; None: the coordinator takes it, or the workers know it
    witness  all nodes of the view see it in the storage
    begun_elsewhere  the run has had views, and nobody of them is here: its storage must show that it has begun
    unanswered  nobody here holds the run's state, and others may be going on under a claim for which this hub's agent
                answers (succession.py: may_be_elsewhere)
    run  of the script's runs, the one that this view is of: see Ready.runs
    replica_size  so many workers that follow each other are one replica
    """

    generation: Int
    workers: list[str]
    nodes: list[str]
    local_ranks: list[Int]
    one_node: bool
    liveness: dict[str, Any] | None
    short_s: Float
    gone: list[dict[str, Any]]
    not_lost: list[str] = field(default_factory=list)
    claim: dict[str, Any] | None = None
    witness: bool = False
    begun_elsewhere: bool = False
    unanswered: bool = False
    run: str = ""
    replica_size: Positive = 1

    def __post_init__(self) -> None:
        check_claim(self.claim)
        if not len(self.workers) == len(self.nodes) == len(self.local_ranks):
            raise ValueError(
                f"{len(self.workers)} workers, {len(self.nodes)} nodes, {len(self.local_ranks)} local ranks"
            )
        if len(self.workers) % self.replica_size:
            raise ValueError(f"{len(self.workers)} workers in replicas of {self.replica_size}")


class OnBoard(Tagged, tag="board"):
    """New entries of the view's board: key -> value, in base64."""

    generation: Int
    entries: dict[str, Base64]

    @staticmethod
    def of(generation: Int, entries: Mapping[str, str]) -> Iterator[OnBoard]:
        """Yield all these entries, in as many messages as keep within a line."""
        part: dict[str, str] = {}
        characters = 0
        for key, value in entries.items():
            if part and characters + len(key) + len(value) > _BOARD_MAX:
                yield OnBoard(generation=generation, entries=part)
                part, characters = {}, 0
            part[key] = value
            characters += len(key) + len(value)
        if part:
            yield OnBoard(generation=generation, entries=part)


class Broken(Tagged):
    generation: Int
    why: str = ""


class Regroup(Tagged):
    """Somebody waits to join, or the storage would be the next view's witness.

    The view is left at a boundary that all agree on.
    """

    generation: Int


class Save(Tagged):
    """The request to save what this worker holds, before it goes or the next view comes: nobody else holds it.

    claim  the run's newest, to save under: another worker of this node may have taken it; None: that of its view
    waits  the run waits for nodes, and this worker with it, whatever becomes of the save
    """

    generation: Int
    claim: dict[str, Any] | None = None
    waits: bool = False


class TakeClaim(Tagged, tag="claim"):
    """Others may go on elsewhere, so the run goes on here only under the next claim: this worker is to take it.

    nodes  that are here, and whose workers hold the state
    claim  the newest of the run that the hub knows; None: that of the worker's last view
    """

    generation: Int
    nodes: list[str]
    liveness: dict[str, Any] | None
    claim: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        check_claim(self.claim)


class HubAt(Tagged):
    """To the coordinator: the hub has moved, and nobody left the view for it.

    liveness  of the agent that has the hub now, as in a view; in it "hub": see hub_file.py
    """

    liveness: dict[str, Any]


class OtherIdentity(Tagged, tag="identity"):
    identity: Any


class Past(Tagged):
    """The run that it is ready for is finished, and the others are in a later one of the script's.

    It takes the result from storage, and goes on to the next.
    """


class Leave(Tagged):
    """A notice has come to its node. Said by the agent alone.

    left_s  how long the node is still there; None: nobody says
    """

    why: str = ""
    left_s: Float | None = None


class Hint(Tagged):
    """Its node may be taken soon: the state is to be saved. Said by the agent alone. left_s: see Leave."""

    why: str
    left_s: Float | None = None


class End(Tagged):
    why: str
    repeated: bool = False


class Released(Tagged):
    """The answer to a worker that leaves; safe: what it holds is not lost with it."""

    safe: bool
