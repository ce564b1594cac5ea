"""The source of a script's loops and functions. In which loops does a frame stand, and for the next turn?"""

from __future__ import annotations

import ast
import linecache
import os
import sysconfig
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

Loop = ast.For | ast.While
Function = ast.FunctionDef | ast.AsyncFunctionDef

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_OWN = str(Path(__file__).parents[2]) + os.sep
_STANDARD = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib"))
_INSTALLED = {"site-packages", "dist-packages"}
_LINES_MAX = 5_000  # some 10 µs each


def is_of_a_package(path: str) -> bool:
    """Or ours."""
    return path.startswith((_OWN, *_STANDARD)) or not _INSTALLED.isdisjoint(Path(path).parts)


class Sources:
    """The script's files, each parsed once."""

    def __init__(self) -> None:
        self._trees: dict[str, ast.Module] = {}
        self._functions: dict[str, dict[tuple[str, int], Function]] = {}

    def loops_around(self, frame: FrameType) -> list[Loop]:
        """Of the line that the frame stands in, outermost first. None where there is no source."""
        if frame.f_code.co_name.startswith("<") and frame.f_code.co_name != "<module>":
            return []  # a comprehension, which is a loop of its own
        return _around(self._tree(frame.f_code.co_filename).body, frame.f_lineno)

    def behind(self, loop: Loop, frame: FrameType) -> list[ast.stmt]:
        """What the frame comes to after a loop that it stands in, in the same function: where the loop is the outermost
        one, all of it."""
        return _behind(self._tree(frame.f_code.co_filename).body, loop) or []

    def function(self, function: FunctionType) -> Function | None:
        path = function.__code__.co_filename
        if path not in self._functions:
            nodes = [one for one in ast.walk(self._tree(path)) if isinstance(one, Function)]
            self._functions[path] = {(one.name, _first_line(one)): one for one in nodes}
        return self._functions[path].get((function.__code__.co_name, function.__code__.co_firstlineno))

    def _tree(self, path: str) -> ast.Module:
        if path not in self._trees:
            lines = linecache.getlines(path)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # python has told of them
                text = "".join(lines) if len(lines) <= _LINES_MAX else ""
                self._trees[path] = ast.parse(text, path)
        return self._trees[path]


def waits_for_next(loop: Loop, line: int) -> bool:
    """Whether a frame that stands in this line of it is there for the loop's next turn, and not within one."""
    if line < loop.body[0].lineno or line == loop.lineno:
        return True
    at_line = (one for one in ast.walk(loop) if isinstance(one, ast.Call) and one.lineno <= line <= _end(one))
    return any(isinstance(one.func, ast.Name) and one.func.id == "next" for one in at_line)


def _around(body: Iterable[ast.stmt], line: int) -> list[Loop]:
    """Of one function, and none of those that it is defined in."""
    found: list[Loop] = []
    for statement in _at_line(body, line):
        if isinstance(statement, Loop):
            found.append(statement)
        elif isinstance(statement, _SCOPES):
            found = []
    return found


def _behind(block: list[ast.stmt], loop: Loop) -> list[ast.stmt] | None:
    """In the function that the loop stands in; None: it does not stand in this block."""
    for place, statement in enumerate(block):
        if statement is loop:
            return [*loop.orelse, *block[place + 1 :]]
        if not statement.lineno <= loop.lineno <= _end(statement):
            continue
        for inner in _blocks(statement):
            if (found := _behind(inner, loop)) is not None:
                if isinstance(statement, _SCOPES):
                    return found
                return [*found, *getattr(statement, "finalbody", []), *block[place + 1 :]]
    return None


def _at_line(body: Iterable[ast.stmt], line: int) -> Iterator[ast.stmt]:
    """From without to within."""
    statements = deque(body)
    while statements:
        statement = statements.popleft()
        if statement.lineno <= line <= _end(statement):
            yield statement
            statements = deque(one for block in _blocks(statement) for one in block)


def _blocks(statement: ast.stmt) -> list[list[ast.stmt]]:
    blocks = [getattr(statement, part, []) for part in ("body", "orelse", "finalbody")]
    return blocks + [part.body for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ()))]


def _end(node: Any) -> int:
    return int(node.end_lineno or node.lineno)


def _first_line(function: Function) -> int:
    return min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
