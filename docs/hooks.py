"""What the pages take from the code while they are built: what a command prints."""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import unquote, urlsplit

_OUTPUT = re.compile(r"^<!-- output: (\w+) (.*?)-->$", re.MULTILINE)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replaces `<!-- output: elastic run --help -->` by what that command prints; search has decisions last."""
    if page.file.src_uri.startswith("decisions/"):
        page.meta.setdefault("search", {})["boost"] = 0.1
    return _OUTPUT.sub(lambda found: f"```text\n{_printed(found[1], found[2].split())}\n```", markdown)


def on_page_content(html: str, page: Any, files: Any, **_: Any) -> str:
    """What is taken from the README links to pages as the README does: from the repository's root."""

    def relative(found: re.Match[str]) -> str:
        target = files.get_file_from_path(found[1])
        return found[0] if target is None else f'href="{target.url_relative_to(page.file)}'

    return re.sub(r'href="docs/([^"#]+\.md)', relative, html)


def on_post_build(config: Any, **_: Any) -> None:
    """Raises ValueError for links and references to places that the built pages do not have, and for what pages load
    from another host: they are read from a disk, too."""
    site = Path(config["site_dir"])
    if dead := dead_links(site):
        raise ValueError("dead links on the built pages:\n" + "\n".join(dead))
    if foreign := loaded_from_elsewhere(site):
        raise ValueError("the built pages load from other hosts:\n" + "\n".join(foreign))


def dead_links(site: Path) -> list[str]:
    """ "page: link", of those within the site."""
    site = site.resolve()
    pages = {file: _Page(file.read_text(encoding="utf-8")) for file in site.rglob("*.html") if file.name != "404.html"}
    dead = []
    for file, page in sorted(pages.items()):
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            if not target.exists() or (target in pages and unquote(parts.fragment) not in pages[target].anchors):
                dead.append(f"{file.relative_to(site)}: {link}")
    return dead


def loaded_from_elsewhere(site: Path) -> list[str]:
    """ "page: link", of what a browser fetches with the page."""
    pages = {file: _Page(file.read_text(encoding="utf-8")) for file in site.rglob("*.html")}
    return [
        f"{file.relative_to(site)}: {link}"
        for file, page in sorted(pages.items())
        for link in page.loads
        if urlsplit(link).netloc
    ]


class _Page(HTMLParser):
    """Where a page links to, what it loads, and what can be linked to on it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors = {""}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and name in ("id", "name"):
                self.anchors.add(value)
            elif value and name in ("href", "src"):
                self.links.append(value)
                if name == "src" or tag == "link":
                    self.loads.append(value)


def _printed(command: str, arguments: list[str]) -> str:
    text = io.StringIO()
    with (
        patch.object(sys, "argv", [command, *arguments]),
        patch.dict(os.environ, COLUMNS="88"),
        contextlib.redirect_stdout(text),
        contextlib.suppress(SystemExit),
    ):
        runpy.run_module(command, run_name="__main__")
    if not text.getvalue():
        raise ValueError(f"{command} {' '.join(arguments)} prints nothing")
    return text.getvalue().rstrip()
