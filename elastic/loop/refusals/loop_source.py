"""The source of a script's loops: in which does a frame stand, and what does one turn of it read and write?

Names, and attributes of names, in the order in which a turn comes to them. A branch writes for sure what all of its
ways write; a loop within counts as one that runs. What is defined there, and not called, runs at another time.
"""

from __future__ import annotations

import ast
import linecache
import os
import sysconfig
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

_OWN = str(Path(__file__).parents[2]) + os.sep
_PACKAGES = (_OWN, *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")))
_GROW = frozenset(
    [
        "add",
        "append",
        "appendleft",
        "clear",
        "discard",
        "extend",
        "extendleft",
        "insert",
        "pop",
        "popleft",
        "popitem",
        "remove",
        "setdefault",
        "sort",
        "subtract",
        "update",
    ]
)
_GUARDS = frozenset({"stepped", "updating"})  # of a run: true once a step, on every worker
_LOOPS = (ast.For, ast.While)
_DEPTH_MAX = 3  # calls

Loop = ast.For | ast.While


def is_of_a_package(path: str) -> bool:
    return path.startswith(_PACKAGES)


def loops_around(frame: FrameType) -> list[Loop]:
    """Of the line that the frame stands in, outermost first. None where there is no source."""
    return _around(_parsed(frame.f_code.co_filename).body, frame.f_lineno)


@lru_cache(maxsize=4)
def _parsed(path: str) -> ast.Module:
    try:
        return ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError):
        return ast.Module([], [])


def _source_of(function: FunctionType) -> ast.FunctionDef | None:
    """As far as one has its name and stands there; a decorator's lines are before it."""
    code = function.__code__
    for node in ast.walk(_parsed(code.co_filename)):
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if first == code.co_firstlineno:
                return node
    return None


def _around(body: Iterable[ast.stmt], line: int) -> list[Loop]:
    """Of one function, and none of those that it is defined in."""
    for statement in body:
        if not statement.lineno <= line <= (statement.end_lineno or statement.lineno):
            continue
        parts = [getattr(statement, part, []) for part in ("body", "orelse", "finalbody")]
        parts += [part.body for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ()))]
        inside = [loop for part in parts for loop in _around(part, line)]
        return [statement, *inside] if isinstance(statement, _LOOPS) else inside
    return []


def turn_of(loop: Loop, there: Mapping[str, Any], *, by_share: bool) -> Turn:
    """by_share: it is the one over the run's batches, or over its steps: there a loop over the step is by the share"""
    over = loop.target.id if isinstance(loop, ast.For) and isinstance(loop.target, ast.Name) else None
    steps = over if by_share and over is not None and _goes_over(loop, over) else None
    turn = Turn(there, shares=steps, in_share=by_share and steps is None)
    if isinstance(loop, ast.For):
        turn.visit(loop.target)
    else:
        turn.visit(loop.test)
    turn.run(loop.body)
    return turn


@dataclass
class Turn(ast.NodeVisitor):
    """One turn of a loop, in the order in which it runs: which names it has read before it has surely written them.

    there     what names mean
    shares    the name over whose batches an inner loop goes
    in_share  what comes now is run once a share
    grown     of the written ones, those of which nothing but an element or a method was
    """

    there: Mapping[str, Any]
    shares: str | None
    in_share: bool
    read: dict[str, None] = field(default_factory=dict)
    written: dict[str, bool] = field(default_factory=dict)  # whether a share writes it
    grown: set[str] = field(default_factory=set)
    sure: set[str] = field(default_factory=set)
    _called: list[ast.FunctionDef] = field(default_factory=list)
    _scope: dict[str, str | None] = field(default_factory=dict)  # of the function in hand: what its own names stand for

    def kept(self) -> list[str]:
        return [name for name in self.read if name in self.written]

    def run(self, statements: Iterable[ast.AST]) -> None:
        for statement in statements:
            self.visit(statement)

    def _write(self, name: str, *, grows: bool = False) -> None:
        if grows and name not in self.written:
            self.grown.add(name)
        elif not grows:
            self.grown.discard(name)
        self.written[name] = self.written.get(name, False) or self.in_share
        if grows:
            self._read(name)
        else:
            self.sure.add(name)

    def _read(self, name: str) -> None:
        """And what it hangs at."""
        paths = _paths(name)
        if not self.sure.intersection(paths):
            self.read |= dict.fromkeys(paths)

    def _path(self, node: ast.AST) -> str | None:
        if isinstance(node, ast.Name):
            return self._scope.get(node.id, node.id)
        if isinstance(node, ast.Attribute) and (above := self._path(node.value)) is not None:
            return f"{above}.{node.attr}"
        return None

    def visit_Name(self, node: ast.Name) -> None:
        path = self._path(node)
        if isinstance(node.ctx, ast.Load):
            if path is not None:
                self._read(path)
        elif node.id in self._scope:
            self._scope[node.id] = None
        elif path is not None:
            self._write(path)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        path = self._path(node)
        if path is None:
            self.generic_visit(node)
        elif isinstance(node.ctx, ast.Load):
            self._read(path)
        else:
            self._write(path)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        path = self._path(node.value)
        self.visit(node.slice)
        if isinstance(node.ctx, ast.Load) or path is None:
            self.visit(node.value)
        else:
            self._write(path, grows=True)

    def visit_Call(self, node: ast.Call) -> None:
        called = node.func
        path = self._path(called.value) if isinstance(called, ast.Attribute) and called.attr in _GROW else None
        given = [*node.args, *node.keywords]
        self.run(given)
        if path is not None:
            self._from(given, lambda: self._write(path, grows=True))
            return
        self.visit(called)
        self._enter(self._path(called), node.args)

    def _enter(self, path: str | None, given: Sequence[ast.expr]) -> None:
        """What a function of the script's does to globals, to its object and to what it is given."""
        above, _, name = (path or "").rpartition(".")
        function = at(self.there, above if above else name)[-1]
        if above:
            function = getattr(type(function), name, None)
        if not isinstance(function, FunctionType) or is_of_a_package(function.__code__.co_filename):
            return
        node = _source_of(function) if len(self._called) < _DEPTH_MAX else None
        if node is None or node in self._called:
            return
        parameters = [one.arg for one in (*node.args.posonlyargs, *node.args.args)]
        arguments = [above, *map(self._path, given)] if above else map(self._path, given)
        before, self._scope = (
            self._scope,
            {**dict.fromkeys(_own(node)), **dict(zip(parameters, arguments, strict=False))},
        )
        self._called.append(node)
        self.run(node.body)
        self._called.pop()
        self._scope = before

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        self._from([node.value], lambda: self.run(node.targets))

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)
            self._from([node.value], lambda: self.visit(node.target))

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.run([node.value, node.target])

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        path = self._path(node.target)
        if path is not None:
            self._read(path)
        self.visit(node.value)
        self._from([node.value], lambda: self.visit(node.target))

    def _from(self, values: Iterable[ast.AST], write: Callable[[], None]) -> None:
        """What comes of a share's batch, or loss, is by the share wherever it is written."""
        before = self.in_share
        names = {self._scope.get(name, name) for value in values for name in _names(value)}
        self.in_share |= any(self.written.get(name or "", False) for name in names)
        write()
        self.in_share = before

    def visit_For(self, node: ast.For) -> None:
        self.visit(node.iter)
        self.visit(node.target)
        before = self.in_share
        self.in_share |= self.shares is not None and self.shares in _names(node.iter)
        self.run(node.body)
        self.in_share = before
        self.run(node.orelse)

    def visit_If(self, node: ast.If) -> None:
        self.visit(node.test)
        before = self.in_share
        self.in_share &= not any(isinstance(one, ast.Attribute) and one.attr in _GUARDS for one in ast.walk(node.test))
        self._branches(node.body, node.orelse)
        self.in_share = before

    def _branches(self, *branches: Iterable[ast.AST]) -> None:
        before, ends = self.sure, []
        for branch in branches:
            self.sure = {*before}
            self.run(branch)
            ends.append(self.sure)
        self.sure = set.intersection(*ends)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.visit(node.test)
        self._branches([node.body], [node.orelse])

    def visit_Match(self, node: Any) -> None:
        self.visit(node.subject)
        self._branches(*(case.body for case in node.cases), [])

    def _comprehension(self, node: Any) -> None:
        """Its own names are none of the loop's."""
        before = {*self.sure}
        for clause in node.generators:
            self.visit(clause.iter)
            self.sure |= _names(clause.target)
            self.run(clause.ifs)
        self.run([node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt])
        self.sure = before

    visit_ListComp = visit_SetComp = visit_GeneratorExp = visit_DictComp = _comprehension

    def _apart(self, node: ast.AST) -> None:
        """Runs at another time, if at all."""

    visit_Lambda = visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = visit_Delete = _apart


def _goes_over(loop: Loop, name: str) -> bool:
    inner = (one for statement in loop.body for one in ast.walk(statement) if isinstance(one, ast.For))
    return any(name in _names(one.iter) for one in inner)


def _names(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def _paths(name: str) -> list[str]:
    """Of `a.b.c`: a, a.b and a.b.c."""
    return [*accumulate(name.split("."), "{}.{}".format)]


def _own(function: ast.FunctionDef) -> set[str]:
    """Names that mean something of its own in it."""
    inside = [*ast.walk(function)]
    shared = {name for one in inside if isinstance(one, (ast.Global, ast.Nonlocal)) for name in one.names}
    stored = {one.id for one in inside if isinstance(one, ast.Name) and not isinstance(one.ctx, ast.Load)}
    return (stored | {one.arg for one in inside if isinstance(one, ast.arg)}) - shared


def at(there: Mapping[str, Any], path: str) -> list[Any]:
    """What `a`, `a.b` and `a.b.c` are, as far as they are plain attributes."""
    root, *attributes = path.split(".")
    found = [there.get(root)]
    for attribute in attributes:
        found.append(getattr(found[-1], "__dict__", {}).get(attribute))
    return found
