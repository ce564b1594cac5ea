"""What a node reports of itself to the next hub is taken whole, or refused with a line in the log: the hub goes on."""

from __future__ import annotations

import json
import math
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from elastic.launch.hub.server import HubServer
from elastic.membership.hub.hub import Hub
from elastic.membership.messages.known_lists import KnownLists
from elastic.membership.messages.messages import (
    TO_HUB,
    TO_LISTENER,
    Entered,
    Failed,
    NewView,
    Ready,
    Started,
    ViewIsOver,
    Witness,
    as_message,
    parse,
)
from elastic.membership.messages.wire import Lines, WireError
from elastic.membership.succession.node_report import NodeReport
from elastic_checkpoint.net.connection import Connection
from elastic_checkpoint.net.dialing import Dial
from elastic_checkpoint.net.event_loop import EventLoop, run_once
from tests.kit.sampling import examples

WITHIN_S = 30.0
VIEW = NewView(generation=3, workers=["a0", "b0"], nodes=["a", "b"], local_ranks=[0, 0], one_node=False, liveness=None,
               short_s=0.0, gone=[], claim={"claim": 1, "nonce": "first"}, witness=True)  # fmt: skip


def _report(lists: KnownLists | None) -> dict[str, Any]:
    """Of node a, as it travels. lists: that it has, by which it is shorter"""
    report = NodeReport()
    report.note_said(Started(worker="a0", local_rank=0))
    report.note_said(Ready(worker="a0", shares=8, identity={"torch": "2.13"}))
    report.note_ordered("a0", VIEW)
    report.note_said(Entered(worker="a0", generation=3))
    report.note_said(Witness(worker="a0", generation=3, claim={"claim": 1, "nonce": "first"}, agreed=True))
    report.note_said(ViewIsOver(worker="a0", generation=3, step=7, at="in step", lost=True))
    report.note_said(Failed(worker="a0", error="ValueError: bad", step=7))
    document = report.document()
    return json.loads(json.dumps(document if lists is None else lists.pack_report(document)))  # type: ignore[no-any-return]


def _hello(*, packed: bool) -> dict[str, Any]:
    lists = KnownLists()
    lists.name(as_message(VIEW))
    return {
        "say": "hello",
        "node": "a",
        "address": "10.0.0.1",
        "port": 7000,
        "slots": 1,
        "starting": [],
        "run": "nonce",
        "report": _report(lists if packed else None),
        "knows": lists.hashes() if packed else [],
    }


def _items(document: Any) -> Iterator[tuple[Any, Any]]:
    """All that can be written to, in it."""
    inner = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in inner:
        yield document, key
        if isinstance(value, dict | list):
            yield from _items(value)


ODD: list[Any] = [None, True, -1, 0, 1, 2, 1 << 70, math.inf, -math.inf, math.nan, 0.5, "", "a", "b0", "\ud800", [], {},
                  [[]], [{}], [1], ["a", "b", 1], {"claim": 2}, {"claim": {}}, "no such name", 99999999]  # fmt: skip
JSON = st.sampled_from(ODD) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
CHANGES = st.lists(st.tuples(st.integers(0, 200), st.booleans(), JSON), min_size=1, max_size=3)


@settings(max_examples=examples(1000))
@given(CHANGES, st.booleans(), st.booleans())
@example([(7, False, {"claim": {}})], False, False)
def test_a_report_with_anything_at_all_in_it_leaves_the_hub_as_it_is(
    changes: list[tuple[int, bool, Any]], packed: bool, knows_it: bool
) -> None:
    """A KeyError for one ended the hub's agent, and with it that node: each of these is one in a real report."""
    message = _hello(packed=packed)
    for number, takes_out, value in changes:
        items = [*_items(message)]
        inside, key = items[number % len(items)]
        if takes_out:
            del inside[key]
        else:
            inside[key] = deepcopy(value)
    _hub_is_told(message, knows_it=knows_it)


def _malformed() -> Iterator[tuple[str, dict[str, Any]]]:
    def changed(name: str, **facts: Any) -> tuple[str, dict[str, Any]]:
        hello = _hello(packed=False)
        return name, {**hello, "report": {**hello["report"], **facts}}

    view = as_message(VIEW)
    deep: Any = []
    for _ in range(600):
        deep = [deep]
    yield changed("a claim without its number", claim={})
    yield changed("a generation without end", generation=math.inf)
    yield changed("nodes that are fewer than the workers", view={**view, "nodes": []})
    yield changed("a word in its report that is none of the last ones", workers=[_worker(said=[{"say": "bye"}])])
    yield changed("nodes of a view that are a number", known=[{**_report(None)["known"][0], "nodes": 3}])
    yield changed("a list in a list in a list", workers=[_worker(said=[{**_said("ready"), "identity": deep}])])
    yield changed("a claim whose nonce is a list", claim={"claim": 1, "nonce": [[]]})
    yield changed("a claim that was read, whose nonce is a list",
                  workers=[_worker(said=[{**_said("ready"), "newest": {"nonce": []}}])])  # fmt: skip
    yield changed("a worker in a view that is not reported", view=None)
    yield "a port that is none", {**_hello(packed=False), "port": 99999999}
    yield "an address that goes on and on", {**_hello(packed=False), "address": "1" * 100_000}


def _worker(**facts: Any) -> dict[str, Any]:
    return {**_report(None)["workers"][0], **facts}


def _said(say: str) -> dict[str, Any]:
    return next(one for one in _worker()["said"] if one["say"] == say)


@pytest.mark.parametrize("message", [pytest.param(message, id=name) for name, message in _malformed()])
def test_a_malformed_hello_is_refused(message: dict[str, Any]) -> None:
    with pytest.raises(WireError):
        Hub(nodes_max=9, takes_over=True).receive(0.0, "a", message)


def _hub_is_told(message: dict[str, Any], *, knows_it: bool) -> None:
    """What the link and the hub in an agent do with a hello. knows_it: the lists that its report names by their hash

    Another node comes, too, and hears of who is here.
    """
    lines: list[str] = []
    with ExitStack() as opened:
        loop = opened.enter_context(EventLoop())
        lists = KnownLists()
        if knows_it:
            lists.name(as_message(VIEW))
        here = HubServer(
            Hub(nodes_max=9, takes_over=True), "hub", loop, lists, deliver=lambda *_: None, say=lines.append
        )
        opened.callback(here.close)

        def comes(hello: dict[str, Any]) -> socket.socket:
            ours, theirs = socket.socketpair()
            opened.enter_context(closing(theirs))
            connection = Connection(loop, ours, lambda _: None, lambda _: None)
            said = parse(TO_LISTENER, hello)
            here.takes(said.node, said, connection)
            here.settle()
            loop.end_turn()
            return theirs

        try:
            hello = parse(TO_LISTENER, message)
        except WireError:
            return  # it is hung up on
        if hello.node in ("", "hub", "other"):
            return  # so is who has a name that is taken
        comes(message)
        heard = Lines().feed(
            comes({"say": "hello", "node": "other", "address": "10.0.0.2", "port": 1, "slots": 1}).recv(1 << 20)
        )
        here.missing()
        here.invites()
        assert {one["say"] for one in heard} & {"roster", "run_is_over"}, lines


def test_a_report_comes_back_as_it_went() -> None:
    for packed in (False, True):
        message = _hello(packed=packed)
        lists = KnownLists()
        lists.name(as_message(VIEW))
        report = lists.unpack_report(message["report"])
        hello = parse(TO_HUB, {**message, "report": report})
        found = NodeReport.from_document(hello.report)
        assert found.view is not None
        assert (found.view.workers, found.workers["a0"].generation, found.known[0].claim) == (["a0", "b0"], 3, 1)
        assert {*found.workers["a0"].said} == {"ready", "stands", "failed"}


@pytest.mark.parametrize("address", ["fe80::1%no-such-interface", "localhost", "no such name", ""])
def test_what_is_no_address_here_is_told_as_any_that_cannot_be_reached(address: str) -> None:
    """Whoever has come said it, and it travels in the roster: it ended the agent that dialled it."""
    heard: list[Any] = []
    with EventLoop() as loop:
        Dial(loop, (address, 7000), heard.append)
        assert heard == [], "not while it is being made: who dials has nothing to take away yet"
        run_once(loop, WITHIN_S)
    assert heard == [None]
