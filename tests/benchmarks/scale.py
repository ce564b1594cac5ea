"""How long does a view of thousands of workers take to form? The real hub, and workers that only talk to it.

    python -m tests.benchmarks.scale [--workers 16 256 1024 4096 16384] [--of-a-node 8] [--loss 0.001] [--clear]
                                     [--together 2] [--json FILE]

One process, no torch, a simulated network and clock. The hub and what nodes read are the real code, whose processor
time is measured as it runs and passes on the simulated clock; what arrives while the hub is busy is heard in its next
turn. What sockets and TLS take of either end's processor is measured first, over loopback, and passes there, too
(connection_costs.py): for each write and read, each line and byte of them, and each connection. What the hub says to a
node in one turn is one write; what a node's workers say at the same moment, one for each --together; and what lies at
the hub of one node when a turn begins is one read, as with agents. The hub accepts so many of a turn as agents do, and
the others wait in its queue.
The network has 0.5 ms one way, and 10 Gbit/s at the hub; a line is lost now and then, and then sent again after 0.2 s,
with those behind it. For each size, from the moment of the cause until the last node has heard what follows, of

    the first view          all workers say `ready`
    a worker is lost        its agent says so, all others that they left the view
    1 % of nodes are lost   their connections end, at the same time (at least one)
    the hub's host is lost  every node connects to the next hub and says hello, with its report; that one forms a view

it prints that time, the hub's part of it, messages heard and lines said, megabytes both ways, and the hub's time for
each worker: what grows faster than the workers shows there; and at which size one hub takes a second for it. Not in it:
gloo's and NCCL's own connections, which form afterwards. Gloo's full mesh connects each rank with each, and what each
leaves on the board for all others is as long as there are ranks: it is measured up to --board workers.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from elastic.launch.hub.rules import WELCOME_S
from elastic.launch.hub.server import HubServer
from elastic.membership.hub.hub import Hub
from elastic.membership.messages.known_lists import KnownLists
from elastic.membership.messages.messages import TO_AGENT, TO_HUB, TO_WORKER, Broken, NewView, Roster, parse
from elastic.membership.messages.wire import LONG_LINE_MAX, Lines, Message, encode
from elastic.membership.succession.node_report import NodeReport
from elastic_checkpoint.net.connection import RECORD
from elastic_checkpoint.net.port import ACCEPTED_MAX
from elastic_checkpoint.net.secret import generated_secret
from tests.benchmarks import connection_costs, harness
from tests.benchmarks.connection_costs import Costs
from tests.benchmarks.harness import interruptible, progress
from tests.kit.gloo_values import gloo_value

SIZES = (16, 256, 1024, 4096, 16384)
BYTES_PER_S = 10e9 / 8
READ = 1 << 16  # bytes, at most
ONE_WAY_S, AGAIN_S = 0.5e-3, 0.2
TOGETHER = 2
"""Lines of a node's workers, said at the same moment, in one write. Measured on 2026-11-27: where two agents with 4
workers each, on two cores at a load of 15, passed on what these said as a view ended, 44 lines were in 26 writes."""
LOST = {"step": 3, "at": "in the exchange of step 3", "lost": True, "whole": True, "torn": False}


@dataclass
class Figures:
    """seconds  on the simulated clock   hub_s  of its processor   node_s  of the slowest node's

    reads, writes  of the hub's, for what it hears and says
    welcome_s  that a node has waited for the next hub's first word, after its hello; it gives that one up after
               launch/hub/rules.py's WELCOME_S
    """

    workers: int
    what: str
    seconds: float = 0.0
    hub_s: float = 0.0
    node_s: float = 0.0
    welcome_s: float = 0.0
    heard: int = 0
    heard_bytes: int = 0
    lines: int = 0
    bytes: int = 0
    reads: int = 0
    writes: int = 0

    @property
    def each_us(self) -> float:
        return 1e6 * self.hub_s / self.workers


class Network:
    """Of one hub: what is said arrives in order, per node and direction, and all of it passes the hub's own wire."""

    def __init__(self, loss: float) -> None:
        self._loss = loss
        self._draw = random.Random(7)
        self._free_s = {True: 0.0, False: 0.0}  # the hub's wire, to it and from it
        self._arrived_s: dict[tuple[str, bool], float] = {}

    def arrives_s(self, now_s: float, node: str, size: int, *, to_hub: bool) -> float:
        self._free_s[to_hub] = max(self._free_s[to_hub], now_s) + size / BYTES_PER_S
        at_s = self._free_s[to_hub] + ONE_WAY_S * self._draw.uniform(1.0, 1.2)
        while self._draw.random() < self._loss:
            at_s += AGAIN_S
        self._arrived_s[node, to_hub] = max(self._arrived_s.get((node, to_hub), 0.0), at_s)
        return self._arrived_s[node, to_hub]


@dataclass
class Wire:
    """The hub's end of a connection: what it says waits here until its turn is over."""

    said: deque[bytes] = field(default_factory=deque)

    def say(self, message: Message) -> None:
        self.send(encode(message))

    def send(self, data: bytes) -> None:
        self.said.append(data)

    def close(self) -> None:
        """Nothing is open."""

    def writes(self) -> Iterator[list[bytes]]:
        """What leaves at the end of the turn, in one write each."""
        while self.said:
            lines, size = list[bytes](), 0
            while self.said and size < RECORD:
                lines.append(self.said.popleft())
                size += len(lines[-1])
            yield lines


class Fleet:
    """Nodes without processes, the network, and the hub that they talk to."""

    def __init__(self, workers: int, of_a_node: int, loss: float, costs: Costs, together: int) -> None:
        self.count, self.loss, self.costs, self.together = workers, loss, costs, together
        names = [f"host{number:05d}-4711-ab12" for number in range(max(2, workers // of_a_node))]
        self.ids = {node: [f"{node[:-5]}-{rank}-{rank:06x}" for rank in range(workers // len(names))] for node in names}
        self.reports = {node: NodeReport() for node in names}
        self.lists = KnownLists()  # of all nodes: each knows what all have been told, and room for one is here
        self._read: dict[bytes, tuple[Any, float]] = {}
        self._arriving: list[tuple[float, int, str, list[bytes] | Message]] = []
        """At the hub: the lines of a write, or who dials, and what hello follows."""
        self._hello_s: dict[str, float] = {}  # when a node has said hello, and nothing was heard since
        self._number = 0
        self.now_s = 0.0
        self.figures = Figures(workers, "")
        self._begin_hub(takes_over=False)

    @property
    def nodes(self) -> list[str]:
        return list(self.ids)

    def _begin_hub(self, *, takes_over: bool) -> None:
        count = len(self.ids)
        hub = Hub(nodes_min=1, nodes_max=count, takes_over=takes_over, liveness={"nonce": "0" * 32})
        hub.have_met([] if takes_over else [[node, "10.0.0.1", 1] for node in self.ids])
        self.wires = {node: Wire() for node in self.ids}
        self._heard_by_hub = {node: Lines() for node in self.ids}
        self.network = Network(self.loss)
        self.hub = HubServer(hub, "no node's", None, self.lists, deliver=lambda *_: None, say=print)  # type: ignore[arg-type]

    # what nodes say

    def says(self, node: str, *messages: Message, after_s: float = 0.0) -> None:
        """In one write."""
        lines = [encode(message) for message in messages]
        size = sum(map(len, lines))
        for message in messages:
            self.reports[node].note_said(parse(TO_HUB, message))
        self.figures.heard += len(lines)
        self.figures.heard_bytes += size
        begun_s = self.now_s + after_s + self.costs.saying_s(len(lines), size)
        self._arrives(self.network.arrives_s(begun_s, node, size, to_hub=True), node, lines)

    def dials(self, node: str, hello: Message, after_s: float) -> None:
        """It connects to the hub, and says hello once they have shaken hands."""
        self._arrives(self.now_s + after_s + ONE_WAY_S, node, hello)

    def _arrives(self, at_s: float, node: str, what: list[bytes] | Message) -> None:
        self._number += 1
        heapq.heappush(self._arriving, (at_s, self._number, node, what))

    def of_all(self, say: str, **facts: Any) -> None:
        for node in self.nodes:
            self.of_node(node, say, **facts)

    def of_node(self, node: str, say: str, **facts: Any) -> None:
        """Each of its workers says that, at the same moment."""
        messages = [
            {"say": say, "worker": id, **(facts if say != "started" else {"local_rank": rank})}
            for rank, id in enumerate(self.ids[node])
        ]
        self.workers_say(node, messages)

    def workers_say(self, node: str, messages: list[Message]) -> None:
        """At the same moment."""
        for first in range(0, len(messages), self.together):
            self.says(node, *messages[first : first + self.together])

    def hello(self, node: str, **facts: Any) -> Message:
        number = self.nodes.index(node)
        at = {"address": f"10.0.{number // 256}.{number % 256}", "port": 7000}
        return {"say": "hello", "node": node, "slots": len(self.ids[node]), **at, **facts}

    # what happens

    def goes_on(self, answers: Callable[[str, Any], None], until: type) -> None:
        """Until nobody has anything to say. seconds: until the last node has heard `until`."""
        begun_s = last_s = self.now_s
        while self._arriving:
            self.now_s = max(self.now_s, self._arriving[0][0])
            last_s = max(last_s, self._turn(answers, until))
        self.figures.seconds = last_s - begun_s

    def _turn(self, answers: Callable[[str, Any], None], until: type) -> float:
        """Of the hub's loop: it accepts some of those who have connected, and hears what has arrived."""
        writes, dials, queue = list[tuple[str, list[bytes]]](), list[tuple[str, Message]](), list[Any]()
        while self._arriving and self._arriving[0][0] <= self.now_s:
            at_s, number, node, what = heapq.heappop(self._arriving)
            if isinstance(what, list):
                writes.append((node, what))
            elif len(dials) < ACCEPTED_MAX:
                dials.append((node, what))
            else:
                queue.append((at_s, number, node, what))
        for one in queue:
            heapq.heappush(self._arriving, one)
        begun = time.process_time()
        for node, lines in writes:
            self._hears(node, b"".join(lines))
        self.hub.settle()
        took_s = time.process_time() - begun + self._hearing_s(writes)
        for node, hello in dials:
            took_s += self.costs.accepted
            self._hello_s[node] = self.now_s + took_s + ONE_WAY_S + self.costs.dialled
            self.says(node, hello, after_s=self._hello_s[node] - self.now_s)
        return self._turn_is_over(took_s, answers, until)

    def _hearing_s(self, writes: list[tuple[str, list[bytes]]]) -> float:
        """Each node's in one read, or as many as its bytes take."""
        sizes = Counter[str]()
        for node, lines in writes:
            sizes[node] += sum(map(len, lines))
        reads = sum(math.ceil(size / READ) for size in sizes.values())
        self.figures.reads += reads
        return self.costs.hearing_s(reads, len(writes), sum(len(lines) for _, lines in writes), sizes.total())

    def loses(self, nodes: list[str], answers: Callable[[str, Any], None]) -> None:
        """Their connections end."""
        begun = time.process_time()
        for node in nodes:
            del self.ids[node], self.hub._nodes[node], self.wires[node]
            self.hub.hub.loses(node, dead=True)
        self.hub._undecided = True
        self.hub.settle()
        self._turn_is_over(time.process_time() - begun, answers, NewView)

    def loses_hub(self) -> None:
        """With the first node. Every other one dials the next, and says hello with what it knows."""
        (gone, *_) = self.nodes
        del self.ids[gone]
        self._begin_hub(takes_over=True)
        self.hub.hub.expect(self.nodes)
        self.hub.hub.without(time.monotonic(), gone, departed=False)
        for node in self.nodes:
            for id in self.ids[node]:
                self.reports[node].note_said(parse(TO_HUB, {"say": "view_is_over", "worker": id, **self.lost}))
        begun = time.process_time()
        packed = self.lists.pack_report(self.reports[self.nodes[0]].document())
        self.figures.node_s = time.process_time() - begun
        shared = {name: packed[name] for name in ("view", "known")}  # which each node packs for itself
        for node in self.nodes:
            report = {**self.reports[node].document(), **shared}
            words = self.hello(node, starting=[], report=report, knows=self.lists.hashes())
            self.dials(node, words, self.figures.node_s)

    @property
    def lost(self) -> Message:
        return {"generation": self.hub.hub.generation, **LOST}

    def _hears(self, node: str, arrived: bytes) -> None:
        for message in self._heard_by_hub[node].feed(arrived):
            if message["say"] == "hello":
                self._heard_by_hub[node].longest = LONG_LINE_MAX
                self.hub.takes(node, parse(TO_HUB, message), self.wires[node])  # type: ignore[arg-type]
            else:
                self.hub.hear(node, message)

    def _turn_is_over(self, took_s: float, answers: Callable[[str, Any], None], until: type) -> float:
        """What the hub has said leaves, is read, and answered. When the last node heard `until`."""
        self.now_s += took_s
        self.figures.hub_s += took_s
        last_s = 0.0
        for node, wire in self.wires.items():
            for lines in wire.writes():
                size = sum(map(len, lines))
                self.now_s += (sent_s := self.costs.saying_s(len(lines), size))
                self.figures.hub_s += sent_s
                self.figures.lines += len(lines)
                self.figures.bytes += size
                self.figures.writes += 1
                at_s = self.network.arrives_s(self.now_s, node, size, to_hub=False)
                if (hello_s := self._hello_s.pop(node, None)) is not None:
                    self.figures.welcome_s = max(self.figures.welcome_s, at_s - hello_s)
                at_s += self.costs.hearing_s(math.ceil(size / READ), 1, len(lines), size)
                for line in lines:
                    said, read_s = self._reads(node, line)
                    at_s += read_s
                    if isinstance(said, until):
                        last_s = max(last_s, at_s)
                    now_s, self.now_s = self.now_s, at_s
                    answers(node, said)
                    self.now_s = now_s
        return last_s

    def _reads(self, node: str, line: bytes) -> tuple[Any, float]:
        """What was said, and what it takes a node to read it; what all are told is read once here."""
        to, text = line.split(b'"say":', 1)
        workers = json.loads(to.rstrip(b", ") + b"}")["to"]
        if text not in self._read:
            begun = time.process_time()
            (arrived,) = Lines(LONG_LINE_MAX).feed(line)
            del arrived["to"]
            message = self.lists.unpack(arrived)
            said = parse(TO_WORKER if workers else TO_AGENT, message)
            if workers:  # its agent passes it on
                Lines(LONG_LINE_MAX).feed(encode(message))
            self._read[text] = said, time.process_time() - begun
        said, read_s = self._read[text]
        for worker in workers or [None]:
            self.reports[node].note_ordered(worker, said)
        self.figures.node_s = max(self.figures.node_s, read_s)
        return said, read_s


def measure(workers: int, of_a_node: int, loss: float, board: int, costs: Costs, together: int) -> Iterator[Figures]:
    fleet = Fleet(workers, of_a_node, loss, costs, together)

    def begins(what: str) -> None:
        fleet.figures = Figures(workers, what)
        fleet.now_s += 10.0

    def leave_the_view(node: str, said: Any) -> None:
        if isinstance(said, Broken):
            fleet.of_node(node, "view_is_over", **fleet.lost)

    def nothing(node: str, said: Any) -> None:
        """Follows from it."""

    begins("nodes and workers come")
    for node in fleet.nodes:
        fleet.says(node, fleet.hello(node))
    fleet.of_all("started")
    fleet.goes_on(nothing, until=Roster)
    yield fleet.figures

    begins("the first view")
    fleet.of_all("ready", shares=workers, identity="one")
    fleet.goes_on(nothing, until=NewView)
    assert fleet.hub.hub.generation == 1
    yield fleet.figures

    if workers <= board:
        begins("the board for gloo")
        rank = 0
        for node, ids in fleet.ids.items():
            puts = list[Message]()
            for id in ids:
                rank += 1
                key, value = f"generation/1/gloo/0/{rank}", gloo_value(rank, workers)
                puts.append({"say": "put", "worker": id, "generation": 1, "key": key, "value": value})
            fleet.workers_say(node, puts)
        fleet.goes_on(nothing, until=object)
        yield fleet.figures

    begins("a worker is lost")
    node = fleet.nodes[-1]
    ended = {"step": 3, "code": None, "signal": "SIGKILL", "hung": False, "expected": False}
    fleet.says(node, {"say": "exited", "worker": fleet.ids[node].pop(), **ended})
    fleet.goes_on(leave_the_view, until=NewView)
    assert fleet.hub.hub.generation == 2
    yield fleet.figures

    begins("1 % of nodes are lost")
    fleet.loses(fleet.nodes[1 : 1 + max(1, len(fleet.nodes) // 100)], leave_the_view)
    fleet.goes_on(leave_the_view, until=NewView)
    assert fleet.hub.hub.generation == 3 or len(fleet.nodes) == 1
    yield fleet.figures

    if len(fleet.nodes) > 1:
        begins("the hub's host is lost")
        fleet.loses_hub()
        fleet.goes_on(nothing, until=NewView)
        assert fleet.hub.hub.generation == 4
        yield fleet.figures


def table(found: list[Figures]) -> Table:
    """A line for each cause, under one for each size: 80 columns wide."""
    shown = Table(title="From the cause to the last node", box=None, padding=(0, 1, 0, 0))
    for title in ("", "s", "hub\ns", "hub us\neach", "node\ns", "heard", "MB", "said", "MB"):
        shown.add_column(title, justify="right" if title else "left")
    size = None
    for one in found:
        if size != one.workers:
            size = one.workers
            shown.add_row(f"[bold]{size:,} workers[/]")
        times = [f"{one.seconds:.3f}", f"{one.hub_s:.3f}", f"{one.each_us:.0f}", f"{one.node_s:.3f}"]
        heard, said = [f"{one.heard}", f"{one.heard_bytes / 1e6:.1f}"], [f"{one.lines}", f"{one.bytes / 1e6:.1f}"]
        shown.add_row(one.what, *times, *heard, *said)
    return shown


def sizes_of_a_second(found: list[Figures]) -> Iterator[str]:
    """For each cause, how many workers one hub can have before it takes a second; beyond what was measured, in a
    straight line from the largest."""
    for what in dict.fromkeys(one.what for one in found):
        of_it = [one for one in found if one.what == what]
        within = [one for one in of_it if one.seconds <= 1.0]
        slower = [one for one in of_it if one.seconds > 1.0]
        if not within or of_it[-1].seconds <= 0:
            continue
        if slower:
            low, high = within[-1], slower[0]
            part = (1.0 - low.seconds) / (high.seconds - low.seconds)
            yield f"{what}: a second at {low.workers + part * (high.workers - low.workers):,.0f} workers"
        else:
            yield f"{what}: a second at some {of_it[-1].workers / of_it[-1].seconds:,.0f} workers"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=SIZES)
    parser.add_argument("--of-a-node", type=int, default=8)
    parser.add_argument("--loss", type=float, default=0.0, help="how many of the lines are lost; 0.001: one of 1,000")
    parser.add_argument("--board", type=int, default=1024, help="up to so many workers gloo's addresses are exchanged")
    parser.add_argument(
        "--together", type=int, default=TOGETHER, help="lines that a node's workers say at the same moment in a write"
    )
    parser.add_argument("--clear", action="store_true", help="a run without a secret: no TLS")
    parser.add_argument("--json", help="writes the figures there, too")
    options = parser.parse_args()
    found: list[Figures] = []
    with interruptible():
        costs = connection_costs.measure(None if options.clear else generated_secret())
        for workers in progress("sizes", options.workers):
            for figures in measure(workers, options.of_a_node, options.loss, options.board, costs, options.together):
                found.append(figures)  # one by one: interrupted, all that are done are shown
    Console().print(table(found))
    for line in sizes_of_a_second(found):
        print(line)
    if welcome_s := max((one.welcome_s for one in found), default=0.0):
        print(f"the longest wait for the next hub's first word: {welcome_s:.2f} s; a node waits for {WELCOME_S:g} s")
    if options.json:
        with open(options.json, "w") as file:
            json.dump([asdict(one) for one in found], file, indent=1)


if __name__ == "__main__":
    harness.run(main)
