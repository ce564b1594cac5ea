"""Benchmarks alike: each is said in the docs, shows how far it is, survives Ctrl-C, and fits a terminal."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.benchmarks.__main__ import BENCHMARKS

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "benchmarks"
PAGE = (ROOT / "docs" / "benchmarks.md").read_text()


@pytest.mark.parametrize("name", BENCHMARKS)
def test_each_has_a_row_in_the_page_of_benchmarks(name: str) -> None:
    """Whoever asks what something costs finds the command there."""
    rows = [line for line in PAGE.splitlines() if line.startswith("|")]
    assert any(f"`python -m tests.benchmarks.{name}`" in row or f"tests.benchmarks.{name} --" in row for row in rows)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_each_reads_options_that_it_has(path: Path) -> None:
    """No type checker sees what argparse makes: one that was renamed in one place ended with AttributeError."""
    assert list(unknown_options(path.read_text())) == []


def unknown_options(source: str) -> Iterator[str]:
    """What is read of parsed options in `main`, and that no add_argument there names."""
    for main in ast.walk(ast.parse(source)):
        if not isinstance(main, ast.FunctionDef) or main.name != "main":
            continue
        nodes = [*ast.walk(main)]
        called = {node: ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)}
        added = [call for call, name in called.items() if name.endswith(".add_argument")]
        names = [arg.value for call in added for arg in call.args if isinstance(arg, ast.Constant)]
        known = {str(name).lstrip("-").replace("-", "_") for name in names}
        assigned = [node for node in nodes if isinstance(node, ast.Assign)]
        parsed = [node for node in assigned if called.get(node.value, "").endswith(".parse_args")]  # type: ignore[call-overload]
        options = {ast.unparse(target) for node in parsed for target in node.targets}
        read = [node for node in nodes if isinstance(node, ast.Attribute) and ast.unparse(node.value) in options]
        yield from (node.attr for node in read if node.attr not in known)
