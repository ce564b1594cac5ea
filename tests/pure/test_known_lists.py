"""What both ends know travels by its hash, what has changed as the change, and what comes out is what went in."""

from __future__ import annotations

import base64
import json
import random
import zlib
from typing import Any

import pytest

from elastic.membership.known_lists import KnownLists, ListUnknown
from elastic.membership.messages import TO_WORKER, NewView, parse
from elastic.membership.node_report import NodeReport
from elastic.membership.wire import Message, WireError, encode


def view(workers: list[str], generation: int = 1) -> Message:
    nodes = [worker.rsplit("-", 1)[0] for worker in workers]
    ranks = [int(worker.rsplit("-", 1)[1]) for worker in workers]
    facts = {"one_node": False, "beacon": {"nonce": "n"}, "short_s": 0.0, "gone": [], "claim": None, "witness": False}
    return {"say": "view", "generation": generation, "workers": workers, "nodes": nodes, "local_ranks": ranks, **facts}


def roster(nodes: list[str]) -> Message:
    return {"say": "roster", "nodes": [[node, "10.0.0.1", 7000] for node in nodes], "generation": 1}


def named(count: int, at: str = "host") -> list[str]:
    return [f"{at}{number}-{rank}" for number in range(count) for rank in range(2)]


def sent(message: Message) -> Message:
    """Over a wire."""
    found: Message = json.loads(encode(message))
    return found


def test_whatever_comes_and_goes_arrives_whole() -> None:
    draw = random.Random(7)
    hub, node = KnownLists(), KnownLists()
    since: dict[str, str | None] = {"view": None, "roster": None}
    here = named(20)
    for generation in range(200):
        here = [one for one in here if draw.random() > 0.1] + [
            f"new{generation}-{i}" for i in range(draw.randint(0, 5))
        ]
        if draw.random() < 0.2:
            draw.shuffle(here)
        if draw.random() < 0.05:
            here = []
        for message in (view(here, generation), roster(here)):
            word = message["say"]
            packed = sent(hub.pack(message, since[word]))
            assert node.unpack(packed) == message
            since[word] = hub.name(message)


def test_a_loss_travels_as_the_loss() -> None:
    """A view of 4,096 workers is 200 kB, and went to each of 512 nodes."""
    workers = named(2048)
    hub, node = KnownLists(), KnownLists()
    first, second = view(workers), view([one for one in workers if one != "host7-1"], 2)
    whole = encode(hub.pack(first, None))
    assert node.unpack(json.loads(whole)) == first
    change = hub.pack(second, hub.name(first))
    assert change["rows"]["edit"] == [[0, 15, []], [16, 4096, []]]
    assert node.unpack(sent(change)) == second
    assert len(whole) < len(encode(first)) / 3, "and what is new is deflated"


def test_what_a_node_reports_of_the_view_is_read_once_for_all_nodes() -> None:
    hub, nodes = KnownLists(), [KnownLists() for _ in range(3)]
    message = view(named(400))
    read = []
    for lists in nodes:
        report = NodeReport()
        report.ordered(None, parse(TO_WORKER, lists.unpack(sent(hub.pack(message, None)))))
        packed = sent(lists.pack_report(report.document()))
        assert len(encode(packed)) < 1000
        found = NodeReport.from_document(hub.unpack_report(packed))
        assert found == report
        read.append(found.view)
    assert read[0] is read[1] is read[2]


def test_a_report_of_a_view_that_this_hub_never_heard_of_is_not_taken() -> None:
    node, hub = KnownLists(), KnownLists()
    report = NodeReport()
    report.ordered(None, NewView(**{name: value for name, value in view(named(4)).items() if name != "say"}))
    with pytest.raises(ListUnknown):
        hub.unpack_report(sent(node.pack_report(report.document())))
    assert NodeReport.from_document(hub.unpack_report(sent(report.document()))) == report, "in full it is"


def test_what_is_known_here_alone_is_not_what_changes_are_told_against() -> None:
    hub, node = KnownLists(), KnownLists()
    hub.pack(view(named(4)), None)
    assert hub.newest("view", node.hashes()) is None
    node.unpack(sent(hub.pack(view(named(3)), None)))
    hub.pack(view(named(2)), None)
    assert hub.newest("view", node.hashes()) == hub.name(view(named(3)))


def test_a_change_of_what_was_forgotten_meanwhile_travels_whole() -> None:
    hub, node = KnownLists(), KnownLists()
    first = view(named(2))
    node.unpack(sent(hub.pack(first, None)))
    for count in range(3, 20):
        hub.name(view(named(count)))
    packed = sent(hub.pack(view(named(5)), KnownLists().name(first)))
    assert packed["rows"]["since"] is None
    assert node.unpack(packed) == view(named(5))


BASE = view(named(3))
RIGHT = KnownLists().pack(BASE, None)["rows"]


@pytest.mark.parametrize(
    "rows",
    [
        None,
        [],
        "rows",
        {},
        {**RIGHT, "now": "another"},
        {**RIGHT, "edit": [[0, 1]]},
        {**RIGHT, "edit": [[0, 1, []]]},
        {**RIGHT, "edit": [[0, 0, [["host0-0", "host0"]]]]},
        {**RIGHT, "edit": 7},
        {**RIGHT, "since": 7},
        {**RIGHT, "since": []},
        {**RIGHT, "since": "unheard of"},
        {**RIGHT, "edit": [[0, 0, "host"]]},
        {**RIGHT, "edit": [["0", "0", []]]},
        {"since": None, "now": "x", "deflated": "no base64"},
        {"since": None, "now": "x", "deflated": "AAAA"},
        {"since": None, "now": "x", "deflated": 7},
        {"since": None, "now": "x", "deflated": base64.b64encode(zlib.compress(b"[" * 200_000)).decode()},
    ],
)
def test_what_is_no_list_is_refused(rows: Any) -> None:
    message = {name: value for name, value in BASE.items() if name not in ("workers", "nodes", "local_ranks")}
    with pytest.raises(WireError):
        parse(TO_WORKER, KnownLists().unpack({**message, "rows": rows}))


@pytest.mark.parametrize(
    "view", [{"say": [], "rows": {}}, {"say": "roster", "rows": RIGHT}, {"rows": RIGHT}, {"say": "x"}]
)
def test_a_report_of_what_is_no_view_is_refused(view: Message) -> None:
    """A TypeError ended the agent of the hub, and the run with it."""
    with pytest.raises(WireError):
        NodeReport.from_document(KnownLists().unpack_report({**NodeReport().document(), "view": view}))


def test_a_list_without_end_is_refused() -> None:
    node = KnownLists()
    whole = sent(KnownLists().pack(BASE, None))
    node.unpack(whole)
    again = {"since": whole["rows"]["now"], "now": "x", "edit": [[0, 6, []]] * 200_000}
    with pytest.raises(WireError, match="rows"):
        node.unpack({**whole, "rows": again})
