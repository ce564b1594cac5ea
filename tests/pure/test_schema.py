"""Tools that people write read these events for years, so what is declared is what is emitted, to the name."""

from __future__ import annotations

import ast
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from elastic.events import drill_schema, schema
from elastic.events.declarations import DECLARED, DRILL_EVENTS, EVENTS, problems, table
from elastic.events.event import TypedEvent

PACKAGE = Path(__file__).parents[2] / "elastic"
FOLDED = {"Folded"}  # by compaction.py, which emits nothing


def written() -> set[str]:
    """The names of the classes that are called in the package: what is emitted, among others."""
    sources = [source for path in PACKAGE.rglob("*.py") if "schema" in (source := path.read_text())]
    calls = (node for source in sources for node in ast.walk(ast.parse(source)))
    called = [node.func for node in calls if isinstance(node, ast.Call)]
    return {f.attr if isinstance(f, ast.Attribute) else f.id for f in called if isinstance(f, ast.Attribute | ast.Name)}


def test_what_is_declared_is_emitted() -> None:
    """The other way round, and that no fact is missing or misspelt, is the type checker's to say."""
    events = _classes(schema) | _classes(drill_schema)
    assert {event.event_name for event in events} == DECLARED.keys()
    assert {event.__name__ for event in events} - written() == FOLDED


def _classes(module: ModuleType) -> set[type[TypedEvent]]:
    found = {one for one in vars(module).values() if isinstance(one, type) and issubclass(one, TypedEvent)}
    return found - {TypedEvent, schema.EndOfStretch}


def test_only_tests_and_observers_of_theirs_emit_what_is_not_declared() -> None:
    """`emit_named` takes any name and any facts; nothing in the package writes with it but `emit`."""
    calls = [
        f"{path.name}:{node.lineno}"
        for path in PACKAGE.rglob("*.py")
        if "emit_named" in (source := path.read_text())
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "emit_named"
    ]
    assert [where for where in calls if not where.startswith("log.py:")] == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, []),
        ({"event": "surprise"}, ["event 'surprise' is not declared"]),
        ({"step": None}, ["staged: step is None, expected int"]),
        ({"step": True}, ["staged: step is True, expected int"]),
        ({"seconds": 1}, []),
        ({"more": 1}, ["staged: more is not declared"]),
        ({"rank": "0"}, ["staged: rank is '0', expected int"]),
    ],
)
def test_a_record_that_differs_from_what_is_declared_is_told(change: dict[str, Any], said: list[str]) -> None:
    record = {"t": 1.0, "worker": "w0", "event": "staged", "step": 4, "seconds": 0.5}
    assert problems({**record, **change}) == said


def test_the_table_for_people_has_every_event_and_every_fact() -> None:
    text = table()
    for event in (*EVENTS, *DRILL_EVENTS):
        assert f"### `{event.name}`\n\n{event.when}\n" in text
        assert all(f"| `{fact.name}` |" in text for fact in event.facts)
