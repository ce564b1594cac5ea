"""What both ends know travels by its hash, what has changed as the change, and what comes out is what went in."""

from __future__ import annotations

import base64
import json
import random
import zlib
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from torch.distributed import HashStore, ProcessGroupGloo, Store

from elastic.membership.messages.known_lists import KnownLists, ListUnknown
from elastic.membership.messages.messages import TO_WORKER, NewView, OnBoard, as_message, parse
from elastic.membership.messages.wire import LINE_MAX, LONG_LINE_MAX, Lines, Message, NotAMessage, WireError, encode
from elastic.membership.succession.node_report import NodeReport
from tests.kit.gloo_values import gloo_value


def view(workers: list[str], generation: int = 1) -> Message:
    nodes = [worker.rsplit("-", 1)[0] for worker in workers]
    ranks = [int(worker.rsplit("-", 1)[1]) for worker in workers]
    facts = {"one_node": False, "liveness": {"nonce": "n"}, "short_s": 0.0, "gone": [], "claim": None, "witness": False}
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


def test_what_a_node_reports_of_the_view_is_read_once_for_all_nodes() -> None:
    hub, nodes = KnownLists(), [KnownLists() for _ in range(3)]
    message = view(named(400))
    read = []
    for lists in nodes:
        report = NodeReport()
        report.note_ordered(None, parse(TO_WORKER, lists.unpack(sent(hub.pack(message, None)))))
        packed = sent(lists.pack_report(report.document()))
        assert len(encode(packed)) < 1000
        found = NodeReport.from_document(hub.unpack_report(packed))
        assert found == report
        read.append(found.view)
    assert read[0] is read[1] is read[2]


def test_a_report_of_a_view_that_this_hub_never_heard_of_is_not_taken() -> None:
    node, hub = KnownLists(), KnownLists()
    report = NodeReport()
    report.note_ordered(None, NewView(**{name: value for name, value in view(named(4)).items() if name != "say"}))
    with pytest.raises(ListUnknown):
        hub.unpack_report(sent(node.pack_report(report.document())))
    assert NodeReport.from_document(hub.unpack_report(sent(report.document()))) == report, "in full it is"


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


def _left_by_ranks(count: int) -> dict[str, str]:
    return {f"generation/1/gloo/0/{rank}": gloo_value(rank, count) for rank in range(count)}


def test_what_many_ranks_leave_on_the_board_in_one_turn_travels_in_lines_that_are_taken() -> None:
    """More than 284 of them, at 320 ranks, made a line of more than 1 MiB, and ended the connection of every agent."""
    entries = _left_by_ranks(320)
    lists, longest, arrived = KnownLists(), 0, dict[str, str]()
    for part in OnBoard.of(1, entries):
        line = encode(lists.pack(as_message(part), None))
        longest = max(longest, len(line))
        (message,) = Lines().feed(line)
        arrived |= parse(TO_WORKER, lists.unpack(message)).entries
    assert arrived == entries
    assert longest < LINE_MAX / 4
    assert list(OnBoard.of(1, {})) == []


@pytest.mark.parametrize("ranks", [2, 5])
def test_what_stands_for_gloos_own_on_the_board_is_as_long(ranks: int) -> None:
    """By it the traffic of large runs is measured, which was said to be a hundredth of what it was."""
    left: dict[str, int] = {}
    inner = HashStore()

    class Measured(Store):
        def set(self, key: str, value: str | bytes) -> None:
            left[key] = len(value)
            inner.set(key, value)  # type: ignore[arg-type]

        def get(self, key: str) -> bytes:
            return inner.get(key)

        def wait(self, keys: list[str], timeout: timedelta = timedelta(seconds=60)) -> None:
            inner.wait(keys, timeout)

    def meets(rank: int) -> ProcessGroupGloo:
        options: Any = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        options._timeout = timedelta(seconds=60)
        return ProcessGroupGloo(Measured(), rank, ranks, options)

    with ThreadPoolExecutor(ranks) as pool:
        groups = list(pool.map(meets, range(ranks)))
    assert set(left.values()) == {len(base64.b64decode(gloo_value(0, ranks)))}
    assert len(left) == len(groups) == ranks


@pytest.mark.parametrize("deflated", [None, 3, "", "no base64", "eA==", base64.b64encode(zlib.compress(b"[")).decode()])
def test_what_is_no_board_is_refused(deflated: object) -> None:
    with pytest.raises(WireError):
        KnownLists().unpack({"say": "board", "generation": 1, "deflated": deflated})


def test_a_view_of_16384_workers_fits_into_a_line_of_the_run() -> None:
    """With the names of EC2: its agent says it to each worker, which took that one for gone. A stranger's may not be so
    long."""
    workers = [f"ip-10-0-{number // 256}-{number % 256}.ec2.internal-30000-{number:06x}" for number in range(16384)]
    nodes = [f"{worker.rsplit('-', 2)[0]}-4711-ab12" for worker in workers]
    said = NewView(generation=1, workers=workers, nodes=nodes, local_ranks=[0] * 16384, one_node=False, liveness=None,
                   short_s=0.0, gone=[])  # fmt: skip
    line = encode(as_message(said))
    assert len(line) > LINE_MAX
    (message,) = Lines(LONG_LINE_MAX).feed(line)
    assert parse(TO_WORKER, message) == said
    with pytest.raises(NotAMessage, match="a line of more than"):
        Lines().feed(line)
