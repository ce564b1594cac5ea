"""Tools that people write read these events for years, so what is declared is what is emitted, to the name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elastic.events.schema import DECLARED, DRILL_EVENTS, EVENTS, problems, table

PACKAGE = Path(__file__).parents[2] / "elastic"
FOLDED = {"folded"}  # by compaction.py, which emits nothing


def emitted() -> Iterator[tuple[str, str, list[str]]]:
    """(where, event, facts that are named there) of every call of emit in the package."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "emit":
                names = [
                    n.value for n in ast.walk(node.args[0]) if isinstance(n, ast.Constant) if isinstance(n.value, str)
                ]
                for name in names:
                    yield f"{path.name}:{node.lineno}", name, [word.arg for word in node.keywords if word.arg]


def test_what_the_code_emits_is_declared_and_what_is_declared_is_emitted() -> None:
    found = list(emitted())
    undeclared = [where for where, name, _ in found if name not in DECLARED]
    unknown = [
        f"{where} {fact}"
        for where, name, facts in found
        for fact in facts
        if name in DECLARED and fact not in {declared.name for declared in DECLARED[name].facts}
    ]
    assert (undeclared, unknown) == ([], [])
    assert {name for _, name, _ in found} | FOLDED == DECLARED.keys()


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


def test_a_missing_fact_is_told() -> None:
    assert problems({"t": 1.0, "worker": "w0", "event": "staged", "step": 4}) == ["staged: seconds is missing"]


def test_the_table_for_people_has_every_event_and_every_fact() -> None:
    text = table()
    for event in (*EVENTS, *DRILL_EVENTS):
        assert f"### `{event.name}`\n\n{event.when}\n" in text
        assert all(f"| `{fact.name}` |" in text for fact in event.facts)
