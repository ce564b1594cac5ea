"""Which lines of a source file can be at fault, by what they do? Reads the source, and runs nothing of it.

Suspicion is by form alone: a name with "rank" in it, something that is added to, a draw of random numbers. So the lines
are offered as where to look, never as a verdict.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

SHOWN = 4
_RANDOM = {"random", "rand", "randn", "randint", "randperm", "choice", "shuffle", "sample", "permutation", "integers"}
_RANDOM |= {"standard_normal", "normal", "uniform", "gauss", "default_rng", "uuid4", "urandom", "time", "time_ns"}
_CHANGES = ("append", "add", "update", "setdefault", "extend", "insert", "pop", "popitem", "remove", "clear", "sort")
_BY_HASH = ("set", "frozenset", "hash")
_SEEDS = ("seed", "manual_seed", "seed_all")


@dataclass(frozen=True)
class Line:
    """Names a line of a source file, counted from 1."""

    file: str
    number: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.number}  {self.text}"


def rank(file: str) -> list[Line]:
    """Return what asks which worker this is, or how many there are."""

    def asks(node: ast.AST) -> bool:
        words = [node.id] if isinstance(node, ast.Name) else [node.attr] if isinstance(node, ast.Attribute) else []
        words += [node.value] if isinstance(node, ast.Constant) and isinstance(node.value, str) else []
        return any(word.lower().endswith(("rank", "world_size", "getpid")) for word in words)

    return _lines(file, lambda tree: (node for node in ast.walk(tree) if asks(node)))


def counters(file: str, line: int | None = None) -> list[Line]:
    """Return what changes while it is read: additions in place, globals, what is put into lasting objects.

    Those are the module's, or self's. line: only in the class or function around it.
    """

    def changes(tree: ast.AST) -> Iterator[ast.AST]:
        lasting = {*_names_of(tree.body if isinstance(tree, ast.Module) else ()), "self"}  # objects that outlive a read
        for node in (inner for outer in _functions(_around(tree, line)) for inner in ast.walk(outer)):
            stored = node.targets if isinstance(node, ast.Assign) else []
            if (
                isinstance(node, ast.AugAssign | ast.Global)
                or any(isinstance(to, ast.Subscript) and _root(to) in lasting for to in stored)
                or (isinstance(node, ast.Call) and _called(node) in _CHANGES and _root(node.func) in lasting)
                or (isinstance(node, ast.Call) and _called(node) == "shuffle" and _root(*node.args[:1]) in lasting)
            ):
                yield node

    return _lines(file, changes)


def randomness(file: str, line: int | None = None) -> list[Line]:
    """Return what draws random numbers, or asks the clock; line: only in the class or function around it.

    Draws from a generator that was seeded in the same function are left out.
    """

    def draws(tree: ast.AST) -> Iterator[ast.AST]:
        around = _around(tree, line)
        seeded = {id(call) for function in _functions(around) for call in _from_seeded(function)}
        for node in ast.walk(around):
            if isinstance(node, ast.Call) and _called(node) in _RANDOM and id(node) not in seeded:
                yield node

    return _lines(file, draws)


def hashed(file: str, line: int | None = None) -> list[Line]:
    """Return what goes by the hashes of texts, which are others in every process: the order of sets, hash() itself."""

    def goes(node: ast.AST) -> bool:
        called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _BY_HASH
        return called or isinstance(node, ast.Set | ast.SetComp)

    return _lines(file, lambda tree: (node for node in ast.walk(_around(tree, line)) if goes(node)))


def raising(file: str, error: str) -> list[Line]:
    """Return where an exception of this name is raised."""
    return _lines(file, lambda tree: (n for n in ast.walk(tree) if isinstance(n, ast.Raise) and _names(n.exc, error)))


def without(lines: list[Line], file: str | None, line: int | None) -> list[Line]:
    """Return the lines that are not in the class or function around a line of a file."""
    tree = _parsed(file) if file is not None else None
    if tree is None or line is None or isinstance(around := _around(tree, line), ast.Module):
        return lines
    first, last = getattr(around, "lineno", 0), getattr(around, "end_lineno", 0)
    return [one for one in lines if one.file != file or not first <= one.number <= last]


def model(file: str) -> tuple[list[Line], list[Line]]:
    """Return (where the model that elastic.Run is given is made, where something is seeded)."""

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
    """Return the first lines of a file whose nodes `find` yields."""
    if (tree := _parsed(file)) is None:
        return []
    text = Path(file).read_text(encoding="utf-8").splitlines()
    numbers = sorted({node.lineno for node in find(tree) if isinstance(node, ast.stmt | ast.expr)})
    return [Line(file, number, text[number - 1].strip()) for number in numbers[:SHOWN]]


def _names(raised: ast.AST | None, error: str) -> bool:
    made = raised.func if isinstance(raised, ast.Call) else raised
    name = made.attr if isinstance(made, ast.Attribute) else made.id if isinstance(made, ast.Name) else ""
    return bool(name) and error.rpartition(".")[2] == name


def _parsed(file: str) -> ast.Module | None:
    try:
        return ast.parse(Path(file).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return None


def _functions(tree: ast.AST) -> list[ast.AST]:
    """Return what runs again and again: functions, but for __init__, and the loop over the run of a script without."""
    return [
        node
        for node in ast.walk(tree)
        if (isinstance(node, ast.FunctionDef) and node.name != "__init__") or _runs(node)
    ]


def _from_seeded(function: ast.AST) -> Iterator[ast.Call]:
    """Yield the draws from generators that the function itself makes from something it is given, such as the index."""
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    seeding = [call for call in calls if _called(call) in (*_SEEDS, "default_rng", "Random") and call.args]
    seeding = [call for call in seeding if any(isinstance(one, ast.Name) for one in ast.walk(call.args[0]))]
    fresh = [node for node in ast.walk(function) if isinstance(node, ast.Assign)]
    names = {name for node in fresh if any(node.value is call for call in seeding) for name in _names_of([node])}
    yield from (call for call in seeding if not _asks_clock(call))  # the clock is no seed
    for call in calls:
        given = [word.value for word in call.keywords if word.arg == "generator"]
        if any(value in seeding or _root(value) in names for value in given) or _root(call.func) in names:
            yield call


def _asks_clock(call: ast.Call) -> bool:
    return any(isinstance(node, ast.Call) and _called(node) in ("time", "time_ns") for node in ast.walk(call))


def _names_of(statements: Iterable[ast.AST]) -> set[str]:
    """Return the names that assignments bind."""
    targets = [
        to
        for node in statements
        for to in (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
    ]
    return {name for to in targets for name in _names_in(to)}


def _names_in(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _root(*nodes: ast.AST) -> str:
    """Return `a` of a.b[c].d; empty for what begins otherwise."""
    node = nodes[0] if nodes else None
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _runs(block: ast.AST) -> list[ast.Call]:
    items = [item.context_expr for item in block.items] if isinstance(block, ast.With) else []
    return [call for call in items if isinstance(call, ast.Call) and _called(call) == "Run"]


def _around(tree: ast.AST, line: int | None) -> ast.AST:
    """Return the outermost class or function around a line; all where there is none."""
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
