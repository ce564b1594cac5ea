"""Which kinds of faults there are, and a fault as JSON, decoded strictly: an error says where something is not known.

What a new kind takes beside its class and its name here is listed in CONTRIBUTING.md, "Add a fault to drills".
"""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from elastic.drill.faults.base import Fault, Flag
from elastic.drill.faults.host_faults import Cut, Heal, LoseHost, LosePackets, Partition, SlowNetwork
from elastic.drill.faults.join import Join
from elastic.drill.faults.message import Message
from elastic.drill.faults.misleading import (
    CorruptBatch,
    CorruptGradient,
    CorruptState,
    OtherRate,
    OutOfStep,
    StaleState,
)
from elastic.drill.faults.moments import At
from elastic.drill.faults.script_faults import OutOfMemory, Raise, Slow, StickLoader
from elastic.drill.faults.signals import (
    Hold,
    Kill,
    KillAgent,
    KillAll,
    KillChild,
    KillTogether,
    LeaveNode,
    Stop,
    Terminate,
)
from elastic.drill.faults.storage_faults import Disk, Flip, LoseCheckpoint
from elastic.errors import ConfigError

_KINDS: tuple[type[Fault], ...] = (
    Kill, KillTogether, Stop, Terminate, Join, KillAll, Raise, OutOfMemory, Slow, StickLoader, KillChild, Flip, Disk,
    KillAgent, LeaveNode, Hold, LoseHost, Cut, LosePackets, SlowNetwork, Partition, Heal,
    CorruptState, CorruptGradient, CorruptBatch, StaleState, OtherRate, LoseCheckpoint, Message,
    OutOfStep,
)  # fmt: skip
KINDS = {kind.kind: kind for kind in _KINDS}
"""By the name in a plan's JSON. New kinds go to the end: what a seed draws in the tests' random drills depends
on the order."""


@dataclass(frozen=True)
class NamedKind:
    """A kind of fault under one of its names."""

    kind: type[Fault]
    flag: Flag

    def fault(self, worker: int, when: At, **facts: Any) -> Fault:
        """Return the fault of this kind that this rank sets off at that moment."""
        return self.kind.make(worker if self.flag.of_worker else 0, when, **self.flag.fields, **facts)


NAMED = {flag.name: NamedKind(kind, flag) for kind in _KINDS for flag in kind.flags}
"""By the name on the command line, of those that a seed can draw."""
OF_SCRIPTS = (Kill, Stop, KillAll, KillAgent, LeaveNode, Join)
"""These strike a script for torchrun, too, which enters no Run: from outside."""


def document_of(fault: Fault) -> dict[str, Any]:
    """Return a fault as an object of JSON, which fault_of reads."""
    return {"kind": fault.kind, **dataclasses.asdict(fault)}


def fault_of(document: Any, where: str) -> Fault:
    """Return the fault that document_of wrote. Raises ConfigError, which says where it is none."""
    if not isinstance(document, dict):
        raise ConfigError(f"{where}: a fault is an object; found {document!r}")
    kind = document.get("kind")
    if kind not in KINDS:
        raise ConfigError(f"{where}: unknown kind {kind!r}{_nearest(kind, KINDS)}")
    fault: Fault = decoded(KINDS[kind], {key: value for key, value in document.items() if key != "kind"}, where)
    return fault


def decoded(made: Any, document: Any, where: str, *, leave: tuple[str, ...] = ()) -> Any:
    """Return an instance of the dataclass `made`; fields in `leave` are taken as they are. Raises ConfigError."""
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
    """Return a field's value as its annotation has it. Raises ConfigError if it is of another type."""
    options = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    if value is None and types.NoneType in options:
        return None
    kind = next(option for option in options if option is not types.NoneType)
    if dataclasses.is_dataclass(kind):
        return decoded(kind, value, where)
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
    """Return the end of an error about an unknown name: the nearest known one, or all of them."""
    near = difflib.get_close_matches(str(name), list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}"
