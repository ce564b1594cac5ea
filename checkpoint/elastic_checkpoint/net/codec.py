"""Messages as types: what arrives is one of a few frozen dataclasses, whole, or is refused.

    a type  <->  its facts, as an object  <->  the same with the word that says which type it is

Promises  `made` raises NotAMessage, or what the type's own checks raise, and nothing else, whatever it is given: a fact
          that is missing, of another type or too many, a number out of all bounds. `parse` raises NotAMessage alone,
          for an unknown word too, and names the word.
          What may be anything at all is passed on as it is: large facts are neither copied nor looked through.
Leaves    framing to framing.py; which types there are, and by which word each is known, to those who say them.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from elastic_checkpoint.net.framing import Message, NotAMessage

NUMBER_MAX = 1 << 53
WORD = "say"  # under which a message says what it is

T = TypeVar("T")


class Vocabulary:
    """The words of those who talk to each other, to say something by."""

    def __init__(self, *kinds: Mapping[str, type]) -> None:
        """kinds  word -> type, of each who speaks. A type has one word."""
        self._words = {kind: word for known in kinds for word, kind in known.items()}

    def as_message(self, said: Any) -> Message:
        """As it travels. said: of one of these types"""
        return {WORD: self._words[type(said)], **facts_of(said)}


def parse(kinds: Mapping[str, type], message: Message) -> Any:
    """The message as one of these kinds. Raises NotAMessage."""
    word = message.get(WORD)
    kind = kinds.get(word) if isinstance(word, str) else None
    if kind is None:
        raise NotAMessage(f"no known word: {short(word)}")
    try:
        return made(kind, {name: value for name, value in message.items() if name != WORD})
    except ValueError as wrong:
        raise NotAMessage(f"{word}: {wrong}") from None


def facts_of(said: Any) -> Message:
    """As it travels, but for its word. said: a message of such a type"""
    return {one.name: getattr(said, one.name) for one in fields(said)}


def made(kind: Callable[..., T], facts: Mapping[str, Any]) -> T:
    """The message of this kind that has these facts. Raises NotAMessage."""
    checks = _checks(kind)
    if unknown := facts.keys() - checks.keys():
        raise NotAMessage(f"unknown facts: {short(sorted(map(str, unknown)))}")
    for name, (fits, required) in checks.items():
        if name not in facts:
            if required:
                raise NotAMessage(f"{name} is missing")
        elif not fits(facts[name]):
            raise NotAMessage(f"{name} is {short(facts[name])}")
    return kind(**facts)


def short(value: Any) -> str:
    """Of what arrived, for an error."""
    try:
        text = repr(value)
    except RecursionError:  # lists in lists in lists
        return f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:80]}…"


@cache
def _checks(kind: Any) -> dict[str, tuple[Callable[[Any], bool], bool]]:
    """name -> (whether a value has its type, whether it must be there)"""
    hints = get_type_hints(kind)
    return {
        one.name: (_fits(hints[one.name]), one.default is MISSING and one.default_factory is MISSING)
        for one in fields(kind)
    }


def _fits(hint: Any) -> Callable[[Any], bool]:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return lambda value: True
    if origin in (Union, types.UnionType):
        options = [_fits(one) for one in arguments]
        return lambda value: any(fits(value) for fits in options)
    if origin is list:
        if arguments[0] is Any:
            return lambda value: isinstance(value, list)
        item = _fits(arguments[0])
        return lambda value: isinstance(value, list) and all(map(item, value))
    if origin is dict:
        if arguments[1] is Any:
            return lambda value: isinstance(value, dict)
        content = _fits(arguments[1])
        return lambda value: isinstance(value, dict) and all(map(content, value.values()))
    if hint is int:
        return lambda value: isinstance(value, int) and not isinstance(value, bool) and abs(value) <= NUMBER_MAX
    if hint is float:
        return lambda value: isinstance(value, (int, float)) and not isinstance(value, bool) and _finite(value)
    assert hint in (str, bool, type(None)), hint
    return lambda value: isinstance(value, hint)


def _finite(value: float) -> bool:
    return -NUMBER_MAX <= value <= NUMBER_MAX  # no NaN, and no integer beyond floats
