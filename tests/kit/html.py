"""What a page of HTML says, and the figures on it."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any

VOID = {"meta", "link", "br", "line", "path"}


class Parsed(HTMLParser):
    """Every element closed in order, and what it says."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("style", "script"):
            self.words.append(data)
        elif self.open[-1] == "script":
            self.scripts.append(data)


def figures_of(text: str) -> list[dict[str, Any]]:
    """Return the figures of a page, as plotly is given them."""
    page = Parsed(text)
    kinds = [attributes.get("type") for tag, attributes in page.seen if tag == "script"]
    return [json.loads(data) for kind, data in zip(kinds, page.scripts, strict=True) if kind == "application/json"]
