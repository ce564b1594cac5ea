"""How far a script may be run before there is a worker, decided from its source alone.

A warm process runs a script's first statements once, for all workers that it will fork; each worker then runs the whole
script, and finds imported what it imports. So the order of things must be python's own: a module that is imported
must find what the script did before that (an environment variable, another module's setting, a seed).

Promises  of the statements that a script begins with, those up to the first one that does more than import, name plain
          values, or set where and how python looks for modules. What follows it is left to the workers, imports too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import CodeType

_PATHS = {"Path", "pathlib.Path", "Path.cwd", "pathlib.Path.cwd", "os.getcwd"}
_BUILTIN = {"str", "int", "float", "bool", "len", "list", "tuple", "dict", "set", "frozenset", "getattr", "hasattr"}
_OTHERS = {"os.getenv", "os.environ.get", "suppress", "contextlib.suppress", "warnings.catch_warnings"}
_PLAIN_CALLS = frozenset({*_PATHS, *_BUILTIN, *_OTHERS, "logging.getLogger"})
"""They change nothing, wherever and however often they are made."""
_OF_PATHS = {"resolve", "absolute", "joinpath", "as_posix", "expanduser", "exists", "is_dir"}
_PLAIN_METHODS = frozenset({*_OF_PATHS, "format", "strip", "lower"})
_OF_PYTHON = {"sys.path.insert", "sys.path.append", "sys.path.extend", "warnings.filterwarnings"}
_SETTINGS = frozenset({*_OF_PYTHON, "warnings.simplefilter", "os.environ.setdefault", "os.environ.update"})
"""What scripts do between imports and because of them. Done again by each worker, it changes nothing more."""


@dataclass(frozen=True)
class Statement:
    """A statement that may be run; line: in the script, from 1; imports: it imports something."""

    line: int
    code: CodeType
    imports: bool


def beginning(source: str, filename: str) -> list[Statement]:
    """Return the first statements, in order; none if the source does not compile, which the worker says."""
    try:
        body = ast.parse(source, filename).body
        compile(source, filename, "exec", dont_inherit=True)  # some errors are found no earlier
    except (SyntaxError, ValueError):
        return []
    return [
        Statement(one.lineno, compile(ast.Module([one], []), filename, "exec", dont_inherit=True), _imports(one))
        for one in _beginning(body)
    ]


def _beginning(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements to run, up to the first one that does more."""
    for statement in body:
        if isinstance(statement, ast.If) and _runs_as_main(statement.test):
            yield from _beginning(statement.body)
            return
        if not _quiet(statement):
            return
        if not _passed_over(statement):
            yield statement


def _imports(statement: ast.stmt) -> bool:
    return any(isinstance(node, (ast.Import, ast.ImportFrom)) for node in ast.walk(statement))


def _passed_over(statement: ast.stmt) -> bool:
    """Return whether a warm process has no need of it: the script's functions and classes are made by each worker."""
    definition = isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Expr, ast.Pass))
    of_future = isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
    return of_future or (definition and not _is_setting(statement))


def _quiet(statement: ast.stmt) -> bool:
    """Return whether it may run in a warm process, and again in each worker."""
    match statement:
        case ast.Import() | ast.ImportFrom() | ast.Pass() | ast.Expr(value=ast.Constant()):
            return True
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            arguments = statement.args
            return not statement.decorator_list and all(
                map(_plain, [*arguments.defaults, *(one for one in arguments.kw_defaults if one is not None)])
            )
        case ast.ClassDef():
            return not statement.decorator_list and all(map(_plain, statement.bases)) and _all_quiet(statement.body)
        case ast.Assign():
            return all(map(_may_be_set, statement.targets)) and _plain(statement.value) and not _extends(statement)
        case ast.AugAssign(op=ast.BitOr()):
            value = statement.value
            into = ast.unparse(statement.target) == "os.environ"
            return into and _plain(value) and "environ" not in ast.unparse(value)
        case ast.AnnAssign():
            return isinstance(statement.target, ast.Name) and (statement.value is None or _plain(statement.value))
        case ast.If():
            return _plain(statement.test) and _all_quiet(statement.body) and _all_quiet(statement.orelse)
        case ast.Try():
            handlers = [one for handler in statement.handlers for one in handler.body]
            return all(map(_all_quiet, (statement.body, handlers, statement.orelse, statement.finalbody)))
        case ast.With():
            return all(_plain(one.context_expr) for one in statement.items) and _all_quiet(statement.body)
    return _is_setting(statement)


def _all_quiet(body: Iterable[ast.stmt]) -> bool:
    return all(map(_quiet, body))


def _is_setting(statement: ast.stmt) -> bool:
    if not isinstance(statement, ast.Expr) or not isinstance(call := statement.value, ast.Call):
        return False
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
    return ast.unparse(call.func) in _SETTINGS and all(map(_plain, arguments))


def _plain(expression: ast.expr) -> bool:
    """Return whether it computes a value from others, and changes nothing."""
    changing = (ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr)
    return not any(
        isinstance(node, changing) or (isinstance(node, ast.Call) and not _plain_call(node.func))
        for node in ast.walk(expression)
    )


def _plain_call(function: ast.expr) -> bool:
    """Return whether this function changes nothing, wherever it is called."""
    name = ast.unparse(function)
    method = isinstance(function, ast.Attribute) and function.attr in _PLAIN_METHODS
    return name in _PLAIN_CALLS or name.startswith("os.path.") or method


def _may_be_set(target: ast.expr) -> bool:
    return isinstance(target, ast.Name) or (
        isinstance(target, ast.Subscript) and ast.unparse(target.value) == "os.environ"
    )


def _extends(statement: ast.Assign) -> bool:
    """Return whether it makes an environment variable from others, which becomes another one each time."""
    into = any(isinstance(target, ast.Subscript) for target in statement.targets)
    return into and "environ" in ast.unparse(statement.value)


def _runs_as_main(test: ast.expr) -> bool:
    return ast.unparse(test) in ("__name__ == '__main__'", "'__main__' == __name__")
