"""URLs and errors as people may see them: without passwords, keys, tokens or signed query strings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

_USER = re.compile(r"(?<=://)[^/@\s]*@")
_QUERY = re.compile(r"(?<=[^\s?])\?[^\s\"']*")
_PUBLIC_OPTIONS = {"endpoint_url", "region_name", "region", "protocol", "target_protocol", "faults"}
_SHORTEST = 4  # shorter values would only blot out innocent letters


def redact(url: str) -> str:
    """The URL without `user:password@` and without its query string."""
    return _QUERY.sub("", _USER.sub("", url))


class Scrubber:
    """Removes from any text what `url` and the storage options hold in confidence."""

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        confidential = {*_leaves(options), *(user[:-1] for user in _USER.findall(url)), *_QUERY.findall(url)}
        confidential |= {part for user in _USER.findall(url) for part in user[:-1].split(":")}
        confidential |= {unquote(text) for text in confidential}  # as a client shows it that has decoded it
        self._confidential = sorted((text for text in confidential if len(text) >= _SHORTEST), key=len, reverse=True)

    def __call__(self, text: str) -> str:
        for secret in self._confidential:
            text = text.replace(secret, "***")
        return _USER.sub("***@", text)


def _leaves(value: object, name: str = "") -> Iterator[str]:
    """Every string in the options, except in those that are public by their name."""
    if name in _PUBLIC_OPTIONS:
        return
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, str(key))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item, name)
    elif isinstance(value, str):
        yield value
