"""Benchmarks alike: each is said in the docs, shows how far it is, survives Ctrl-C, and fits a terminal."""

from __future__ import annotations

import ast
import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from tests.benchmarks import data_correctness, scale
from tests.benchmarks.__main__ import BENCHMARKS

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "benchmarks"
COLUMNS = 80
PAGE = (ROOT / "docs" / "benchmarks.md").read_text()


@pytest.mark.parametrize("name", BENCHMARKS)
def test_each_has_a_row_in_the_page_of_benchmarks(name: str) -> None:
    """Whoever asks what something costs finds the command there."""
    rows = [line for line in PAGE.splitlines() if line.startswith("|")]
    assert any(f"`python -m tests.benchmarks.{name}`" in row or f"tests.benchmarks.{name} --" in row for row in rows)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_each_goes_through_the_harness(name: str) -> None:
    """One that is interrupted after ten minutes prints what it has."""
    source = (FOLDER / f"{name}.py").read_text()
    assert list(lacking(source)) == []


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_each_reads_options_that_it_has(path: Path) -> None:
    """No type checker sees what argparse makes: one that was renamed in one place ended with AttributeError."""
    assert list(unknown_options(path.read_text())) == []


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_none_is_wider_than_a_terminal(path: Path) -> None:
    assert list(wider(path.read_text())) == []


def lacking(source: str) -> Iterator[str]:
    """What a benchmark does not do that all others do."""
    tree = ast.parse(source)
    called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    used = {name.split(".")[-1] for name in called}
    last = ast.unparse(tree.body[-1])
    if last != "if __name__ == '__main__':\n    harness.run(main)":
        yield "ends by harness.run(main)"
    if "interruptible" not in used:
        yield "interruptible"
    if not used & {"progress", "print"}:
        yield "says how far it is"


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


def wider(source: str) -> Iterator[int]:
    """Widths of consoles beyond COLUMNS; what is not a plain number is either a terminal's own or too much, too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "Console":
            for given in (keyword.value for keyword in node.keywords if keyword.arg == "width"):
                numbers = [one.value for one in ast.walk(given) if isinstance(one, ast.Constant)]
                yield from (one for one in numbers if isinstance(one, int) and one > COLUMNS)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("def main(): ...\nif __name__ == '__main__':\n    main()", 3),
        ("with interruptible():\n    print(1)\nif __name__ == '__main__':\n    harness.run(main)", 0),
    ],
)
def test_what_does_not_go_through_the_harness_is_found(source: str, found: int) -> None:
    assert len(list(lacking(source))) == found


@pytest.mark.parametrize(
    ("source", "found"), [("Console(width=110)", [110]), ("Console(width=None if tty else 80)", []), ("Console()", [])]
)
def test_a_width_beyond_a_terminals_is_found(source: str, found: list[int]) -> None:
    assert list(wider(source)) == found


def as_shown(table: Table) -> str:
    """What a terminal of 80 columns shows: rich cuts what does not fit, and says so by an ellipsis."""
    console = Console(width=COLUMNS, file=io.StringIO())
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_views_of_16384_workers_fit_a_terminal() -> None:
    """With as many digits as the largest run has; of 110 columns the last three were cut on a usual terminal."""
    cause = "nodes and workers come"
    found = [scale.Figures(workers=size, what=cause, seconds=12.345, hub_s=12.345) for size in (16, 16384)]
    for one in found:
        one.heard, one.lines, one.bytes, one.heard_bytes, one.node_s = 16384, 100_000, 290_000_000, 290_000_000, 1.5
    text = as_shown(scale.table(found))

    assert "…" not in text
    assert cause in text
    assert "16,384 workers" in text
    assert "290.0" in text


def test_what_loaders_lose_fits_a_terminal() -> None:
    sizes = {64: 15, 48: 8, 44: 1, 32: 8}
    text = as_shown(
        data_correctness.shown(
            [data_correctness.Figures("Lightning, ElasticLoader", "48 / ranks", lost=619, repeated=625, batches=sizes)]
        )
    )
    assert "…" not in text
    assert all(f"({count}×)" in text for count in sizes.values())
