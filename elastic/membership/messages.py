"""What agents, workers and the hub say to each other, as types: what arrives is one of these, whole, or is refused.

Promises  `parse` raises WireError and nothing else, whatever it is given: an unknown word, a fact that is missing, of
          another type or too many, a number out of all bounds.
Leaves    what follows to hub.py; on whose behalf one may speak too. How a type is made of what arrived is
          checkpoint/net/codec.py's. Who says what, and when, is a table in docs/internals/protocol.md.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from checkpoint.net import codec
from checkpoint.net.codec import NUMBER_MAX, Vocabulary, made, short
from checkpoint.net.framing import NotAMessage
from elastic.membership.failure import FAILURE, NAME_MAX, Failed, OfWorker, check_name
from elastic.membership.progress import Phase
from elastic.membership.stalls import Sighting
from elastic.membership.wire import Message, WireError

_PLACES_MAX = 1 << 12  # of one node
_NODES_MAX = 1 << 16
_PORT_MAX = (1 << 16) - 1
_BOARD_MAX = 1 << 18  # characters of keys and values in one message
_NESTED_MAX = 32  # lists and objects in each other: what may be anything at all is encoded once more, for others


# worker -> agent -> hub


@dataclass(frozen=True, kw_only=True)
class Ready(OfWorker):
    """newest  the newest claim that it reads in the run's storage"""

    shares: int
    identity: Any = None
    accepted: bool = False
    newest: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _within(1, self.shares, NUMBER_MAX)
        _nonce(self.newest)


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
        _decoded(self.value)


@dataclass(frozen=True, kw_only=True)
class Finished(OfWorker):
    step: int


@dataclass(frozen=True, kw_only=True)
class RunStatus(OfWorker):
    """For the agent's own terminal."""

    status: dict[str, Any]


# agent -> hub


@dataclass(frozen=True, kw_only=True)
class Hello:
    """run     what only agents of this run know
    port    where this agent listens for others, should the hub come to be here
    places  how many workers the node has; 0: it leaves
    starting  the places, by local rank, whose worker is on its way
    report  what the node knows of the run, see node_report.py; None: nothing, it is new
    knows   hashes of the lists that it has, see known_lists.py
    """

    node: str = ""
    address: str | None = None
    port: int | None = None
    places: int = 0
    starting: list[int] = field(default_factory=list)
    run: str | None = None
    report: dict[str, Any] | None = None
    knows: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        _within(0, self.places, _PLACES_MAX)
        _within(0, len(self.starting), _PLACES_MAX)
        _within(0, len(self.knows), _PLACES_MAX)
        if len(self.node) > NAME_MAX:
            raise WireError(f"a name of {len(self.node)} characters")
        if self.address is not None and self.port is not None:
            _address(self.address, self.port)


@dataclass(frozen=True, kw_only=True)
class Started(OfWorker):
    local_rank: int

    def __post_init__(self) -> None:
        super().__post_init__()
        _within(0, self.local_rank, _PLACES_MAX)


@dataclass(frozen=True, kw_only=True)
class Unstarted:
    local_rank: int


@dataclass(frozen=True, kw_only=True)
class Exited(OfWorker):
    code: int | None = None
    signal: str | None = None
    hung: bool = False
    expected: bool = False
    step: int | None = None
    t: float | None = None
    stuck_s: float | None = None
    stopped: bool = False
    kernel: str | None = None
    out_of_memory: bool = False


@dataclass(frozen=True, kw_only=True)
class _Seen(OfWorker):
    phase: int
    step: int | None
    sign: int
    quiet_s: float
    limit_s: float | None

    def sighting(self) -> Sighting:
        _within(0, self.phase, len(Phase) - 1)
        limit_s = math.inf if self.limit_s is None else self.limit_s
        return Sighting(
            worker=self.worker,
            phase=Phase(self.phase),
            step=self.step,
            sign=self.sign,
            quiet_s=self.quiet_s,
            limit_s=limit_s,
        )


@dataclass(frozen=True, kw_only=True)
class Sighted:
    workers: list[Any]

    def __post_init__(self) -> None:
        _within(0, len(self.workers), _PLACES_MAX)
        _ = self.sightings

    @property
    def sightings(self) -> list[Sighting]:
        return [made(_Seen, one if isinstance(one, Mapping) else {}).sighting() for one in self.workers]


@dataclass(frozen=True, kw_only=True)
class Bye:
    """This node has no workers any more, and gets none."""


# agent -> agent


@dataclass(frozen=True, kw_only=True)
class WhereIsTheHub:
    """run  see Hello"""

    run: str


# both ways, between an agent and the hub


@dataclass(frozen=True, kw_only=True)
class Ping:
    """Somebody is here. Said a few times per lease."""


# hub -> agent


@dataclass(frozen=True, kw_only=True)
class Roster:
    """Who is in the run, in the order in which they become the hub; and the newest view, for those who are not in it:
    the next hub may hear of it from nobody else.

    nodes       of each [name, address, port]
    generation  of the newest view
    outside     those of the nodes that have no worker in it
    claim       the number of its claim, where the storage is its witness
    """

    nodes: list[list[Any]]
    generation: int = 0
    outside: list[str] = field(default_factory=list)
    claim: int | None = None

    def __post_init__(self) -> None:
        _addresses(self.nodes)
        _within(0, len(self.outside), _PLACES_MAX)


@dataclass(frozen=True, kw_only=True)
class Full:
    """The run has its most nodes already, and this one has no place; it may ask again.

    nodes_max  how many
    nodes      see Roster: who may be asked, should this hub be lost meanwhile
    """

    nodes_max: int
    nodes: list[list[Any]]

    def __post_init__(self) -> None:
        _within(1, self.nodes_max, NUMBER_MAX)
        _addresses(self.nodes)


@dataclass(frozen=True, kw_only=True)
class InFull:
    """This hub has not the lists that a hello names: it is to be said again, with them."""


@dataclass(frozen=True, kw_only=True)
class Handover:
    """This hub goes; the next of the roster is the hub."""


@dataclass(frozen=True, kw_only=True)
class HubIs:
    """From an agent that was asked. address: None: it is being looked for   stays: it may not go on without others"""

    address: str | None = None
    port: int = 0
    stays: bool = False

    def __post_init__(self) -> None:
        if self.address is not None:
            _address(self.address, self.port)


@dataclass(frozen=True, kw_only=True)
class MovedOn:
    """The run has gone on without this node's workers, whom their agent tells; it may join again, with others."""

    why: str


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """To whoever is none of this run, or calls itself as the node that it has reached: it has come to the wrong place,
    and of its own run this says nothing."""

    why: str


@dataclass(frozen=True, kw_only=True)
class Start:
    local_rank: int

    def __post_init__(self) -> None:
        _within(0, self.local_rank, _PLACES_MAX)


@dataclass(frozen=True, kw_only=True)
class Status:
    text: str


@dataclass(frozen=True, kw_only=True)
class KillHung(OfWorker):
    """For a hang. sign: its last one when it was sighted; one that has given another since is acquitted."""

    sign: int
    why: str


@dataclass(frozen=True, kw_only=True)
class RunIsOver:
    failed: bool
    why: str


# hub -> agent -> worker


@dataclass(frozen=True, kw_only=True)
class NewView:
    """claim    that the run writes under; None: the coordinator takes it, or the workers know it
    witness  all nodes of the view see it in the storage
    begun_elsewhere  the run has had views, and nobody of them is here: its storage must show that it has begun
    unanswered  nobody here holds the run's state, and others may be going on under a claim for which this hub's agent
                answers (succession.py: may_be_elsewhere)
    """

    generation: int
    workers: list[str]
    nodes: list[str]
    local_ranks: list[int]
    one_node: bool
    beacon: dict[str, Any] | None
    short_s: float
    gone: list[dict[str, Any]]
    claim: dict[str, Any] | None = None
    witness: bool = False
    begun_elsewhere: bool = False
    unanswered: bool = False

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
            _decoded(value)

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
    """Somebody waits to join: the view is left at a boundary that all agree on."""

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
    """Without some of the last view's nodes the run goes on only under the next claim: this worker is to take it.

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


FromWorker = Ready | ViewIsOver | Leaving | Saved | Put | Entered | Witness | Claimed | Failed | Finished
ToItsAgent = FromWorker | RunStatus
ToHub = FromWorker | Hello | Started | Unstarted | Exited | Sighted | Bye | Ping
ToAgent = Start | Status | KillHung | RunIsOver | Ping | Roster | Full | InFull | Handover | HubIs | MovedOn | Refusal
ToWorker = (
    NewView
    | OnBoard
    | Broken
    | Regroup
    | Save
    | TakeClaim
    | HubAt
    | OtherIdentity
    | End
    | Released
    | Leave
    | Hint
    | MovedOn
)

FROM_WORKER: Mapping[str, type] = {
    "ready": Ready,
    "view_is_over": ViewIsOver,
    "leaving": Leaving,
    "saved": Saved,
    "put": Put,
    "entered": Entered,
    "witness": Witness,
    "claimed": Claimed,
    **FAILURE,
    "finished": Finished,
}
TO_ITS_AGENT: Mapping[str, type] = {**FROM_WORKER, "run_status": RunStatus}
TO_HUB: Mapping[str, type] = {
    **FROM_WORKER,
    "hello": Hello,
    "started": Started,
    "unstarted": Unstarted,
    "exited": Exited,
    "sighted": Sighted,
    "bye": Bye,
    "ping": Ping,
}
TO_LISTENER: Mapping[str, type] = {"hello": Hello, "where_is_the_hub": WhereIsTheHub}  # an agent that may be the hub
TO_AGENT: Mapping[str, type] = {
    "start": Start,
    "status": Status,
    "kill_hung": KillHung,
    "run_is_over": RunIsOver,
    "ping": Ping,
    "roster": Roster,
    "full": Full,
    "in_full": InFull,
    "handover": Handover,
    "hub_is": HubIs,
    "moved_on": MovedOn,
    "refusal": Refusal,
}
TO_WORKER: Mapping[str, type] = {
    "view": NewView,
    "board": OnBoard,
    "broken": Broken,
    "regroup": Regroup,
    "save": Save,
    "claim": TakeClaim,
    "hub_at": HubAt,
    "identity": OtherIdentity,
    "released": Released,
    "end": End,
    "leave": Leave,
    "hint": Hint,
    "moved_on": MovedOn,
}

as_message = Vocabulary(TO_ITS_AGENT, TO_HUB, TO_LISTENER, TO_AGENT, TO_WORKER).as_message


def parse(kinds: Mapping[str, type], message: Message) -> Any:
    """The message as one of these kinds. Raises WireError."""
    if not _is_shallow(message, _NESTED_MAX):
        raise WireError(f"more than {_NESTED_MAX} lists and objects in each other")
    try:
        return codec.parse(kinds, message)
    except NotAMessage as wrong:
        raise WireError(str(wrong)) from None


def _is_shallow(value: dict[str, Any] | list[Any], most: int) -> bool:
    for one in value.values() if isinstance(value, dict) else value:
        if isinstance(one, (dict, list)) and (most <= 1 or not _is_shallow(one, most - 1)):
            return False
    return True


def _within(least: int, value: int, most: int) -> None:
    if not least <= value <= most:
        raise WireError(f"{value} is not within {least} and {most}")


def _addresses(nodes: list[list[Any]]) -> None:
    _within(0, len(nodes), _NODES_MAX)
    for one in nodes:
        if not (len(one) == 3 and isinstance(one[0], str) and isinstance(one[1], str) and type(one[2]) is int):
            raise WireError(f"no name, address and port: {short(one)}")
        _address(one[1], one[2])


def _address(address: str, port: int) -> None:
    """Whether anybody can be reached there, whoever dials it finds out."""
    check_name(address)
    _within(1, port, _PORT_MAX)


def check_claim(document: dict[str, Any] | None) -> None:
    """Raises WireError for what is no claim's document."""
    if document is None:
        return
    number = document.get("claim")
    if type(number) is not int or not 0 <= number <= NUMBER_MAX:
        raise WireError(f"no claim: {short(document)}")
    _nonce(document)


def _nonce(claim: dict[str, Any] | None) -> None:
    if claim is not None and not isinstance(claim.get("nonce"), str | None):
        raise WireError(f"no nonce of a claim: {short(claim)}")


def _decoded(value: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as wrong:
        raise WireError(f"no base64: {short(value)}") from wrong
