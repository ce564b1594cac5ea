"""What workers say to their agent and the hub, and what is said to them. Which words these are is messages.py's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from elastic.membership.messages.failure import OfWorker
from elastic.membership.messages.message_checks import check_claim, check_nonce, decoded, within
from elastic.membership.messages.wire import WireError
from elastic_checkpoint.net.codec import NUMBER_MAX

_BOARD_MAX = 1 << 18  # characters of keys and values in one message


# worker -> agent -> hub


@dataclass(frozen=True, kw_only=True)
class Ready(OfWorker):
    """newest  the newest claim that it reads in the run's storage
    runs    of its script so far, by their URLs; it is ready for the last of them
    """

    shares: int
    identity: Any = None
    accepted: bool = False
    newest: dict[str, Any] | None = None
    runs: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        within(1, self.shares, NUMBER_MAX)
        check_nonce(self.newest)


@dataclass(frozen=True, kw_only=True)
class ViewIsOver(OfWorker):
    generation: int
    step: int
    at: str
    lost: bool = False
    whole: bool = True
    torn: bool = False


@dataclass(frozen=True, kw_only=True)
class Leaving(OfWorker):
    """See Live.leaving."""

    generation: int
    step: int
    lost: bool = False
    saved: bool = False
    whole: bool = True
    torn: bool = False
    joins: bool = True


@dataclass(frozen=True, kw_only=True)
class Saved(OfWorker):
    generation: int
    step: int


@dataclass(frozen=True, kw_only=True)
class Entered(OfWorker):
    """All workers of the view have met."""

    generation: int


@dataclass(frozen=True, kw_only=True)
class Witness(OfWorker):
    """In a view that began from storage: the run's claim.

    agreed  all nodes of the view have read it in the storage, and all of them know of it; else this worker knows of it
    """

    generation: int
    claim: dict[str, Any]
    agreed: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        check_claim(self.claim)


@dataclass(frozen=True, kw_only=True)
class HasRead(OfWorker):
    """In a view of which the storage is no witness. claim: the view's, which it finds there by now"""

    claim: dict[str, Any]

    def __post_init__(self) -> None:
        super().__post_init__()
        check_claim(self.claim)


@dataclass(frozen=True, kw_only=True)
class Claimed(OfWorker):
    """To `claim`. claim: what was won; None: nothing, and why

    moved_on  others have gone on with the run; else the storage failed
    """

    generation: int
    claim: dict[str, Any] | None
    why: str = ""
    moved_on: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_claim(self.claim)


@dataclass(frozen=True, kw_only=True)
class Put(OfWorker):
    """value  base64"""

    generation: int
    key: str
    value: str

    def __post_init__(self) -> None:
        super().__post_init__()
        decoded(self.value)


@dataclass(frozen=True, kw_only=True)
class Finished(OfWorker):
    step: int


@dataclass(frozen=True, kw_only=True)
class RunStatus(OfWorker):
    """For the agent's own terminal."""

    status: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Figures(OfWorker):
    """For the metrics of its node."""

    figures: dict[str, Any]


# hub -> agent -> worker


@dataclass(frozen=True, kw_only=True)
class NewView:
    """not_lost  of the view before, and not of this one: they leave, or have received no state yet and wait to join
    claim    that the run writes under; None: the coordinator takes it, or the workers know it
    witness  all nodes of the view see it in the storage
    begun_elsewhere  the run has had views, and nobody of them is here: its storage must show that it has begun
    unanswered  nobody here holds the run's state, and others may be going on under a claim for which this hub's agent
                answers (succession.py: may_be_elsewhere)
    run  of the script's runs, the one that this view is of: see Ready.runs
    """

    generation: int
    workers: list[str]
    nodes: list[str]
    local_ranks: list[int]
    one_node: bool
    beacon: dict[str, Any] | None
    short_s: float
    gone: list[dict[str, Any]]
    not_lost: list[str] = field(default_factory=list)
    claim: dict[str, Any] | None = None
    witness: bool = False
    begun_elsewhere: bool = False
    unanswered: bool = False
    run: str = ""

    def __post_init__(self) -> None:
        check_claim(self.claim)
        if not len(self.workers) == len(self.nodes) == len(self.local_ranks):
            raise WireError(
                f"{len(self.workers)} workers, {len(self.nodes)} nodes, {len(self.local_ranks)} local ranks"
            )


@dataclass(frozen=True, kw_only=True)
class OnBoard:
    """entries  key -> value, in base64"""

    generation: int
    entries: dict[str, str]

    def __post_init__(self) -> None:
        for value in self.entries.values():
            decoded(value)

    @staticmethod
    def of(generation: int, entries: Mapping[str, str]) -> Iterator[OnBoard]:
        """All of these, in as many messages as keep within a line."""
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


@dataclass(frozen=True, kw_only=True)
class Broken:
    generation: int
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Regroup:
    """Somebody waits to join, or the storage would be the next view's witness: the view is left at a boundary that all
    agree on."""

    generation: int


@dataclass(frozen=True, kw_only=True)
class Save:
    """What this worker holds, before it goes or the next view comes: nobody else holds it.

    claim  the run's newest, to save under: another worker of this node may have taken it; None: that of its view
    waits  the run waits for nodes, and this worker with it, whatever becomes of the save
    """

    generation: int
    claim: dict[str, Any] | None = None
    waits: bool = False


@dataclass(frozen=True, kw_only=True)
class TakeClaim:
    """Others may go on elsewhere, so the run goes on here only under the next claim: this worker is to take it.

    nodes  that are here, and whose workers hold the state
    claim  the newest of the run that the hub knows; None: that of the worker's last view
    """

    generation: int
    nodes: list[str]
    beacon: dict[str, Any] | None
    claim: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        check_claim(self.claim)


@dataclass(frozen=True, kw_only=True)
class HubAt:
    """To the coordinator: the hub has moved, and nobody left the view for it.

    beacon  of the agent that has the hub now, as in a view; in it "hub": see hub_file.py
    """

    beacon: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class OtherIdentity:
    identity: Any


@dataclass(frozen=True, kw_only=True)
class Past:
    """The run that it is ready for is finished, and the others are in a later one of the script's: it takes the result
    from storage, and goes on to the next."""


@dataclass(frozen=True, kw_only=True)
class Leave:
    """A notice has come to its node. Said by the agent alone.

    left_s  how long the node is still there; None: nobody says
    """

    why: str = ""
    left_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Hint:
    """Its node may be taken soon: the state is to be saved. Said by the agent alone. left_s: see Leave"""

    why: str
    left_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class End:
    why: str
    repeated: bool = False


@dataclass(frozen=True, kw_only=True)
class Released:
    """safe  what the worker holds is not lost with it"""

    safe: bool
