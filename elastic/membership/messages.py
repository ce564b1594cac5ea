"""What agents, workers and the hub say to each other, as types: what arrives is one of these, whole, or is refused.

Promises  `parse` raises WireError and nothing else, whatever it is given: an unknown word, a fact that is missing, of
          another type or too many, a number out of all bounds.
Leaves    what follows to hub.py; on whose behalf one may speak too. Who says what, and when, is a table in
          docs/internals/protocol.md.
"""

from __future__ import annotations

import base64
import binascii
import math
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from elastic.membership.progress import Phase
from elastic.membership.stalls import Sighting
from elastic.membership.wire import Message, WireError

T = TypeVar("T")
_NUMBER_MAX = 1 << 53
_NAME_MAX = 512  # characters, of a worker's id or a node's name
_PLACES_MAX = 1 << 12  # of one node


@dataclass(frozen=True, kw_only=True)
class OfWorker:
    """worker  who says it, or of whom its agent does"""

    worker: str

    def __post_init__(self) -> None:
        _name(self.worker)


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
        _within(1, self.shares, _NUMBER_MAX)


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
        _claim(self.claim)


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
        _claim(self.claim)


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
class Failed(OfWorker):
    error: str
    trace: str = ""
    step: int | None = None
    shown: bool = False


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
        if len(self.node) > _NAME_MAX:
            raise WireError(f"a name of {len(self.node)} characters")


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
        return [_made(_Seen, one if isinstance(one, Mapping) else {}).sighting() for one in self.workers]


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
    """Who is in the run, in the order in which they become the hub.

    nodes       of each [name, address, port]
    generation  of the newest view: the next hub may hear of it from nobody else
    """

    nodes: list[list[Any]]
    generation: int = 0

    def __post_init__(self) -> None:
        _addresses(self.nodes)


@dataclass(frozen=True, kw_only=True)
class Full:
    """The run has its most nodes already, and this one has no place; it may ask again.

    nodes_max  how many
    nodes      see Roster: who may be asked, should this hub be lost meanwhile
    """

    nodes_max: int
    nodes: list[list[Any]]

    def __post_init__(self) -> None:
        _within(1, self.nodes_max, _NUMBER_MAX)
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


@dataclass(frozen=True, kw_only=True)
class MovedOn:
    """The run has gone on without this node's workers, whom their agent tells; it may join again, with others."""

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


@dataclass(frozen=True, kw_only=True)
class OnBoard:
    """entries  key -> value, in base64"""

    generation: int
    entries: dict[str, str]

    def __post_init__(self) -> None:
        for value in self.entries.values():
            _decoded(value)


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
    """

    generation: int
    claim: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class TakeClaim:
    """Without some of the last view's nodes the run goes on only under the next claim: this worker is to take it.

    nodes  that are here
    """

    generation: int
    nodes: list[str]
    beacon: dict[str, Any] | None


@dataclass(frozen=True, kw_only=True)
class HubAt:
    """To the coordinator: the hub has moved, and nobody left the view for it. hub: see hub_file.py"""

    hub: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class OtherIdentity:
    identity: Any


@dataclass(frozen=True, kw_only=True)
class Leave:
    """A notice has come to its node. Said by the agent alone."""


@dataclass(frozen=True, kw_only=True)
class End:
    why: str
    repeated: bool = False


@dataclass(frozen=True, kw_only=True)
class Released:
    """safe  what the worker holds is not lost with it"""

    safe: bool


ToAgent = Start | Status | KillHung | RunIsOver | Ping | Roster | Full | InFull | Handover | HubIs | MovedOn
ToWorker = (
    NewView | OnBoard | Broken | Regroup | Save | TakeClaim | HubAt | OtherIdentity | End | Released | Leave | MovedOn
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
    "failed": Failed,
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
    "moved_on": MovedOn,
}


_WORDS: Mapping[type, str] = {
    kind: word for kinds in (TO_ITS_AGENT, TO_HUB, TO_LISTENER, TO_AGENT, TO_WORKER) for word, kind in kinds.items()
}


def as_message(said: Any) -> Message:
    """As it travels. said: one of the types above"""
    return {"say": _WORDS[type(said)], **{one.name: getattr(said, one.name) for one in fields(said)}}


def parse(kinds: Mapping[str, type], message: Message) -> Any:
    """The message as one of these kinds. Raises WireError."""
    say = message.get("say")
    kind = kinds.get(say) if isinstance(say, str) else None
    if kind is None:
        raise WireError(f"no known word: {_short(say)}")
    try:
        return _made(kind, {name: value for name, value in message.items() if name != "say"})
    except WireError as wrong:
        raise WireError(f"{say}: {wrong}") from None


def _made(kind: Callable[..., T], facts: Mapping[str, Any]) -> T:
    checks = _checks(kind)
    if unknown := facts.keys() - checks.keys():
        raise WireError(f"unknown facts: {_short(sorted(map(str, unknown)))}")
    for name, (fits, required) in checks.items():
        if name not in facts:
            if required:
                raise WireError(f"{name} is missing")
        elif not fits(facts[name]):
            raise WireError(f"{name} is {_short(facts[name])}")
    return kind(**facts)


@cache
def _checks(kind: Any) -> dict[str, tuple[Callable[[Any], bool], bool]]:
    """name -> (whether a value has its type, whether it must be there)"""
    hints = get_type_hints(kind)
    return {
        one.name: (_fits(hints[one.name]), one.default is MISSING and one.default_factory is MISSING)
        for one in fields(kind)
    }


def _fits(hint: Any) -> Callable[[Any], bool]:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return lambda value: True
    if origin in (Union, types.UnionType):
        options = [_fits(one) for one in arguments]
        return lambda value: any(fits(value) for fits in options)
    if origin is list:
        item = _fits(arguments[0])
        return lambda value: isinstance(value, list) and all(map(item, value))
    if origin is dict:
        content = _fits(arguments[1])
        return lambda value: isinstance(value, dict) and all(map(content, value.values()))
    if hint is int:
        return lambda value: isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _NUMBER_MAX
    if hint is float:
        return lambda value: isinstance(value, (int, float)) and not isinstance(value, bool) and _finite(value)
    assert hint in (str, bool, type(None)), hint
    return lambda value: isinstance(value, hint)


def _finite(value: float) -> bool:
    return -_NUMBER_MAX <= value <= _NUMBER_MAX  # no NaN, and no integer beyond floats


def _within(least: int, value: int, most: int) -> None:
    if not least <= value <= most:
        raise WireError(f"{value} is not within {least} and {most}")


def _name(name: str) -> None:
    if not 0 < len(name) <= _NAME_MAX:
        raise WireError(f"a name of {len(name)} characters")


def _addresses(nodes: list[list[Any]]) -> None:
    _within(0, len(nodes), _PLACES_MAX)
    for one in nodes:
        if not (len(one) == 3 and isinstance(one[0], str) and isinstance(one[1], str) and type(one[2]) is int):
            raise WireError(f"no name, address and port: {_short(one)}")


def _claim(document: dict[str, Any] | None) -> None:
    if document is not None and type(document.get("claim")) is not int:
        raise WireError(f"no claim: {_short(document)}")


def _decoded(value: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as wrong:
        raise WireError(f"no base64: {_short(value)}") from wrong


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"
