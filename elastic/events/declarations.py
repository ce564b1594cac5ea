"""What schema.py declares, as values: to hold a record to it, and as a table for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from inspect import cleandoc, get_annotations
from types import ModuleType, NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from elastic.events import drill_schema, schema
from elastic.events.event import TypedEvent

_KINDS: dict[str, type | tuple[type, ...]] = {
    "int": int,
    "float": (int, float),
    "str": str,
    "bool": bool,
    "list": list,
    "dict": dict,
    "null": NoneType,
}


@dataclass(frozen=True)
class Fact:
    """A fact of an event. kind: as in `_KINDS`, several with "|" between them; optional: absent in some records."""

    name: str
    kind: str
    meaning: str
    optional: bool


@dataclass(frozen=True)
class Declared:
    """An event as it is declared. when: at which moment it is emitted, and by whom."""

    name: str
    when: str
    facts: tuple[Fact, ...]


def problems(event: Mapping[str, Any]) -> list[str]:
    """Return in words where a record differs from what is declared; empty: nowhere."""
    declared = DECLARED.get(str(event.get("event")))
    if declared is None:
        return [f"event {event.get('event')!r} is not declared"]
    facts = {fact.name: fact for fact in (*COMMON, *declared.facts)}
    missing = [fact.name for fact in facts.values() if not fact.optional and fact.name not in event]
    found = [f"{declared.name}: {name} is missing" for name in missing]
    for name, value in event.items():
        if name not in facts:
            found.append(f"{declared.name}: {name} is not declared")
        elif not matches(value, facts[name].kind):
            found.append(f"{declared.name}: {name} is {value!r}, expected {facts[name].kind}")
    return found


def table() -> str:
    """Return the table of events, as Markdown."""
    lines = [
        "Every record is a line of JSON. All of them have these facts, those from `generation` on once they are known:",
        "",
        *_rows(COMMON),
    ]
    for title, events in (("Events of a run", EVENTS), ("Added by a drill's observer", DRILL_EVENTS)):
        lines += ["", f"## {title}"]
        for event in events:
            lines += ["", f"### `{event.name}`", "", event.when, "", *_rows(event.facts)]
    return "\n".join(lines) + "\n"


def _rows(facts: tuple[Fact, ...]) -> list[str]:
    return ["| fact | type | meaning |", "|---|---|---|", *map(_row, facts)]


def _row(fact: Fact) -> str:
    kind = fact.kind.replace("|", " or ") + (", optional" if fact.optional else "")
    return f"| `{fact.name}` | {kind} | {fact.meaning} |"


def matches(value: Any, kind: str) -> bool:
    """Tell whether a value is of a kind, as Fact has it."""
    kinds = kind.split("|")
    if isinstance(value, bool):
        return "bool" in kinds
    return any(isinstance(value, _KINDS[one]) for one in kinds)


def _declared_in(module: ModuleType) -> Iterator[Declared]:
    for event in vars(module).values():
        if isinstance(event, type) and issubclass(event, TypedEvent) and event not in (TypedEvent, schema.EndOfStretch):
            yield Declared(event.event_name, cleandoc(event.__doc__ or ""), tuple(_facts(event)))


def _facts(event: type) -> Iterator[Fact]:
    """Yield a class's own facts, then those of what it derives from."""
    hints = get_type_hints(event, include_extras=True)
    for declaring in event.__mro__:
        for name in get_annotations(declaring):
            if get_origin(hints[name]) is Annotated:
                of_type, meaning = get_args(hints[name])
                yield Fact(name, _kind(of_type), meaning, optional=hasattr(event, name))


def _kind(of_type: Any) -> str:
    if get_origin(of_type) in (Union, UnionType):
        return "|".join(map(_kind, get_args(of_type)))
    plain = get_origin(of_type) or of_type
    return "null" if plain is NoneType else str(plain.__name__)


COMMON = tuple(_facts(schema.Common))
EVENTS = tuple(_declared_in(schema))
DRILL_EVENTS = tuple(_declared_in(drill_schema))
DECLARED = {event.name: event for event in (*EVENTS, *DRILL_EVENTS)}
