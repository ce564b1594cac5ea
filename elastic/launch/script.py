"""What a worker is to run, and what it imports, worked out without running it.

A warm process imports these modules once, for all workers that it will fork. Only what surely runs at the top of
the script counts: import statements at its top level, in `try` and `with`, and under `if __name__ == "__main__"`.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Script:
    """target  a path, or for `module` a name as for `python -m`"""

    target: str
    module: bool
    args: tuple[str, ...] = ()

    def command(self) -> list[str]:
        """As on a command line: what `of_command` reads."""
        return [*(["-m"] if self.module else []), self.target, *self.args]

    @classmethod
    def of_command(cls, command: Sequence[str]) -> Script:
        module = command[0] == "-m"
        target, *args = command[1:] if module else command
        return cls(target, module, tuple(args))

    def search_path(self) -> str | None:
        """What python puts in front of sys.path for it; None where it is told not to (-P, PYTHONSAFEPATH)."""
        if getattr(sys.flags, "safe_path", False):
            return None
        return os.getcwd() if self.module else os.path.dirname(os.path.realpath(self.target))


@dataclass(frozen=True)
class Import:
    """`import module`, or `from module import names` (level: its leading dots)."""

    module: str
    names: tuple[str, ...] = ()
    level: int = 0


def imports_of(source: str) -> list[Import]:
    """In order. Empty for a source that does not compile: the worker says so, as python does."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return []
    return list(_found(tree.body))


def source_of(script: Script) -> tuple[str, str]:
    """The source, and the package that its relative imports start from. Raises what python would raise, or OSError."""
    if not script.module:
        with open(script.target, "rb") as file:
            return importlib.util.decode_source(file.read()), ""
    name = script.target
    spec = importlib.util.find_spec(name)  # imports the packages above it, as `python -m` does
    if spec is not None and spec.submodule_search_locations is not None:
        name = f"{name}.__main__"
        spec = importlib.util.find_spec(name)
    source = getattr(spec.loader, "get_source", lambda _: None)(name) if spec is not None else None
    return source or "", name.rpartition(".")[0]


def _found(body: Iterable[ast.stmt]) -> Iterable[Import]:
    for statement in body:
        match statement:
            case ast.Import():
                yield from (Import(alias.name) for alias in statement.names)
            case ast.ImportFrom(module="__future__"):
                pass
            case ast.ImportFrom():
                names = tuple(alias.name for alias in statement.names)
                yield Import(statement.module or "", names, statement.level)
            case ast.Try() | ast.With():
                yield from _found(statement.body)
            case ast.If() if _runs_as_main(statement.test):
                yield from _found(statement.body)


def _runs_as_main(test: ast.expr) -> bool:
    return ast.unparse(test) in ("__name__ == '__main__'", "'__main__' == __name__")
