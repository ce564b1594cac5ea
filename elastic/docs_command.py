"""`elastic docs NAME` shows a page of the documentation, as it was when this version was built. Errors name pages."""

from __future__ import annotations

import difflib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown

from elastic_checkpoint.command_line import Parser

_ROOMS = ("", "how-to", "concepts", "reference", "internals", "decisions")
_LISTED = ("docs", "how-to", "concepts")


def main(argv: Sequence[str]) -> int:
    """Returns the exit status: 0, or 2 where there is no such page."""
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
    text = pages()[name].read_text()
    if sys.stdout.isatty():
        Console().print(Markdown(text))
    else:
        print(text, end="")
    return 0


def pages() -> dict[str, Path]:
    """By their names."""
    installed = importlib.util.find_spec("elastic.docs")
    assert installed is not None
    assert installed.origin is not None
    folder = Path(installed.origin).parent
    found: dict[str, Path] = {}
    for room in _ROOMS:
        for path in sorted((folder / room).glob("*.md")):
            found.setdefault(path.stem, path)
    return found


def _title(path: Path) -> str:
    return next((line[2:] for line in path.read_text().splitlines() if line.startswith("# ")), "")
