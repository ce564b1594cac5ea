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
from dataclasses import MISSING, dataclass, fields
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
    shares: int
    identity: Any = None
    accepted: bool = False

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
    """run  what only agents of this run know"""

    node: str = ""
    address: str | None = None
    places: int = 0
    run: str | None = None

    def __post_init__(self) -> None:
        _within(0, self.places, _PLACES_MAX)
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


# hub -> agent


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
    generation: int
    workers: list[str]
    nodes: list[str]
    local_ranks: list[int]
    one_node: bool
    beacon: dict[str, Any] | None
    short_s: float
    gone: list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class OnBoard:
    generation: int
    key: str
    value: str

    def __post_init__(self) -> None:
        _decoded(self.value)


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
    """What this worker holds, before it goes or the next view comes: nobody else holds it."""

    generation: int


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


ToAgent = Start | Status | KillHung | RunIsOver
ToWorker = NewView | OnBoard | Broken | Regroup | Save | OtherIdentity | End | Released | Leave

FROM_WORKER: Mapping[str, type] = {
    "ready": Ready,
    "view_is_over": ViewIsOver,
    "leaving": Leaving,
    "saved": Saved,
    "put": Put,
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
}
TO_AGENT: Mapping[str, type] = {"start": Start, "status": Status, "kill_hung": KillHung, "run_is_over": RunIsOver}
TO_WORKER: Mapping[str, type] = {
    "view": NewView,
    "board": OnBoard,
    "broken": Broken,
    "regroup": Regroup,
    "save": Save,
    "identity": OtherIdentity,
    "released": Released,
    "end": End,
    "leave": Leave,
}


_WORDS: Mapping[type, str] = {
    kind: word for kinds in (TO_ITS_AGENT, TO_HUB, TO_AGENT, TO_WORKER) for word, kind in kinds.items()
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
    return {one.name: (_fits(hints[one.name]), one.default is MISSING) for one in fields(kind)}


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
        return lambda value: isinstance(value, dict)
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


def _decoded(value: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as wrong:
        raise WireError(f"no base64: {_short(value)}") from wrong


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"
