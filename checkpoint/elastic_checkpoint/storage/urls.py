"""Can a storage be opened at this URL? Judged by what it says, before anything is contacted or made."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from elastic_checkpoint.errors import CheckpointError
from elastic_checkpoint.storage.redact import redact

EXPECTED = "a folder, or a URL that fsspec opens, such as s3://bucket/runs/lm7"
_SCHEMES_OF_FOLDERS = ("file", "local")
_LIKE_A_PROTOCOL = re.compile(r"([A-Za-z][\w+.-]+)(//|:/?(?!//))")
_ALONE = re.compile(r"[a-z]+")  # what fsspec takes for a protocol in a chain, though no :// follows it


class Refusal(NamedTuple):
    """The reason why no storage can be opened; what: was given, without credentials; advice: what to do next."""

    what: str
    found: str
    expected: str
    advice: str

    def error(self) -> CheckpointError:
        return CheckpointError(
            f"{self.what}\n"
            f"  found     {self.found}\n"
            f"  expected  {self.expected}\n"
            "  state     nothing was read or written\n"
            f"  next      {self.advice}"
        )


def refusal(url: object, options: Mapping[str, Any] | None = None) -> Refusal | None:
    """Return why no storage can be opened at this URL; None: one can.

    Loads nothing for a folder, and no package that is not fsspec's own: s3fs takes half a second.
    """
    text = os.fspath(url) if isinstance(url, str | os.PathLike) else url
    if not isinstance(text, str):
        return _cannot(f"url={text!r:.60}", f"it is of type {type(text).__name__}", "give it as text, or as a Path")
    if not text.strip():
        return _cannot("the URL", "it is empty", "give a folder or a URL; is a variable of your shell unset?")
    shown = redact(text)
    if "\0" in text:
        return _cannot(repr(shown), "it holds the character of number 0", "correct the URL")
    protocol, separator, path = text.partition("://")
    if not separator:
        return _typo(text) or _to_nowhere(text)
    if protocol in _SCHEMES_OF_FOLDERS:
        return _to_nowhere(path) if path.strip() else _cannot(shown, "it names no folder", "give its path, too")
    if protocol in ("http", "https"):
        try:
            urlsplit(text)
        except ValueError as error:
            return _cannot(shown, f"it is no URL: {error}", "correct it")
    if (options or {}).get("client", "s3fs") != "s3fs":
        return None
    if (unknown := unknown_protocol(text)) is not None:
        import difflib

        near = difflib.get_close_matches(unknown.lower(), _known(), 1, cutoff=0.75)
        meant = f"; is {near[0]}:// meant?" if near else ""
        return Refusal(
            f"{shown} cannot be opened",
            f"nothing here opens {unknown}://",
            f"{EXPECTED}; known are {', '.join(_known())}",
            f"correct the URL{meant}, or install the package that brings its filesystem to fsspec",
        )
    return _without_package(text, shown)


def unknown_protocol(url: str) -> str | None:
    """Return the first protocol in this URL, or chain of such, that fsspec does not know. Loads no other package."""
    known = _known()
    return next((name for name in _protocols(url) if name not in known), None)


def _known() -> list[str]:
    """Return the protocols that fsspec has a filesystem for, installed or not."""
    from fsspec import available_protocols, registry  # the latter has what this process itself has registered

    return sorted({*available_protocols(), *registry})


def _protocols(url: str) -> Iterator[str]:
    """Yield the protocols in a URL, or in a chain of such."""
    for part in url.split("::"):
        name, separator, _ = part.partition("://")
        if separator or _ALONE.fullmatch(part):
            yield name


def _without_package(url: str, shown: str) -> Refusal | None:
    """Return a refusal if a package is missing that one of the URL's protocols needs."""
    from fsspec import get_filesystem_class, registry
    from fsspec.registry import known_implementations

    for name in _protocols(url):
        package = "" if name in registry else known_implementations[name]["class"].partition(".")[0]
        why = ""
        if package == "fsspec":  # may need others, which only loading it tells
            try:
                get_filesystem_class(name)
            except ImportError as error:
                why = str(error)
        elif package and importlib.util.find_spec(package) is None:
            why = known_implementations[name].get("err", package)
        if why:
            return _cannot(shown, f"{name}:// needs a package that is missing: {why}", "install it, then try again")
    return None


def _typo(text: str) -> Refusal | None:
    """Return a refusal if a path begins as a URL does, but with a slash too few, or without the colon."""
    found = _LIKE_A_PROTOCOL.match(text)
    if found is None or found[1] not in _known():
        return None
    name, mark = found[1], found[2]
    meant = redact(text.replace(mark, "://", 1))  # which knows secrets in URLs
    return Refusal(
        f"{name}{mark} begins a path here, and would be a folder of that name",
        meant.replace("://", mark, 1),
        meant,
        f"for a URL, write {name}:// with two slashes; for a folder, write ./{name}{mark.rstrip('/')}",
    )


def _to_nowhere(path: str) -> Refusal | None:
    """Return a refusal if nothing can be made there: for a user who is not there, or behind a link to nowhere."""
    if path.startswith("~") and os.path.expanduser(path) == path:
        user = path.partition("/")[0]
        return _cannot(
            path, f"there is no user {user[1:]}, whose home {user} would be", f"for a folder, write ./{user}"
        )
    folder = Path(os.path.abspath(os.path.expanduser(path)))
    for part in (folder, *folder.parents):
        if os.path.exists(part):
            return None
        if os.path.islink(part):
            found = f"{part} is a link to {os.readlink(part)}, which is not there"
            return _cannot(str(folder), found, "make the folder that it leads to, or correct the link")
    return None


def _cannot(what: str, found: str, advice: str) -> Refusal:
    return Refusal(f"{what} cannot be opened", found, EXPECTED, advice)
