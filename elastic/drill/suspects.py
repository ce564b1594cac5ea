"""Which lines of a source file can be at fault, by what they do? Reads the source, and runs nothing of it.

Suspicion is by form alone: a name with "rank" in it, something that is added to, a draw of random numbers. So the lines
are offered as where to look, never as a verdict.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

SHOWN = 4
_RANDOM = ("random", "rand", "randn", "randint", "choice", "shuffle", "default_rng", "uuid4", "time", "urandom")
_SEEDS = ("seed", "manual_seed", "seed_all")


@dataclass(frozen=True)
class Line:
    """Of a source file, counted from 1."""

    file: str
    number: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.number}  {self.text}"


def rank(file: str) -> list[Line]:
    """What asks which worker this is, or how many there are."""

    def asks(node: ast.AST) -> bool:
        words = [node.id] if isinstance(node, ast.Name) else [node.attr] if isinstance(node, ast.Attribute) else []
        words += [node.value] if isinstance(node, ast.Constant) and isinstance(node.value, str) else []
        return any(word.lower().endswith(("rank", "world_size", "getpid")) for word in words)

    return _lines(file, lambda tree: (node for node in ast.walk(tree) if asks(node)))


def counters(file: str, line: int | None = None) -> list[Line]:
    """What changes while it is read: additions in place and globals. line: only in the class or function around it"""
    return _lines(
        file,
        lambda tree: (node for node in ast.walk(_around(tree, line)) if isinstance(node, ast.AugAssign | ast.Global)),
    )


def randomness(file: str, line: int | None = None) -> list[Line]:
    """What draws random numbers, or asks the clock. line: only in the class or function around it"""

    def draws(node: ast.AST) -> bool:
        return isinstance(node, ast.Call) and _called(node) in _RANDOM

    return _lines(file, lambda tree: (node for node in ast.walk(_around(tree, line)) if draws(node)))


def model(file: str) -> tuple[list[Line], list[Line]]:
    """(where the model that elastic.Run is given is made, where something is seeded)"""

    def made(tree: ast.AST) -> Iterator[ast.AST]:
        runs = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _called(node) == "Run"]
        given = [word.value for run in runs for word in run.keywords if word.arg == "model"]
        names = {node.id for node in given if isinstance(node, ast.Name)}
        yield from (node for node in given if isinstance(node, ast.Call))
        for node in ast.walk(tree):
            targets = node.targets if isinstance(node, ast.Assign) else []
            if any(isinstance(target, ast.Name) and target.id in names for target in targets):
                yield node

    def seeds(tree: ast.AST) -> Iterator[ast.AST]:
        yield from (node for node in ast.walk(tree) if isinstance(node, ast.Call) and _called(node) in _SEEDS)

    return _lines(file, made), _lines(file, seeds)


def _lines(file: str, find: Callable[[ast.AST], Iterator[ast.AST]]) -> list[Line]:
    try:
        source = Path(file).read_text(encoding="utf-8")
        tree = ast.parse(source)
    except (OSError, SyntaxError, ValueError):
        return []
    text = source.splitlines()
    numbers = sorted({node.lineno for node in find(tree) if isinstance(node, ast.stmt | ast.expr)})
    return [Line(file, number, text[number - 1].strip()) for number in numbers[:SHOWN]]


def _around(tree: ast.AST, line: int | None) -> ast.AST:
    if line is None:
        return tree
    holds = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    return holds[0] if holds else tree


def _called(call: ast.Call) -> str:
    function = call.func
    return (
        function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""
    )
