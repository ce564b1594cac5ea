"""URLs, errors and records as people may see them: without passwords, keys, tokens or signed query strings.

One rule says what is confidential:

    of any URL       its user, its password and its query
    storage options  every value but the public ones
    by its name      what stands under a name that says so (`is_confidential`): a variable, a flag, a key, "name=value"

Whatever is confidential in one place is removed wherever it stands; values that are no more than a number or a word
only where they have such a name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, unquote

_URL = re.compile(r"(?<=://)[^\s\"'<>]*")
_PORT = re.compile(r"\d{1,5}(?![^/?])")
_QUERY = re.compile(r"(?<=[^\s?])\?[^\s\"']*")
_PUBLIC_OPTIONS = {"endpoint_url", "region_name", "region", "protocol", "target_protocol", "client"}
_NOTHING_CONFIDENTIAL_IN = "faults"  # of elastic_checkpoint.testing
_SHORTEST = 4  # shorter values would only blot out innocent letters
_LONG = 12  # from here on a word is no longer taken for one
_ORDINARY = re.compile(r"[a-z]+|[A-Z]+|[\d.,+-]+")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_PART_OF_NAME = ("secret", "password", "passwd", "passphrase", "credential", "apikey")
_LAST_OF_NAME = {"token", "pass", "auth", "authorization", "bearer", "cookie", "sas", "dsn"}
_KINDS_OF_KEY = {"api", "access", "private", "account", "storage", "service", "signing", "encryption", "shared", "ssh"}
_OF_TOKENIZERS = {"bos", "cls", "eos", "mask", "pad", "sep", "unk", "image", "special", "start", "end", "next", "per"}
_NAMED = re.compile(
    r"""(?<!\w)(["']?)([A-Za-z][\w.-]{0,99})\1\s*[=:]\s*(?:Bearer\s+)?(?:"([^"\n]+)"|'([^'\n]+)'|([^\s"',;&{}\[\]()]+))"""
)
_NAME_IN_CODE = re.compile(r"""(?<![\w.-])(["']?)(-{0,2}_{0,2}[A-Za-z][\w.-]{0,99})\1""")
_MAY_BE_CONFIDENTIAL = re.compile(
    "secret|passw|passphrase|cred|key|token|pass|auth|bearer|cookie|sas|dsn|pwd|string", re.I
)
_BLANK = r"[^\S\n]{0,40}"
_STRING = r"""(?:\"{3}(?P<a>[^"]+)\"{3}|'{3}(?P<b>[^']+)'{3}|"(?P<c>[^"\n]+)"|'(?P<d>[^'\n]+)')"""
_LITERAL = rf"(?:\({_BLANK}(?:\n[+-]?{_BLANK})?)?[rbfuRBFU]{{0,2}}{_STRING}"
# `name = "…"`, `name: str | None = ("…")`, `environ["NAME"] = "…"`, `"name": "…"`, `name == "…"`
_ANNOTATED = rf"""{_BLANK}:{_BLANK}(?:[^\n"'=]{{1,80}}|(["'])[^\n"'=]{{1,80}}\1){_BLANK}="""
_ASSIGNED = re.compile(rf"\]?(?:{_ANNOTATED}|{_BLANK}(?:\+=|[=:]{{1,2}})){_BLANK}{_LITERAL}")
# `setdefault("NAME", "…")`, `add_argument("--name", default="…")`
_PASSED = re.compile(rf"{_BLANK},{_BLANK}(?P<default>[^\n]{{0,200}}?\bdefault{_BLANK}={_BLANK})?{_LITERAL}")
_IS_ASSIGNED = re.compile(rf"\]?{_BLANK}(?:\+=|[=:])")
_TOKEN = re.compile(r"""(?<=["'])(?=[^"'\s]{0,500}\d)[^"'\s]{8,500}(?=["'])""")  # as a key or a password looks
_LOOKED_AT = 500  # characters of a line


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


def is_confidential(name: str) -> bool:
    """Tell whether a name says that what stands under it is confidential: HF_TOKEN, --api-key, aws_access_key_id."""
    words = [word.lower() for word in _WORD.findall(name)]
    if any(part in "".join(words) for part in _PART_OF_NAME) or words[-2:] == ["connection", "string"]:
        return True
    if words[-1:] == ["id"]:
        words.pop()
    before = words[-2] if len(words) > 1 else None
    if words[-1:] == ["key"]:
        return before is None or before in _KINDS_OF_KEY
    if words[-1:] == ["pwd"]:
        return before is not None  # PWD is a shell's folder
    return bool(words) and words[-1] in _LAST_OF_NAME and not (words[-1] == "token" and before in _OF_TOKENIZERS)


def named_in(text: str) -> Iterator[tuple[str, str]]:
    """Yield name and value of what is written in a text as `name=value` or `"name": "value"`."""
    for found in _NAMED.finditer(text):
        yield found[2], found[3] or found[4] or found[5]


def without_literals(code: str) -> tuple[str, list[tuple[str, str]]]:
    """Return code, or a difference of it, with `***` for literals under confidential names, and what these were.

    That is the literal that such a name is given; and what looks like a key on the rest of its line. What another word
    may mean stays: `sorted(…, key="loss")`, `["token", "label"]`.
    """
    kept, at, removed = [], 0, []
    for name in _NAME_IN_CODE.finditer(code):
        if name.start() < at or not _MAY_BE_CONFIDENTIAL.search(name[2]) or not is_confidential(name[2]):
            continue
        for start, end in _literals_of(code, name):
            if start >= at:
                kept += [code[at:start], "***"]
                at = end
                removed.append((name[2], code[start:end]))
    return "".join([*kept, code[at:]]), removed


def _literals_of(code: str, name: re.Match[str]) -> list[tuple[int, int]]:
    """Return where the literals begin and end that stand under a confidential name."""
    literal, is_weak = _ASSIGNED.match(code, name.end()), name[2].strip("-_") in ("key", "pass")
    if literal is None and name[1]:
        literal = _PASSED.match(code, name.end())
        is_weak = literal is not None and literal["default"] is None
    found = []
    if literal is not None:
        start, end = literal.span(literal.lastgroup or 0)
        if _opens(code, start) and not (is_weak and _is_ordinary(literal[literal.lastgroup or 0])):
            found.append((start, end))
    if _IS_ASSIGNED.match(code, name.end()) and (literal is None or found):
        begin = found[0][1] + 1 if found else name.end()
        line_end = code.find("\n", begin, begin + _LOOKED_AT)
        rest = _TOKEN.finditer(code, begin, line_end if line_end >= 0 else min(begin + _LOOKED_AT, len(code)))
        found += [one.span() for one in rest if _opens(code, one.start()) and not is_confidential(one[0])]
    return found


def _opens(code: str, at: int) -> bool:
    """Return whether the quote before a place opens a literal, as far as its line tells; else it closes one."""
    quote = code[at - 1]
    if code[at - 3 : at] == 3 * quote:
        return True
    begin = code.rfind("\n", max(at - _LOOKED_AT, 0), at) + 1
    return (begin == 0 and at > _LOOKED_AT) or code.count(quote, begin, at - 1) % 2 == 0


class Scrubber:
    """Removes from any text what `url`, the storage options and named values hold in confidence.

    named  names and values: of an environment, a command line, a text
    """

    def __init__(self, url: str, options: dict[str, Any], named: Iterable[tuple[str, str]] = ()) -> None:
        confidential = {*_leaves(options), *_of_url(url), *_of_names(named)}
        confidential |= {unquote(text) for text in confidential}  # as a client shows it that has decoded it,
        confidential |= {quote(text, safe="") for text in confidential}  # put it into a URL,
        confidential |= {repr(text)[1:-1] for text in confidential}  # or shows its options
        self._confidential = sorted((text for text in confidential if len(text) >= _SHORTEST), key=len, reverse=True)

    def __call__(self, text: str) -> str:
        for secret in self._confidential:
            text = text.replace(secret, "***")
        return _URL.sub(lambda found: _QUERY.sub("?***", _without_user(found[0])), text)

    def document(self, value: Any, name: str = "") -> Any:
        """Return a JSON value without what is confidential; a list's items may be the words of a command line."""
        if isinstance(value, Mapping):
            return {key: self.document(item, str(key)) for key, item in value.items()}
        if isinstance(value, list | tuple):
            before = ["", *(item if isinstance(item, str) and item.startswith("-") else "" for item in value)]
            return [self.document(item, flag or name) for flag, item in zip(before, value, strict=False)]
        if value is None or isinstance(value, bool):
            return value
        if name and is_confidential(name) and not str(value).startswith("-"):
            return "***"
        return self(_without_named(value)) if isinstance(value, str) else value


def words_of(command: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield name and value of a command line's flags: `--name value`, `--name=value`, `name=value` within a word."""
    for word, following in zip(command, [*command[1:], "-"], strict=False):
        yield from named_in(word)
        if word.startswith("-") and "=" not in word and not following.startswith("-"):
            yield word, following


def _of_names(named: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield what is confidential of values with names, and within those that have harmless ones."""
    for name, value in named:
        if not is_confidential(name):
            yield from _of_url(value)
            yield from (inner for key, inner in named_in(value) if is_confidential(key) and not _is_ordinary(inner))
        elif not _is_ordinary(value):
            yield value


def _is_ordinary(value: str) -> bool:
    """Tell whether a value is no more than a number or a word, which may stand elsewhere in all innocence."""
    return len(value) < _LONG and _ORDINARY.fullmatch(value) is not None


def _without_named(text: str) -> str:
    """Replace in a text what stands behind a confidential name."""
    found = [value for name, value in named_in(text) if is_confidential(name)]
    for value in found:
        text = text.replace(value, "***")
    return text


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
