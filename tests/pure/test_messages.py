"""What comes over the agents' wire is a message of known form, or is refused: nothing else happens, whoever sent it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic.membership.hub.hub import Hub
from elastic.membership.messages.messages import FROM_WORKER, TO_AGENT, TO_HUB, TO_WORKER, parse
from elastic.membership.messages.wire import WireError
from tests.kit.sampling import examples

SEEN = {"worker": "A0", "phase": 7, "step": None, "sign": 2, "quiet_s": 3.5, "limit_s": None}
SAID: dict[str, dict[str, Any]] = {
    "hello": {"node": "A", "address": None, "slots": 2, "run": "nonce"},
    "started": {"worker": "A0", "local_rank": 0},
    "unstarted": {"local_rank": 1},
    "ready": {"worker": "A0", "shares": 8, "identity": {"torch": "2.13"}, "accepted": False},
    "view_is_over": {
        "worker": "A0",
        "generation": 1,
        "step": -1,
        "at": "boundary",
        "lost": False,
        "whole": True,
        "torn": False,
    },
    "leaving": {
        "worker": "A0",
        "generation": 1,
        "step": 3,
        "lost": True,
        "saved": False,
        "whole": True,
        "torn": False,
        "joins": True,
    },
    "saved": {"worker": "A0", "generation": 1, "step": 3},
    "entered": {"worker": "A0", "generation": 1},
    "witness": {"worker": "A0", "generation": 1, "claim": {"claim": 1, "nonce": "n"}, "agreed": True},
    "has_read": {"worker": "A0", "claim": {"claim": 1, "nonce": "n"}},
    "claimed": {"worker": "A0", "generation": 2, "claim": {"claim": 2, "nonce": "n"}, "why": "", "moved_on": False},
    "noted": {"number": 3},
    "bye": {},
    "ping": {},
    "put": {"worker": "A0", "generation": 1, "key": "address", "value": "eA=="},
    "failed": {"worker": "A0", "error": "ValueError: bad", "trace": "", "step": None, "shown": False},
    "finished": {"worker": "A0", "step": 9},
    "sighted": {"workers": [SEEN]},
    "exited": {
        "worker": "A0",
        "code": None,
        "signal": "SIGKILL",
        "hung": False,
        "expected": False,
        "step": 3,
        "t": 1.79e9,
        "stuck_s": None,
        "stopped": False,
        "kernel": None,
        "out_of_memory": True,
    },
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


def test_every_message_as_it_is_really_said_is_understood() -> None:
    assert SAID.keys() == TO_HUB.keys()
    for say, facts in SAID.items():
        parse(TO_HUB, {"say": say, **facts})


@pytest.mark.parametrize("say", SAID)
def test_a_fact_that_is_missing_unknown_or_of_another_type_is_refused(say: str) -> None:
    """A KeyError for any of these ended the agent, and with it the run."""
    whole = {"say": say, **SAID[say]}
    for name in SAID[say]:
        without = {key: value for key, value in whole.items() if key != name}
        for wrong in ({**whole, name: object()}, {**whole, name: [[]]}, {**whole, name: float("nan")}):
            if name != "identity":
                with pytest.raises(WireError, match=name if say != "sighted" else None):
                    parse(TO_HUB, wrong)
        if name in ("worker", "local_rank", "generation", "shares", "key", "value", "error", "workers"):
            with pytest.raises(WireError, match=f"{name} is missing"):
                parse(TO_HUB, without)
    with pytest.raises(WireError, match="unknown facts"):
        parse(TO_HUB, {**whole, "more": 1})


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
