"""The hub's port is open to whoever reaches the machine: what strangers say there changes nothing."""

from __future__ import annotations

import json
import os
import resource
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest

from elastic.launch.hub.link import HubLink
from elastic.launch.net.agent_port import HELLO_S
from elastic.launch.node_rules import ThisNode
from elastic.membership.hub.hub import Hub
from elastic.membership.messages.known_lists import KnownLists
from elastic.membership.messages.messages import Hello, NewView, Ready, Started
from elastic.membership.messages.wire import Lines
from elastic.membership.succession.node_report import NodeReport
from elastic_checkpoint.net.event_loop import EventLoop, run_once
from elastic_checkpoint.net.port import PENDING_MIN
from elastic_checkpoint.net.secret import TransportError
from elastic_checkpoint.net.transport import Transport, client_side

NONCE = "known to the run"
SECRET = "known to its nodes alone, and random"
WITHIN_S = 30.0
THEIRS = {"claim": 2, "nonce": "z", "world": {"nodes": ["x"]}}
HELLO = {"say": "hello", "node": "x", "run": NONCE, "slots": 1}


class Caller:
    """Who has connected. Says a word after the other, and what it hears is read as the loop is turned."""

    def __init__(self, sock: socket.socket, transport: Transport) -> None:
        self.heard, self.ended = b"", False
        self.transport = transport
        self._socket = sock
        sock.setblocking(False)

    def say(self, word: object) -> None:
        data = word if isinstance(word, bytes) else json.dumps(word).encode() + b"\n"
        self.send(self.transport.encrypt(data))

    def send(self, data: bytes) -> None:
        with suppress(OSError):
            self._socket.sendall(data)

    def hangs_up(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)

    def read(self) -> None:
        with suppress(BlockingIOError):
            try:
                while arrived := self._socket.recv(1 << 16):
                    self.heard += self.transport.decrypt(arrived)
                    self.send(self.transport.encrypt())
            except (ConnectionResetError, TransportError):
                self.send(self.transport.encrypt())
            self.ended = True


class Stand:
    """A node with the hub, in a loop that this test turns."""

    def __init__(self, opened: ExitStack, secret: str | None, *, expected: int = 0) -> None:
        self._opened = opened
        self.secret = secret
        listener = socket.create_server(("127.0.0.1", 0))
        self._address = listener.getsockname()
        self._loop = EventLoop()
        self._callers: list[Caller] = []
        self.said: list[str] = []
        this_node = ThisNode(node="first", address="127.0.0.1", run=NONCE, secret=secret)
        self.ordered: list[tuple[str | None, dict[str, Any]]] = []  # this node's workers, and its agent
        self.hub = HubLink(
            this_node,
            lambda takes_over: Hub(nodes_max=max(9, expected)),
            say=self.said.append,
            listener=listener,
            expected=expected,
        )
        self.hub.open(
            self._loop,
            lambda worker, message: self.ordered.append((worker, message)),
            gone=self.said.append,
            moved_on=self.said.append,
            waits=self.said.append,
            not_admitted=self.said.append,
            slots=lambda: (0, []),
            catch_up=lambda: None,
        )
        opened.callback(self.hub.close)

    def connect(self, *words: object, secret: str | None = "ours") -> Caller:
        sock = self._opened.enter_context(socket.create_connection(self._address))
        caller = Caller(sock, client_side(self.secret if secret == "ours" else secret))
        caller.send(caller.transport.encrypt())
        for word in words:
            caller.say(word)
        self._callers.append(caller)
        return caller

    def turn(self, within_s: float = 0.5) -> None:
        """Until nobody has anything to say."""
        deadline = time.monotonic() + within_s
        while True:
            for caller in self._callers:
                caller.read()
            if not run_once(self._loop, 0.05) or time.monotonic() > deadline:
                return
            self.hub.settle()
            self._loop.end_turn()

    def turn_once(self) -> bool:
        """Whether anything was ready."""
        return run_once(self._loop, 0.0)

    def wait_for(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WITHIN_S
        while not holds():
            assert time.monotonic() < deadline, self.said
            self.turn()


@pytest.fixture(params=[None, SECRET], ids=["no secret", "a secret"])
def stand(request: pytest.FixtureRequest) -> Iterator[Stand]:
    with ExitStack() as opened:
        yield Stand(opened, request.param)


@pytest.fixture
def secured() -> Iterator[Stand]:
    with ExitStack() as opened:
        yield Stand(opened, SECRET)


@pytest.mark.parametrize(
    "word",
    [
        {"say": "hello", "node": "x", "run": "\ud800"},
        {"say": "hello", "node": "x", "run": "another"},
        {"say": "hello", "node": "x", "run": None},
        {"say": "hello", "node": "x"},
        {"say": "hello", "node": ["x"], "run": NONCE},
        {"say": "exited", "worker": "w", "run": NONCE, "node": "x"},
        [],
        b"\xff\xfe\n",
        b"{" * 5000 + b"\n",
    ],
)
def test_a_stranger_is_hung_up_on_and_a_node_of_the_run_is_heard(stand: Stand, word: object) -> None:
    stranger = stand.connect(word)
    stand.wait_for(lambda: stranger.ended)
    assert b"board" not in stranger.heard
    assert b"run_is_over" not in stranger.heard, "of its own run this says nothing"
    assert stand.hub.others() == []

    stand.connect({"say": "hello", "node": "second", "run": NONCE, "slots": 1})
    stand.wait_for(lambda: stand.hub.others() == ["second"])


def test_connections_that_say_nothing_are_bounded(stand: Stand) -> None:
    silent = [stand.connect() for _ in range(PENDING_MIN + 5)]
    stand.wait_for(lambda: silent[0].ended)
    stand.connect({"say": "hello", "node": "second", "run": NONCE, "slots": 1})
    stand.wait_for(lambda: stand.hub.others() == ["second"])


def test_a_stranger_in_whose_place_another_hub_is_asked_is_hung_up_on(secured: Stand) -> None:
    """It was forgotten, and its connection was open for as long as the process lived."""
    with socket.create_server(("127.0.0.1", 0)) as there:
        others = [
            secured.connect({**HELLO, "node": node, "address": "127.0.0.1", "port": there.getsockname()[1]})
            for node in ("other", "another")
        ]
        secured.wait_for(lambda: len(secured.hub.others()) == 2)
        ids = {"first0": secured.hub.tell, "other0": others[0].say, "another0": others[1].say}
        for say, facts in (
            ("started", {"local_rank": 0}),
            ("ready", {"shares": 8, "identity": "one"}),
            ("entered", {"generation": 1}),
        ):
            for worker, tell in ids.items():
                tell({"say": say, "worker": worker, **facts})
            secured.turn()
        assert b'"view"' in others[0].heard
        for other in others:
            other.hangs_up()
        is_over = {"say": "view_is_over", "generation": 1, "step": 3, "at": "in step", "lost": True}
        secured.hub.tell({**is_over, "worker": "first0"})
        secured.wait_for(lambda: secured.hub.others() == [])
        silent = [secured.connect() for _ in range(PENDING_MIN)]
        secured.wait_for(lambda: all(one.transport.through for one in silent))

        def one_was_sent_away() -> bool:
            secured.hub.tick(time.monotonic())
            return silent[0].ended

        secured.wait_for(one_was_sent_away)
        assert not silent[-1].ended


def test_a_node_of_the_run_that_says_nonsense_is_told_once_in_the_log_and_changes_nothing(stand: Stand) -> None:
    """A KeyError in the agent's loop ended the run: of all nodes."""
    stand.connect(
        {"say": "hello", "node": "second", "run": NONCE, "slots": 1}, {"say": "view_is_over"}, {"say": "started"}
    )
    stand.wait_for(lambda: len(stand.said) == 2)
    assert [line.split(":")[0] for line in stand.said] == ["a message of second is dropped"] * 2
    assert stand.hub.others() == ["second"]
    noise = [{"say": "view_is_over", "worker": number} for number in range(100)]
    stand.connect({"say": "hello", "node": "third", "run": NONCE, "slots": 1}, *noise)
    stand.wait_for(lambda: "more of the kind is dropped in silence" in stand.said[-1])
    stand.turn(2.0)
    assert sum("third" in line for line in stand.said) == 10
    assert "more of the kind is dropped in silence" in stand.said[-1]


def test_whoever_knows_the_run_learns_where_its_hub_is(stand: Stand) -> None:
    asks = stand.connect({"say": "where_is_the_hub", "run": NONCE})
    stand.wait_for(lambda: b"\n" in asks.heard)
    assert json.loads(asks.heard)["address"] == "127.0.0.1"


def test_a_silent_node_is_lost_to_a_hub_that_is_always_late(stand: Stand) -> None:
    """On a machine that swaps each tick was late, and began all leases anew: the others waited for ever."""
    stand.connect(HELLO)
    stand.wait_for(lambda: stand.hub.others() == ["x"])
    now_s = time.monotonic()
    for late in range(1, 9):
        stand.hub.tick(now_s + 2.0 * late)
    assert stand.hub.others() == []


def test_an_agent_without_a_descriptor_left_does_not_spin_and_hears_who_waited(stand: Stand) -> None:
    """Whoever waited made each turn of its loop come at once: it took a processor from its workers."""
    stand.connect(HELLO)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with open(os.devnull) as lowest_free:
        number = lowest_free.fileno()
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, hard))
    try:
        assert stand.turn_once()
        assert not stand.turn_once()
        stand.hub.tick(time.monotonic())
        assert not stand.turn_once(), "not at once"
        stand.hub.tick(time.monotonic() + 1.0)
        assert stand.turn_once(), "it looks again"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    stand.hub.tick(time.monotonic() + 1.0)
    stand.wait_for(lambda: stand.hub.others() == ["x"])


def test_what_all_workers_of_a_node_are_told_travels_once(stand: Stand) -> None:
    """A view of a thousand workers went a thousand times over the network, and each of them names all."""
    workers = [f"w{number}" for number in range(4)]
    words: list[object] = [{"say": "hello", "node": "second", "run": NONCE, "slots": 4}]
    words += [{"say": "started", "worker": one, "local_rank": rank} for rank, one in enumerate(workers)]
    words += [{"say": "ready", "worker": one, "shares": 8, "identity": "one"} for one in workers]
    second = stand.connect(*words)
    stand.wait_for(lambda: b'"view"' in second.heard)
    stand.turn()
    lines = [json.loads(line) for line in bytes(second.heard).splitlines()]
    (view,) = [line for line in lines if line["say"] == "view"]
    view = KnownLists().unpack(view)
    assert view["to"] == view["workers"] == workers
    assert view["nodes"] == ["second"] * 4
    assert [line["to"] for line in lines if line["say"] == "roster"] in ([None], [])


def test_a_view_that_follows_another_travels_as_what_has_changed(stand: Stand) -> None:
    workers = [f"w{number}" for number in range(4)]
    words: list[object] = [{**HELLO, "slots": 4}]
    words += [{"say": "started", "worker": one, "local_rank": rank} for rank, one in enumerate(workers)]
    words += [{"say": "ready", "worker": one, "shares": 8, "identity": "one"} for one in workers]
    node = stand.connect(*words)
    stand.wait_for(lambda: node.heard.count(b'"view"') == 1)
    node.say({"say": "exited", "worker": "w1", "code": 0})
    for one in ("w0", "w2", "w3"):
        node.say({"say": "view_is_over", "worker": one, "generation": 1, "step": 3, "at": "boundary", "lost": True})
    stand.wait_for(lambda: node.heard.count(b'"view"') == 2)
    first, second = [json.loads(line) for line in node.heard.splitlines() if b'"view"' in line]
    assert second["rows"] == {
        "since": first["rows"]["now"],
        "now": second["rows"]["now"],
        "edit": [[0, 1, []], [2, 4, []]],
    }
    lists = KnownLists()
    assert [lists.unpack(one)["workers"] for one in (first, second)] == [workers, ["w0", "w2", "w3"]]


def test_a_hub_that_does_not_know_what_a_report_names_asks_for_it_in_full(stand: Stand) -> None:
    report, hello = NodeReport(), {**HELLO, "address": "10.0.0.1", "port": 1}
    view = NewView(generation=1, workers=["w"], nodes=["x"], local_ranks=[0], one_node=True, liveness=None, short_s=0.0,
                   gone=[])  # fmt: skip
    report.note_ordered(None, view)
    node = stand.connect({**hello, "report": KnownLists().pack_report(report.document())})
    stand.wait_for(lambda: b'"in_full"' in node.heard)
    assert b'"roster"' not in node.heard
    assert stand.said == [], "that is nobody's fault"
    node.say({"say": "started", "worker": "later", "local_rank": 0})
    node.say({**hello, "report": report.document()})
    stand.wait_for(lambda: b'"roster"' in node.heard)
    node.say({"say": "ready", "worker": "later", "shares": 8, "identity": "one"})
    stand.wait_for(lambda: b'"view"' in node.heard)


def test_a_node_that_is_back_before_its_loss_was_decided_on_was_lost(stand: Stand) -> None:
    """What went out on the connection that ended is never said again: the others must hear that the view is broken."""
    other, node = stand.connect({**HELLO, "node": "other"}), stand.connect(HELLO)
    stand.wait_for(lambda: len(stand.hub.others()) == 2)
    for one, id in ((other, "other0"), (node, "x0")):
        one.say({"say": "started", "worker": id, "local_rank": 0})
        one.say({"say": "ready", "worker": id, "shares": 8, "identity": "one"})
    stand.wait_for(lambda: all(b'"view"' in one.heard for one in (other, node)))
    report = NodeReport()
    view = json.loads(next(line for line in node.heard.splitlines() if b'"view"' in line))
    worker = NewView(**{name: value for name, value in KnownLists().unpack(view).items() if name not in ("say", "to")})
    report.note_said(Started(worker="x0", local_rank=0))
    report.note_ordered("x0", worker)
    stand.connect({**HELLO, "starting": [], "report": report.document()})
    stand.wait_for(lambda: b'"broken"' in other.heard)


def test_a_side_that_lost_hears_so_at_every_node(stand: Stand) -> None:
    """The hub's own node heard it first, and its hub stepped down before the others were told: each of them became the
    hub in its turn, asked the storage, and lost, with its workers alive."""
    other, gone = stand.connect({**HELLO, "node": "other"}), stand.connect(HELLO)
    stand.wait_for(lambda: len(stand.hub.others()) == 2)
    says: dict[str, Callable[[dict[str, Any]], None]] = {
        "first0": stand.hub.tell,
        "other0": other.say,
        "x0": gone.say,
    }
    for say, facts in (
        ("started", {"local_rank": 0}),
        ("ready", {"shares": 8, "identity": "one"}),
        ("entered", {"generation": 1}),
        ("witness", {"generation": 1, "claim": {"claim": 1, "nonce": "n"}, "agreed": True}),
    ):
        for worker, tell in says.items():
            tell({"say": say, "worker": worker, **facts})
        stand.turn()
    assert b'"view"' in other.heard
    gone.hangs_up()
    is_over = {"say": "view_is_over", "generation": 1, "step": 3, "at": "in step", "lost": True}
    for worker in ("first0", "other0"):
        says[worker]({**is_over, "worker": worker})
    stand.wait_for(lambda: any(worker and said["say"] == "claim" for worker, said in stand.ordered))
    lost = "claim 2 is another's"
    stand.hub.tell(
        {"say": "claimed", "worker": "first0", "generation": 2, "claim": THEIRS, "why": lost, "moved_on": True}
    )
    stand.hub.settle()
    stand.wait_for(lambda: other.ended)
    assert lost in stand.said
    assert f'"say":"moved_on","why":"{lost}"'.encode() in other.heard


def test_a_node_says_its_hello_in_full_where_it_is_asked_to(stand: Stand) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hub, socket.create_connection(hub.getsockname()) as connected:
        theirs, _ = hub.accept()
        link = HubLink(
            ThisNode(node="x", address="127.0.0.1", run=NONCE), lambda takes_over: Hub(), say=print, connected=connected
        )
        loop = EventLoop()
        link.open(
            loop,
            lambda worker, message: None,
            gone=print,
            moved_on=print,
            waits=print,
            not_admitted=print,
            slots=lambda: (1, []),
            catch_up=lambda: None,
        )
        theirs.sendall(b'{"to":null,"say":"in_full"}\n')
        run_once(loop, WITHIN_S)
        loop.end_turn()
        lines, hellos = Lines(), list[Any]()
        theirs.settimeout(WITHIN_S)
        while len(hellos) < 2:
            hellos += lines.feed(theirs.recv(1 << 16))
        assert [hello["say"] for hello in hellos] == ["hello", "hello"]
        assert hellos[0]["report"] is None, "it is new"
        assert NodeReport.from_document(hellos[1]["report"]) == NodeReport()
        link.close()
        theirs.close()


def test_the_hub_of_many_workers_says_one_thing_to_each_node_however_many_come_at_once() -> None:
    """Of all that came in one turn, what follows is decided once: rosters went out for each node that came, to all."""
    hub, nodes = Hub(nodes_min=1, nodes_max=64), [f"n{number}" for number in range(64)]
    for node in nodes:
        hub.hear(0.0, node, Hello(node=node, slots=1, address="10.0.0.1", port=1))
    orders = hub.follows(0.0)
    assert [order.node for order in orders if order.message["say"] == "roster"] == nodes
    for node in nodes:
        hub.hear(0.0, node, Started(worker=f"w{node}", local_rank=0))
        hub.hear(0.0, node, Ready(worker=f"w{node}", shares=64, identity="one"))
    views = [order for order in hub.follows(0.0) if order.message["say"] == "view"]
    assert [order.node for order in views] == nodes
    assert all(order.message is views[0].message for order in views)


@pytest.mark.parametrize("secret", ["that of another run, as long", None], ids=["another", "none"])
def test_who_knows_the_run_and_not_its_secret_is_refused_and_both_learn_why(secured: Stand, secret: str | None) -> None:
    """What the store says of a run, whoever reaches the store knows."""
    stranger = secured.connect(HELLO, secret=secret)
    secured.wait_for(lambda: stranger.ended)
    assert "ELASTIC_SECRET" in stranger.transport.refused
    assert secured.hub.others() == []
    (told,) = secured.said
    assert told.startswith("a process on 127.0.0.1 is refused: it has ")
    assert "give all nodes of the run the same ELASTIC_SECRET" in told
    assert SECRET not in told

    again = secured.connect(HELLO, secret=secret)
    secured.wait_for(lambda: again.ended)
    assert len(secured.said) == 1, "of one host once"


def test_a_node_with_a_secret_finds_out_that_the_others_have_none() -> None:
    with ExitStack() as opened:
        stand = Stand(opened, None)
        stranger = stand.connect(HELLO, secret=SECRET)
        stand.wait_for(lambda: stranger.ended)
        assert "it has no ELASTIC_SECRET" in stranger.transport.refused
        assert "it has an ELASTIC_SECRET, and this process has none" in stand.said[0]


def test_half_a_handshake_has_a_deadline(secured: Stand) -> None:
    opening = client_side(SECRET).encrypt()
    half = [secured.connect(opening[:cut], secret=None) for cut in (1, 5, 100, len(opening) - 1)]
    secured.turn()
    assert not any(one.ended for one in half)
    secured.hub.tick(time.monotonic() + HELLO_S + 1)
    secured.wait_for(lambda: all(one.ended for one in half))
    assert secured.said == [], "who went away before saying anything is nobody's business"


def test_a_flood_of_strangers_costs_a_node_of_the_run_nothing_but_its_share_of_time(secured: Stand) -> None:
    """Each of them begins a handshake, which is the most that they can make the hub do, and leaves it there."""
    node = secured.connect(HELLO)
    secured.wait_for(lambda: secured.hub.others() == ["x"])
    opening = client_side(SECRET).encrypt()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        strangers = [secured.connect(opening, secret=None) for _ in range(40)]
        node.say({"say": "ping"})
        secured.turn(5.0)
        del strangers
    ours = len(os.listdir("/proc/self/fd")) - before - 400
    assert ours <= PENDING_MIN
    assert secured.hub.others() == ["x"]
    assert not node.ended
