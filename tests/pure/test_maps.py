"""The map at the top of a room names all of its files: what it leaves out, a reader takes for not there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_ENTRY = re.compile(r"^ *(\w+)(?:, \w+)* {2,}\S")


def entries(room: Path) -> list[str]:
    """The names that lines of its docstring begin with, as far as they are files or folders of the room."""
    found = [match[1] for line in docstring(room).splitlines() if (match := _ENTRY.match(line))]
    return [name for name in found if name in names(room)]


def docstring(room: Path) -> str:
    return ast.get_docstring(ast.parse((room / "__init__.py").read_text())) or ""


def names(room: Path) -> set[str]:
    """Its files, and its rooms."""
    files = {path.stem for path in room.glob("*.py")}
    return files - {"__init__", "__main__"} | {path.parent.name for path in room.glob("*/__init__.py")}


def imported(room: Path) -> set[str]:
    """What the map's own file gives a name to: whoever imports from there finds it."""
    tree = ast.parse((room / "__init__.py").read_text())
    return {(node.module or "").rpartition(".")[2] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}


ROOMS = [
    path.parent for top in ("elastic", "checkpoint", "recipes", "tests") for path in ROOT.glob(f"{top}/**/__init__.py")
]
MAPPED = [room for room in ROOMS if len(entries(room)) >= 3]


@pytest.mark.parametrize("room", MAPPED, ids=lambda room: room.relative_to(ROOT).as_posix())
def test_a_map_names_all_files_of_its_room(room: Path) -> None:
    words = set(re.findall(r"\w+", docstring(room))) | imported(room)
    assert names(room) - words == set()


LARGE = [room for room in ROOMS if len(names(room)) > 5 and room.relative_to(ROOT).parts[0] != "tests"]
"""Rooms of the product. Tests name themselves."""


@pytest.mark.parametrize("room", LARGE, ids=lambda room: room.relative_to(ROOT).as_posix())
def test_a_room_of_more_than_five_has_a_map(room: Path) -> None:
    """Were a map not found, nothing would hold it to its room."""
    assert room in MAPPED or names(room) <= imported(room), f"no map of {', '.join(sorted(names(room)))}"


def test_a_file_that_a_map_leaves_out_is_found(tmp_path: Path) -> None:
    for name in ("one", "two", "three", "four"):
        (tmp_path / f"{name}.py").touch()
    (tmp_path / "__init__.py").write_text('"""A room.\n\n    one    1\n    two    2\n    three  3\n"""\n')
    assert entries(tmp_path) == ["one", "two", "three"]
    assert names(tmp_path) - set(re.findall(r"\w+", docstring(tmp_path))) == {"four"}
