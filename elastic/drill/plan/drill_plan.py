"""A drill's plan: on how many workers it runs, and all that is to go wrong. A value: printed, saved, replayed.

As JSON it says its version, and is decoded strictly: a key that is not known, one that is missing, or a value of
another type is an error that says where. Two drills with one plan strike the same faults in the same order, whatever
the timing: a fault whose moment has not come waits, and those after it wait as well.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import types
import typing
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from elastic.drill.faults.base import Fault
from elastic.drill.faults.plan import Plan
from elastic.drill.faults.registry import KINDS
from elastic.errors import ConfigError

VERSION = 1
_KEY = "elastic_drill"


@dataclass(frozen=True, kw_only=True)
class StorageFaults:
    """The probability with which each operation on the run's storage suffers: one of errors, one of stalls…

    errors  it fails as storage does on a bad day: timed out, reset, told to slow down, an answer that was lost
    stalls  it takes `stall_s` longer
    torn    a write leaves half of the object behind, and fails
    stale   a listing shows what the one before it showed
    """

    errors: float = 0.0
    stalls: float = 0.0
    torn: float = 0.0
    stale: float = 0.0
    stall_s: float = 2.0

    def __post_init__(self) -> None:
        for name in ("errors", "stalls", "torn", "stale"):
            chance = getattr(self, name)
            if not 0 <= chance < 1:
                raise ConfigError(f"storage {name}: a probability is from 0 to below 1; found {chance}")

    @property
    def any(self) -> bool:
        return any((self.errors, self.stalls, self.torn, self.stale))

    def __str__(self) -> str:
        said = [
            f"{getattr(self, name):.1%} of {what}"
            for name, what in (
                ("errors", "all operations fail"),
                ("stalls", f"them take {self.stall_s:g} s longer"),
                ("torn", "writes are torn"),
                ("stale", "listings are stale"),
            )
            if getattr(self, name)
        ]
        return "storage: " + (", ".join(said) or "as it is")


@dataclass(frozen=True, kw_only=True)
class DrillPlan:
    """
    workers         in all, at the start, on `nodes` nodes: agents, all on this machine
    resume_workers  after everything was lost
    seed            what the faults were drawn from; of the storage's chances, too. None: nothing was drawn
    grace_s         after which a worker that was told to leave and is still there is killed
    save_every      how often the run saves: steps, or a time such as "5s"; None: what the script says
    """

    workers: int = 4
    nodes: int = 1
    resume_workers: int = 4
    seed: int | None = None
    grace_s: float = 30.0
    save_every: str | None = None
    storage: StorageFaults = field(default_factory=StorageFaults)
    faults: tuple[Fault, ...] = ()

    def __post_init__(self) -> None:
        if min(self.workers, self.nodes, self.resume_workers) < 1:
            raise ConfigError(
                "workers, nodes and workers to resume with are 1 or more; found "
                f"{self.workers}, {self.nodes} and {self.resume_workers}"
            )
        if self.workers % self.nodes:
            raise ConfigError(f"{self.workers} workers cannot be spread evenly over {self.nodes} nodes")
        most = max(self.workers + self.joining(), self.resume_workers + self.joining())
        for fault in self.faults:
            highest = max(fault.ranks)
            if highest >= most:
                raise ConfigError(
                    f"{fault}: there is no worker {highest}; they are counted from 0, and at most {most} are there"
                )

    def joining(self) -> int:
        """How many workers come with all nodes that join."""
        return sum(fault.joining(self.workers // self.nodes) for fault in self.faults)

    def for_workers(self) -> Plan:
        return Plan(self.faults, self.seed)

    def to_json(self) -> str:
        faults = [{"kind": fault.kind, **asdict(fault)} for fault in self.faults]
        document = {_KEY: VERSION, **asdict(self), "faults": faults}
        return json.dumps(document, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> DrillPlan:
        """The plan that to_json wrote. ConfigError says where it is none."""
        try:
            document = json.loads(text)
        except ValueError as error:
            raise ConfigError(f"not a drill's plan: {error}") from error
        if not isinstance(document, dict) or _KEY not in document:
            raise ConfigError(f'not a drill\'s plan: no "{_KEY}", which says its version')
        version = document.pop(_KEY)
        if version != VERSION:
            raise ConfigError(f"a drill's plan of version {version!r}; this elastic reads version {VERSION}")
        faults = document.pop("faults", None)
        if not isinstance(faults, list):
            raise ConfigError("not a drill's plan: faults are a list")
        decoded = tuple(_fault(one, f"faults[{at}]") for at, one in enumerate(faults))
        plan: DrillPlan = _decoded(cls, {**document, "faults": decoded}, "the plan", leave=("faults",))
        return plan


def _fault(document: Any, where: str) -> Fault:
    if not isinstance(document, dict):
        raise ConfigError(f"{where}: a fault is an object; found {document!r}")
    kind = document.get("kind")
    if kind not in KINDS:
        raise ConfigError(f"{where}: unknown kind {kind!r}{_nearest(kind, KINDS)}")
    fault: Fault = _decoded(KINDS[kind], {key: value for key, value in document.items() if key != "kind"}, where)
    return fault


def _decoded(made: Any, document: Any, where: str, *, leave: tuple[str, ...] = ()) -> Any:
    """An instance of the dataclass `made`; fields in `leave` are taken as they are."""
    if not isinstance(document, dict):
        raise ConfigError(f"{where}: expected an object; found {document!r}")
    kinds = typing.get_type_hints(made)
    fields = {one.name: one for one in dataclasses.fields(made)}
    for name in document.keys() - fields.keys():
        raise ConfigError(f"{where}: unknown {name!r}{_nearest(name, fields)}")
    for name, one in fields.items():
        needed = one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING
        if needed and name not in document:
            raise ConfigError(f"{where}: {name!r} is missing")
    values = {
        name: value if name in leave else _value(kinds[name], value, f"{where}: {name}")
        for name, value in document.items()
    }
    return made(**values)


def _value(kind: Any, value: Any, where: str) -> Any:
    options = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    if value is None and types.NoneType in options:
        return None
    kind = next(option for option in options if option is not types.NoneType)
    if dataclasses.is_dataclass(kind):
        return _decoded(kind, value, where)
    if typing.get_origin(kind) is tuple:
        of = typing.get_args(kind)[0]
        if not isinstance(value, list):
            raise ConfigError(f"{where}: expected a list; found {value!r}")
        return tuple(_value(of, one, where) for one in value)
    allowed = (int, float) if kind is float else kind
    if not isinstance(value, allowed) or (isinstance(value, bool) and kind is not bool):
        raise ConfigError(f"{where}: expected {kind.__name__}; found {value!r}")
    return float(value) if kind is float else value


def _nearest(name: Any, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(str(name), list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}"
