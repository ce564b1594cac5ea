"""Faults, and what else a plan holds, as JSON. Decoded strictly: a key that is not known, one that is missing, or a
value of another type is an error that says where."""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Iterable
from typing import Any

from elastic.drill.faults.base import Fault
from elastic.drill.faults.registry import KINDS
from elastic.errors import ConfigError


def document_of(fault: Fault) -> dict[str, Any]:
    return {"kind": fault.kind, **dataclasses.asdict(fault)}


def fault_of(document: Any, where: str) -> Fault:
    """The fault that document_of wrote. ConfigError says where it is none."""
    if not isinstance(document, dict):
        raise ConfigError(f"{where}: a fault is an object; found {document!r}")
    kind = document.get("kind")
    if kind not in KINDS:
        raise ConfigError(f"{where}: unknown kind {kind!r}{_nearest(kind, KINDS)}")
    fault: Fault = decoded(KINDS[kind], {key: value for key, value in document.items() if key != "kind"}, where)
    return fault


def decoded(made: Any, document: Any, where: str, *, leave: tuple[str, ...] = ()) -> Any:
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
    near = difflib.get_close_matches(str(name), list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}"
