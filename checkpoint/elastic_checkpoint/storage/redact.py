"""URLs and errors as people may see them: without passwords, keys, tokens or signed query strings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, unquote

_URL = re.compile(r"(?<=://)[^\s\"'<>]*")
_PORT = re.compile(r"\d{1,5}(?![^/?])")
_QUERY = re.compile(r"(?<=[^\s?])\?[^\s\"']*")
_PUBLIC_OPTIONS = {"endpoint_url", "region_name", "region", "protocol", "target_protocol", "client"}
_NOTHING_CONFIDENTIAL_IN = "faults"  # of elastic_checkpoint.testing
_SHORTEST = 4  # shorter values would only blot out innocent letters


def redact(url: str) -> str:
    """Return the URL without `user:password@` and without its query string.

    A password may hold "/" and "@" as they are, though a URL's should not: where there is one, all up to the last "@"
    counts as confidential.
    """
    return _QUERY.sub("", _without_users(url))


def _without_users(text: str) -> str:
    """Remove `user:password@` from every URL in a text."""
    return _URL.sub(lambda found: found[0][_user_ends(found[0]) :], text)


def _user_ends(rest: str) -> int:
    """Return where `user:password@` ends in what follows a URL's `://`; 0 where there is none."""
    name, colon, after = rest.partition(":")
    named = colon and not set("/@?") & set(name)
    is_host = "." in name or name.startswith("[") or name == "localhost"
    if named and not (is_host and _PORT.match(after)):
        path = rest.rpartition("?")[0] or rest
        return (path.rfind("@") if "@" in path else rest.rfind("@")) + 1
    return re.split(r"[/?]", rest, maxsplit=1)[0].rfind("@") + 1


def _users(text: str) -> list[str]:
    """Return the `user:password` of every URL in a text."""
    return [rest[: end - 1] for rest in _URL.findall(text) if (end := _user_ends(rest))]


class Scrubber:
    """Removes from any text what `url` and the storage options hold in confidence."""

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        confidential = {*_leaves(options), *_of_url(url)}
        confidential |= {unquote(text) for text in confidential}  # as a client shows it that has decoded it,
        confidential |= {quote(text, safe="") for text in confidential}  # put it into a URL,
        confidential |= {repr(text)[1:-1] for text in confidential}  # or shows its options
        self._confidential = sorted((text for text in confidential if len(text) >= _SHORTEST), key=len, reverse=True)

    def __call__(self, text: str) -> str:
        for secret in self._confidential:
            text = text.replace(secret, "***")
        return _URL.sub(lambda found: _QUERY.sub("?***", _without_user(found[0])), text)


def _without_user(rest: str) -> str:
    """Return the part of a URL behind its `://`, with `***` for a user and password."""
    end = _user_ends(rest)
    return "***@" + rest[end:] if end else rest


def _of_url(url: str) -> set[str]:
    """Return all confidential parts of a URL: users, passwords, a query."""
    users = _users(url)
    parts = {part for user in users for part in (*user.split(":"), *user.split(":", 1))}
    return {*users, *parts, *_QUERY.findall(_without_users(url))}


def _leaves(value: object, name: str = "") -> Iterator[str]:
    """Yield every string in the options; where its own name is public, what it holds as a URL."""
    if name == _NOTHING_CONFIDENTIAL_IN:
        return
    if isinstance(value, dict):
        for key, item in value.items():  # what is nested below has names of its own
            yield from _leaves(item, str(key))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item, name)
    elif isinstance(value, bytes):
        yield value.decode("utf-8", "backslashreplace")
    elif isinstance(value, str):
        yield from _of_url(value) if name in _PUBLIC_OPTIONS else (value,)
