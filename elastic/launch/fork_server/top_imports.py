"""Which statements at a script's top may be run before there is a worker? Its imports, and the settings between them.

A fork server runs them once, for all workers that it will fork; each worker then runs the whole script, and finds
imported what it imports. A module must find what the script did before it (an environment variable, a folder in
sys.path), so they are run in the script's order, up to the first that is neither: what follows is left to the workers,
imports too.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from types import CodeType

# Settings are known by the calls in them: each worker makes these again, and that changes nothing more.
_CALLS = re.compile(
    r"sys\.path\.(insert|append|extend)|os\.environ\.(get|setdefault|update)|os\.(getenv|getcwd|path\.\w+)"
    r"|warnings\.(filterwarnings|simplefilter)|logging\.getLogger|(pathlib\.)?Path(\.cwd)?|.*\.(resolve|absolute)"
    r"|str|int|bool",
    re.DOTALL,
)


@dataclass(frozen=True)
class Statement:
    """A statement that may be run.

    line, last  its lines in the script, from 1
    imports     it imports something
    packages    that it imports in any case
    """

    line: int
    last: int
    code: CodeType
    imports: bool
    packages: frozenset[str]


def top_imports(source: str, filename: str) -> list[Statement]:
    """Return the statements to run, in order; none if the source does not compile, which the worker says."""
    try:
        body = ast.parse(source, filename).body
        compile(source, filename, "exec", dont_inherit=True)  # some errors are found no earlier
    except (SyntaxError, ValueError):
        return []
    end = next((number for number, one in enumerate(body) if not _is_of_top(one)), len(body))
    return [_statement(one, filename) for one in body[:end]]


def _statement(of: ast.stmt, filename: str) -> Statement:
    names: list[str] = []
    if isinstance(of, ast.Import):
        names = [alias.name for alias in of.names]
    elif isinstance(of, ast.ImportFrom) and of.level == 0:
        names = [of.module or ""]
    return Statement(
        line=of.lineno,
        last=of.end_lineno or of.lineno,
        code=compile(ast.Module([of], []), filename, "exec", dont_inherit=True),
        imports=any(isinstance(node, (ast.Import, ast.ImportFrom)) for node in ast.walk(of)),
        packages=frozenset(name.partition(".")[0] for name in names),
    )


def _is_of_top(statement: ast.stmt) -> bool:
    """Return whether it, and what stands within it, only imports, or sets what imports look at."""
    for node in ast.walk(statement):
        match node:
            case ast.Import() | ast.ImportFrom() | ast.If() | ast.Try() | ast.Expr() | ast.Pass():
                pass
            case ast.Assign(targets=[ast.Name()]) | ast.AnnAssign(target=ast.Name()):
                pass
            case (
                ast.Assign(targets=[ast.Subscript(value=into)], value=value)
                | ast.AugAssign(op=ast.BitOr(), target=into, value=value)
            ):
                # a variable that is made from others would grow each time
                if ast.unparse(into) != "os.environ" or re.search("os.environ|getenv", ast.unparse(value)):
                    return False
            case ast.Call(func=function) if not _CALLS.fullmatch(ast.unparse(function)):
                return False
            case ast.stmt():
                return False
    return True
