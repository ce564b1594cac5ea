"""Messages as types, and as lines: what arrives is one of a few frozen structs, whole, or is refused.

    a type  <->  its facts, as an object  <->  the same with the word that says which type it is  <->  a line of JSON

Promises  Nothing that arrives is more than data: what is no line of one object, or is longer than it may be, is
          refused, and the connection is of no use any more.
          `made` and `parse` raise NotAMessage and nothing else, whatever they are given: an unknown word, a fact that
          is missing, of another type or too many, a number out of all bounds.
          What may be anything at all is passed on as it is: it is not looked through.
Leaves    which types there are to those who say them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any, TypeVar, get_args

import msgspec
from msgspec import Meta
from typing_extensions import dataclass_transform

Message = dict[str, Any]

LINE_MAX = 2**20  # bytes, of whoever connects
NUMBER_MAX = 1 << 53
NAME_MAX = 512  # characters
WORD = "say"  # under which a message says what it is

Int = Annotated[int, Meta(ge=-NUMBER_MAX, le=NUMBER_MAX)]
Float = Annotated[float, Meta(ge=-NUMBER_MAX, le=NUMBER_MAX)]  # no NaN and no infinity

Duration = Annotated[float, Meta(ge=0)]  # in seconds; may be infinite
Name = Annotated[str, Meta(min_length=1, max_length=NAME_MAX)]

_QUOTED = 100  # characters, at both ends of an error of msgspec's: it quotes whoever sent what is wrong


class NotAMessage(ValueError):
    """The other end said something else."""


class Lines:
    """Cuts what arrives into messages.

    longest  how many bytes a line may have; may be raised once the other end is known
    """

    def __init__(self, longest: int = LINE_MAX) -> None:
        self.longest = longest
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """Return the messages that `data` completes. Raises NotAMessage."""
        self._rest += data
        whole: list[bytes] = []
        if b"\n" in data:
            *whole, rest = bytes(self._rest).split(b"\n")
            self._rest = bytearray(rest)
        if max(len(self._rest), *map(len, whole), 0) > self.longest:
            raise NotAMessage(f"a line of more than {self.longest} bytes")
        return [decode(line) for line in whole]


def encode(message: Message) -> bytes:
    """Return a message as a line. Raises TypeError and ValueError for what is no JSON."""
    return json.dumps(message, separators=(",", ":")).encode("ascii") + b"\n"


def decode(line: bytes) -> Message:
    """Return the message of a line. Raises NotAMessage."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as broken:
        raise NotAMessage(f"not a message: {line[:80]!r}") from broken
    if type(message) is not dict:
        raise NotAMessage(f"not a message: {line[:80]!r}")
    return message


def _word(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class _Frozen(msgspec.StructMeta):
    """Structs whose own subclasses are frozen too, and made by keywords alone: msgspec asks for both at each class."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> Any:
        return super().__new__(cls, name, bases, namespace, **{"frozen": True, "kw_only": True, **options})


class Facts(msgspec.Struct, metaclass=_Frozen, forbid_unknown_fields=True):
    """Facts that travel without a word: as a part of a message, or where nothing else may be said."""


class Tagged(Facts, tag_field=WORD, tag=_word):
    """A message. Its word is the name of its class, in small letters, unless the class gives another `tag`."""


T = TypeVar("T", bound=Facts)


def by_word(kinds: Any) -> dict[str, type[Tagged]]:
    """Return the types of a union, or the one type, by the words that they say."""
    types: tuple[type[Tagged], ...] = get_args(kinds) or (kinds,)
    for kind in types:
        # msgspec looks annotations up as the first message comes: here once for all forks, and never in a thread that
        # hears something as the interpreter ends, which showed a traceback there.
        with suppress(msgspec.ValidationError):
            msgspec.convert({}, kind)
    return {str(kind.__struct_config__.tag): kind for kind in types}


def as_message(said: Facts) -> Message:
    """Return the message as it travels."""
    return dict(msgspec.to_builtins(said))


def parse(kinds: Mapping[str, type[Tagged]], message: Message) -> Any:
    """Return the message as one of these kinds. Raises NotAMessage."""
    word = message.get(WORD)
    # Not msgspec's own choice among a union: that takes 119 µs each time, this 3 (2026-11-29).
    kind = kinds.get(word) if isinstance(word, str) else None
    if kind is None:
        raise NotAMessage(f"no known word: {short(word)}")
    try:
        return made(kind, message)
    except NotAMessage as wrong:
        raise NotAMessage(f"{word}: {wrong}") from None


def made(kind: type[T], facts: Any) -> T:
    """Return the struct of this kind that has these facts. Raises NotAMessage."""
    try:
        return msgspec.convert(facts, kind)
    except (msgspec.ValidationError, RecursionError, UnicodeError) as wrong:  # the last: half a character in a name
        text = str(wrong)
        raise NotAMessage(text if len(text) <= 2 * _QUOTED else f"{text[:_QUOTED]}…{text[-_QUOTED:]}") from None


def short(value: Any) -> str:
    """Return what arrived, in few characters, for an error."""
    try:
        text = repr(value)
    except RecursionError:  # lists in lists in lists
        return f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:80]}…"
