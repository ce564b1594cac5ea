"""`elastic docs NAME` shows a page of the documentation, as it was when this version was built. Errors name pages."""

from __future__ import annotations

import difflib
import importlib.metadata
import importlib.util
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown

from elastic_checkpoint.command_line import Parser

_ROOMS = ("", "how-to", "concepts", "reference", "internals", "decisions")
_LISTED = ("docs", "how-to", "concepts")
_INCLUDES = re.compile(r'^--8<-- "([^"]+)"$', re.MULTILINE)  # of pymdownx, by which the site is built


def main(argv: Sequence[str]) -> int:
    """Show a page, or list the pages; return the exit status: 0, or 2 where there is no such page."""
    parser = Parser(
        prog="elastic docs", description="Show a page of the documentation; without a name, list the pages."
    )
    parser.add_argument("name", metavar="NAME", nargs="?", help="such as keep-your-loop")
    asked = parser.parse_args(argv)
    if asked.name is None:
        for name, path in pages().items():
            if path.parent.name in _LISTED and name != "index":
                print(f"{name:28} {_title(path)}")
        return 0
    name = Path(asked.name).name.removesuffix(".md")
    if name not in pages():
        near = difflib.get_close_matches(name, pages(), n=1)
        parser.error(f"there is no page {name!r}; {f'the nearest is {near[0]}' if near else 'elastic docs lists them'}")
    text = _INCLUDES.sub(lambda include: _included(include[1]), pages()[name].read_text())
    if sys.stdout.isatty():
        Console().print(Markdown(text))
    else:
        print(text, end="")
    return 0


def pages() -> dict[str, Path]:
    """Return the pages' files by their names."""
    folder = _folder()
    found: dict[str, Path] = {}
    for room in _ROOMS:
        for path in sorted((folder / room).glob("*.md")):
            found.setdefault(path.stem, path)
    return found


def _folder() -> Path:
    installed = importlib.util.find_spec("elastic.docs")
    assert installed is not None
    assert installed.origin is not None
    return Path(installed.origin).parent


def _included(source: str) -> str:
    """Return a file, or a part of one, that lies beside the pages, in the repository as in the wheel."""
    path, _, part = source.partition(":")
    beside = _folder().parent / path
    readme = path == "README.md" and not beside.exists()  # a wheel has it as its metadata
    text = importlib.metadata.metadata("elastic-exact")["Description"] if readme else beside.read_text()
    if part:
        text = text.partition(f"[start:{part}] -->\n")[2].partition(f"<!-- --8<-- [end:{part}]")[0]
    return text.rstrip("\n")


def _title(path: Path) -> str:
    return next((line[2:] for line in path.read_text().splitlines() if line.startswith("# ")), "")
