"""What docstrings and comments say of other files is true at least in this: those files are there.

A file is named as it is found from where one reads: `session.py` beside the file, `group/tree.py` from its package, or
in full. A bare name may lie elsewhere, where only one file has it.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(path for room in ("elastic", "checkpoint", "recipes", "tests") for path in (ROOT / room).rglob("*.py"))
SHARED = Counter(path.name for path in SOURCES)
OF_USERS = {"train.py"}
"""Scripts in examples."""

_NAMED = re.compile(r"(?<![\w./<>{}*$~:-])((?:[\w-]+/)*[\w-]+\.py|(?:[\w-]+/){2,})(?![\w/.<*{-]*[\w/<*{])")


def named(source: str) -> Iterator[str]:
    """Files, with folders before them or without, and folders within folders, which docstrings and comments name."""
    if _NAMED.search(source) is None:
        return
    for node in _statements(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            yield from _NAMED.findall(ast.get_docstring(node, clean=False) or "")
    if any(_NAMED.search(line.partition("#")[2]) for line in source.splitlines()):
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                yield from _NAMED.findall(token.string)


def _statements(of: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and the statements in it. Of a file's nodes one in ten is a statement."""
    yield of
    for name in ("body", "orelse", "finalbody", "handlers"):
        for node in getattr(of, name, ()):
            yield from _statements(node)


def is_there(name: str, reader: Path) -> bool:
    """Whether whoever reads about it in that file finds it."""
    folders = [folder for folder in reader.parents if folder.is_relative_to(ROOT)]
    if any(
        (folder / name).exists()
        for folder in (*folders, ROOT / "elastic", ROOT / "checkpoint" / "elastic_checkpoint", ROOT / "checkpoint")
    ):
        return True
    return "/" not in name and SHARED[name] == 1


def test_the_files_that_docstrings_and_comments_name_are_there() -> None:
    missing = [
        f"{path.relative_to(ROOT)} names {name}"
        for path in SOURCES
        for name in named(path.read_text())
        if name not in OF_USERS and not is_there(name, path)
    ]
    assert missing == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        (
            '"""See step.py, group/tree.py and elastic_checkpoint/save/writer/."""',
            ["step.py", "group/tree.py", "elastic_checkpoint/save/writer/"],
        ),
        ("x = 1  # loop/portable.py's\n", ["loop/portable.py"]),
        ('"""claims/00000007.json, /proc/self/stat, https://x.org/a/b.py and c.pyc"""', []),
    ],
)
def test_what_is_found_are_names_of_files(source: str, found: list[str]) -> None:
    assert list(named(source)) == found


def test_a_name_is_looked_for_where_one_reads() -> None:
    reader = ROOT / "elastic" / "loop" / "steps" / "update.py"
    assert all(
        is_there(name, reader)
        for name in ("step.py", "steps/step.py", "loop/steps/step.py", "elastic/loop/steps/step.py", "hub.py")
    )
    assert not any(is_there(name, reader) for name in ("run_state/step.py", "launch/portable.py", "loop/background/"))
