"""What arrives is a message that is known, whole, or is refused by name: nothing else happens, whoever sent it.

Of every type of message that any process of a run says, in tests over all of them; of the hub's also what follows.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import inspect

from elastic.launch.fork_server.messages import TO_SPARE, BecomeWorker, packet, read
from elastic.membership.hub.hub import Hub
from elastic.membership.messages.messages import FROM_WORKER, TO_AGENT, TO_HUB, TO_WORKER, parse
from elastic.membership.messages.wire import WireError
from elastic_checkpoint.net import codec
from elastic_checkpoint.net.codec import Facts, NotAMessage, Tagged, as_message, by_word, decode, encode, made
from tests.kit.sampling import examples

SAYING = (
    "elastic.launch.rendezvous.store_process",
    "elastic.launch.fork_server.messages",
    "elastic.membership.messages.messages",
    "elastic.membership.succession.node_report",
    "elastic_checkpoint.net.peers",
    "elastic_checkpoint.net.rank_messages",
    "elastic_checkpoint.save.writer.messages",
    "elastic_checkpoint.save.writer.roles",
)


def all_types(below: type[Facts]) -> Iterator[type[Facts]]:
    for kind in below.__subclasses__():
        yield from (kind, *all_types(kind))


def deep(levels: int = 100_000) -> list[Any]:
    nested: list[Any] = []
    for _ in range(levels):
        nested = [nested]
    return nested


DEEP = deep()


for name in SAYING:
    importlib.import_module(name)
TYPES = sorted({*all_types(Facts)} - {Tagged}, key=lambda kind: (kind.__module__, kind.__name__))
TAGGED = [kind for kind in TYPES if issubclass(kind, Tagged)]


def value(of: inspect.Type, name: str = "") -> Any:
    """One that fits. name: of the fact that has it"""
    match of:
        case inspect.DictType() if name in ("claim", "newest"):
            return {"claim": 1, "nonce": "n"}
        case inspect.AnyType() if name == "nodes":
            return ["n"]
        case inspect.IntType() | inspect.FloatType():
            return 1 if isinstance(of, inspect.IntType) else 1.5
        case inspect.StrType():
            return "eA=="  # fits where base64 is asked for, too
        case inspect.BoolType():
            return True
        case inspect.NoneType():
            return None
        case inspect.AnyType():
            return {"of": [1, None]}
        case inspect.EnumType():
            return next(iter(of.cls))
        case inspect.UnionType():
            return value(of.types[0], name)
        case inspect.ListType():
            return [value(of.item_type)]
        case inspect.VarTupleType():
            return (value(of.item_type),)
        case inspect.TupleType():
            return tuple(map(value, of.item_types))
        case inspect.DictType():
            return {"key": value(of.value_type)}
        case inspect.StructType():
            return of.cls(**{field.name: value(field.type, field.name) for field in of.fields})
    raise AssertionError(f"no value of {of}")


def of(kind: type[Facts]) -> Any:
    return value(inspect.type_info(kind))


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_every_message_comes_back_as_it_was_said_or_is_refused_by_name(kind: type[Facts]) -> None:
    """A KeyError for any of these ended an agent, and with it the run. Either end may be of another version, too."""
    said = of(kind)
    line = encode(as_message(said))
    heard = decode(line)
    assert made(kind, heard) == said
    for end in range(0, len(line) - 2, max(1, len(line) // 20)):
        with pytest.raises(NotAMessage):
            decode(line[:end])
    with pytest.raises(NotAMessage, match="unknown field `more`"):
        made(kind, {**heard, "more": 1})
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    for field in info.fields:
        if field.required:
            with pytest.raises(NotAMessage, match=f"missing required field `{field.name}`"):
                made(kind, {name: fact for name, fact in heard.items() if name != field.name})
        for wrong in (object(), [[]], float("nan"), 10**400, DEEP):
            if not isinstance(field.type, inspect.AnyType):
                with pytest.raises(NotAMessage, match=field.name):
                    made(kind, {**heard, field.name: wrong})


@pytest.mark.parametrize("kind", TAGGED, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_a_word_is_a_message_of_those_who_say_it_and_of_nobody_else(kind: type[Tagged]) -> None:
    said = of(kind)
    ((word, _),) = by_word(kind).items()
    assert codec.parse(by_word(kind), as_message(said)) == said
    with pytest.raises(NotAMessage, match=f"{word}: .*unknown field"):
        codec.parse(by_word(kind), {**as_message(said), "more": 1})
    for other in ({}, {"say": None}, {"say": [word]}, {"say": DEEP}, {"say": word.upper()}):
        with pytest.raises(NotAMessage, match="no known word"):
            codec.parse(by_word(kind), other)


def test_half_a_character_is_as_good_as_another_one() -> None:
    """Values of the environment may hold bytes that are no text. As a fact's name it is one that nobody knows."""
    work = BecomeWorker(env={"RANK": "0", "ODD": "\udc80"}, fds=["stdout", "ELASTIC_CHANNEL"])
    assert read(TO_SPARE, packet(work)) == work
    with pytest.raises(WireError):
        parse(TO_HUB, {"say": "ping", "\udc80": 1})


SEEN = {"worker": "A0", "phase": 7, "step": None, "sign": 2, "quiet_s": 3.5, "limit_s": 4.0}
SAID: dict[str, dict[str, Any]] = {
    word: {name: fact for name, fact in as_message(of(kind)).items() if name != "say"} for word, kind in TO_HUB.items()
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


@pytest.mark.parametrize(
    "message",
    [
        {"say": "hello", "slots": 1_000_000_000},
        {"say": "hello", "node": "x" * 100_000},
        {"say": "started", "worker": "", "local_rank": 0},
        {"say": "started", "worker": "w", "local_rank": -1},
        {"say": "ready", "worker": "w", "shares": 0},
        {"say": "finished", "worker": "w", "step": 1 << 60},
        {"say": "put", "worker": "w", "generation": 1, "key": "k", "value": "no base64"},
        {"say": "sighted", "workers": [SEEN] * 5000},
        {"say": "told", "worker": "w"},
        {"say": "witness", "worker": "w", "generation": 1, "claim": {"claim": "1"}, "agreed": True},
        {"say": ["view_is_over"]},
    ],
)
def test_what_is_beyond_all_bounds_is_refused(message: dict[str, Any]) -> None:
    with pytest.raises(WireError):
        parse(TO_HUB, message)


@given(JSON, st.sampled_from([*TO_HUB, *TO_AGENT, *TO_WORKER]), st.dictionaries(st.text(max_size=8), JSON, max_size=4))
def test_anything_at_all_is_a_message_or_a_wire_error(anything: Any, say: str, facts: dict[str, Any]) -> None:
    for kinds in (TO_HUB, FROM_WORKER, TO_AGENT, TO_WORKER):
        for message in ({"say": anything}, {"say": say, **facts}, {**facts, "say": say, "worker": "w"}):
            with suppress(WireError):
                parse(kinds, message)


FACTS = st.fixed_dictionaries(
    {},
    optional={
        "worker": st.sampled_from(["A0", "A1", "B0", "B1", "C0"]) | JSON,
        "local_rank": st.integers(-1, 3) | JSON,
        "generation": st.integers(0, 3) | JSON,
        "step": st.integers(-1, 3) | JSON,
        "workers": st.lists(st.just(SEEN) | st.just({**SEEN, "worker": "B0", "quiet_s": 9e9, "limit_s": 1}) | JSON),
    },
)


@settings(max_examples=examples(300))
@given(st.lists(st.tuples(st.sampled_from([*SAID]), FACTS, st.booleans()), max_size=12))
def test_a_node_that_says_anything_at_all_leaves_the_others_alone(
    said: list[tuple[str, dict[str, Any], bool]],
) -> None:
    """It may end its own workers; those of another node are told no end, no death and no kill, and go on to train."""
    hub = Hub(nodes_max=2)
    for node in "AB":
        hub.receive(0.0, node, {"say": "hello", "slots": 2})
        for slot in range(2):
            hub.receive(0.0, node, {"say": "started", "worker": f"{node}{slot}", "local_rank": slot})
    for id in ("A0", "A1", "B0", "B1"):
        hub.receive(0.0, id[0], {"say": "ready", "worker": id, "shares": 8, "identity": "one"})
    for say, facts, whole in said:
        try:
            orders = hub.receive(1.0, "A", {"say": say, **(SAID[say] if whole else {}), **facts})
        except WireError:
            continue
        to_others = [order.message["say"] for order in orders if order.node == "B"]
        assert not {"start", "kill_hung"} & set(to_others), to_others
    alive = [order for order in hub.lost(2.0, "A") if order.node == "B"]
    to_the_other = {"roster", "broken", "view", "board", "regroup", "released", "end", "run_is_over", "status"}
    assert {order.message["say"] for order in alive} <= to_the_other
