"""What arrives is one of the messages that are known, whole, or is refused by name: no KeyError ends a process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from elastic.launch.warm.messages import FROM_WARM, TO_SPARE, BecomeWorker, Forked, packet, read
from elastic_checkpoint.net.codec import Vocabulary, parse
from elastic_checkpoint.net.framing import NotAMessage
from elastic_checkpoint.save.writer.messages import FROM_WRITER, TO_WRITER


@dataclass(frozen=True, kw_only=True)
class Told:
    number: int
    sizes: list[int] = field(default_factory=list)
    content: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.number < 0:
            raise ValueError(f"{self.number} is no number")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Nothing but its word."""


ANSWERS, QUESTIONS = {"told": Told}, {"asked": Asked}


def deep(levels: int = 100_000) -> list[Any]:
    nested: list[Any] = []
    for _ in range(levels):
        nested = [nested]
    return nested


@pytest.mark.parametrize("said", [Told(number=1, content={"of": [1]}), Told(number=2, sizes=[3, 4])])
def test_what_is_said_comes_back_as_it_was(said: Told) -> None:
    """What may be anything is the very object: the layout of a state may have megabytes."""
    message = Vocabulary(ANSWERS, QUESTIONS).as_message(said)
    assert message["say"] == "told"
    heard = parse(ANSWERS, message)
    assert heard == said
    assert heard.content is said.content


@pytest.mark.parametrize(
    ("message", "refusal"),
    [
        ({}, "no known word: None"),
        ({"number": 1}, "no known word: None"),
        ({"say": "asked"}, "no known word: 'asked'"),
        ({"say": ["told"], "number": 1}, r"no known word: \['told'\]"),
        ({"say": deep()}, "no known word: a list"),
        ({"say": "told"}, "told: number is missing"),
        ({"say": "told", "number": True}, "told: number is True"),
        ({"say": "told", "number": deep()}, "told: number is a list"),
        ({"say": "told", "number": 1, "sizes": [2, "3"]}, r"told: sizes is \[2, '3'\]"),
        ({"say": "told", "number": 1, "content": [1]}, r"told: content is \[1\]"),
        ({"say": "told", "number": 1, "more": 2}, r"told: unknown facts: \['more'\]"),
        ({"say": "told", "number": -1}, "told: -1 is no number"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(message: dict[str, Any], refusal: str) -> None:
    """By the word, and by the fact: whoever is on call learns what was said, and to whom."""
    with pytest.raises(NotAMessage, match=refusal):
        parse(ANSWERS, message)


@pytest.mark.parametrize("word", [*TO_WRITER, *FROM_WRITER])
def test_a_writer_process_and_its_parent_refuse_what_they_do_not_say(word: str) -> None:
    """Either may be of another version, where a program was replaced while it ran."""
    with pytest.raises(NotAMessage, match=f"{word}: unknown facts"):
        parse({**TO_WRITER, **FROM_WRITER}, {"say": word, "more": 1})


def test_a_warm_process_and_its_agent_understand_each_other() -> None:
    """Values of the environment may hold bytes that are no text."""
    work = BecomeWorker(env={"RANK": "0", "ODD": "\udc80"}, fds=["stdout", "ELASTIC_CHANNEL"])
    assert read(TO_SPARE, packet(work)) == work
    assert read(FROM_WARM, packet(Forked(pid=7))) == Forked(pid=7)


@pytest.mark.parametrize(
    ("kinds", "data", "refusal"),
    [
        (TO_SPARE, b"fork", "not a message: b'fork'"),
        (TO_SPARE, b"[1]", "not a message"),
        (TO_SPARE, b'{"env": {}, "fds": []}', "no known word: None"),
        (TO_SPARE, b'{"say": "become_worker", "env": {}}', "become_worker: fds is missing"),
        (TO_SPARE, b'{"say": "become_worker", "env": {"RANK": 0}, "fds": []}', "become_worker: env is {'RANK': 0}"),
        (FROM_WARM, b'{"say": "forked", "pid": null}', "forked: pid is None"),
        (FROM_WARM, b'{"say": "unfit"}', "unfit: why is missing"),
    ],
)
def test_what_a_warm_process_or_its_agent_never_says_is_refused(kinds: Any, data: bytes, refusal: str) -> None:
    with pytest.raises(NotAMessage, match=refusal):
        read(kinds, data)
