"""What does the hub of a large run compute and send? The real hub, and up to 16,384 workers that only talk to it.

    python -m tests.benchmarks.scale [--workers 16 256 1024 4096 16384] [--of-a-node 8] [--turn 64] [--json FILE]

One process, no torch, no network: nodes' messages are heard in turns of at most so many, as a loop finds them when it
comes back from what it did before; what the hub says is encoded and counted as it would leave the hub's machine (one
line to a node, whichever of its workers it is for). For each size, of

    the first view     from the last worker's `ready` on: all say `ready`, and put gloo's address on the board
    one lost           a worker's death, and all others' word that they left the view
    1 % lost           the same, together
    the hub lost       every node says hello to the next hub, with its report

it prints messages heard, lines and megabytes said, the hub's time (parsing and encoding included), that time for each
worker, and what the megabytes take at 10 Gbit/s. A step that grows faster than the workers shows in the time for each.
The board is gloo's: its full mesh needs everyone's address everywhere, and connects each rank with each.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from elastic.launch.hub_here import HubHere
from elastic.membership.hub import Hub
from elastic.membership.known_lists import KnownLists
from elastic.membership.messages import TO_AGENT, TO_HUB, TO_WORKER, parse
from elastic.membership.node_report import NodeReport
from elastic.membership.wire import Message, encode
from tests.benchmarks.underway import interruptible

SIZES = (16, 256, 1024, 4096, 16384)
BYTES_PER_S = 10e9 / 8
ADDRESS = "QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFB"  # as long as gloo's


@dataclass
class Counted:
    """What was said to one node: lines wait here to be read."""

    name: str
    total: Figures
    lines: deque[bytes] = field(default_factory=deque)

    def say(self, message: Message) -> None:
        self.send(encode(message))

    def send(self, data: bytes) -> None:
        self.total.lines += 1
        self.total.bytes += len(data)
        self.lines.append(data)

    def close(self) -> None:
        """Nothing is open."""


@dataclass
class Figures:
    workers: int
    what: str
    heard: int = 0
    heard_bytes: int = 0
    lines: int = 0
    bytes: int = 0
    seconds: float = 0.0

    @property
    def each_us(self) -> float:
        return 1e6 * self.seconds / self.workers

    @property
    def wire_s(self) -> float:
        return self.bytes / BYTES_PER_S


class Fleet:
    """Nodes without processes, and the hub that they talk to."""

    def __init__(self, workers: int, of_a_node: int, turn: int) -> None:
        self.count, self.turn = workers, turn
        self.nodes = [f"host{number:05d}-4711-ab12" for number in range(max(1, workers // of_a_node))]
        self.of_a_node = workers // len(self.nodes)
        self.reports = {node: NodeReport() for node in self.nodes}
        self.ids = {node: [f"{node[:-5]}-{rank}-{rank:06x}" for rank in range(self.of_a_node)] for node in self.nodes}
        self.figures = Figures(workers, "")
        self.connections: dict[str, Counted] = {}
        self.lists = KnownLists()  # of all nodes: each knows what all have been told, and room for one is here
        self.here = self._hub(takes_over=False)

    def hellos(self) -> Iterator[tuple[str, Message]]:
        for number, node in enumerate(self.nodes):
            at = {"address": f"10.0.{number // 256}.{number % 256}", "port": 7000}
            yield node, {"say": "hello", "node": node, "places": self.of_a_node, **at}

    def of_all(self, say: str, gone: Iterable[str] = (), **facts: Any) -> Iterator[tuple[str, Message]]:
        """Each worker says that."""
        without = set(gone)
        for node, ids in self.ids.items():
            for rank, id in enumerate(ids):
                if id not in without:
                    yield node, {"say": say, "worker": id, **(facts if say != "started" else {"local_rank": rank})}

    @contextmanager
    def measured(self, what: str) -> Iterator[Figures]:
        figures = self.figures = Figures(self.count, what)
        for connection in self.connections.values():
            connection.total = figures
        yield figures

    def hears(self, words: Iterable[tuple[str, Message]]) -> None:
        """As the loop does: what is there is heard, then what follows is said."""
        lines = [(node, encode(message)) for node, message in words]
        for node, message in ((node, json.loads(line)) for node, line in lines):
            self.reports[node].told(parse(TO_HUB, message))
        for start in range(0, len(lines), self.turn):
            begun_s = time.process_time()
            for node, line in lines[start : start + self.turn]:
                self._hears(node, json.loads(line))
            self.here.settle()
            self.figures.seconds += time.process_time() - begun_s
        self.figures.heard += len(lines)
        self.figures.heard_bytes += sum(len(line) for _, line in lines)
        self._deliver()

    def moves(self) -> None:
        """The hub is lost: another one hears of the run from every node."""
        self.here = self._hub(takes_over=True)
        self.here.hub.expect(self.nodes)
        knows = {"starting": [], "knows": self.lists.hashes()}
        reports = {node: self.lists.pack_report(report.document()) for node, report in self.reports.items()}
        self.hears((node, {**hello, **knows, "report": reports[node]}) for node, hello in self.hellos())

    def _hub(self, *, takes_over: bool) -> HubHere:
        count = len(self.nodes)
        hub = Hub(nodes_min=1, nodes_max=count, nodes_first=count, takes_over=takes_over, beacon={"nonce": "0" * 32})
        self.connections = {node: Counted(node, self.figures) for node in self.nodes}
        return HubHere(hub, "no node's", None, self.lists, deliver=lambda *_: None, say=print)  # type: ignore[arg-type]

    def _hears(self, node: str, message: Message) -> None:
        if message["say"] == "hello":
            self.here.takes(node, parse(TO_HUB, message), message, self.connections[node])  # type: ignore[arg-type]
        else:
            self.here.told(node, message)

    def _deliver(self) -> None:
        read: dict[bytes, Any] = {}  # what all nodes are told is read once, to spare this process's time
        for node, connection in self.connections.items():
            while connection.lines:
                to, said = connection.lines.popleft().split(b'"say":', 1)
                workers = json.loads(to.rstrip(b", ") + b"}")["to"]
                if said not in read:
                    kinds = TO_WORKER if workers else TO_AGENT
                    read[said] = parse(kinds, self.lists.unpack(json.loads(b'{"say":' + said)))
                for worker in workers or [None]:
                    self.reports[node].ordered(worker, read[said])


def measure(workers: int, of_a_node: int, turn: int) -> Iterator[Figures]:
    fleet = Fleet(workers, of_a_node, turn)
    with fleet.measured("nodes and workers come"):
        fleet.hears(fleet.hellos())
        fleet.hears(fleet.of_all("started"))
    yield fleet.figures
    with fleet.measured("the first view"):
        fleet.hears(fleet.of_all("ready", shares=workers, identity="one"))
    assert fleet.here.hub.generation == 1
    yield fleet.figures
    with fleet.measured("the board for gloo"):
        puts = fleet.of_all("put", generation=1, value=ADDRESS)
        fleet.hears((node, {**put, "key": f"gloo/{put['worker']}"}) for node, put in puts)
    yield fleet.figures
    alive = [(node, id) for node, ids in fleet.ids.items() for id in ids]
    for what, lost in (("one lost", alive[-1:]), ("1 % lost", alive[: max(2, workers // 100)])):
        generation = fleet.here.hub.generation
        with fleet.measured(what):
            exits = {"step": 3, "code": None, "signal": "SIGKILL", "hung": False, "expected": False}
            fleet.hears((node, {"say": "exited", "worker": id, **exits}) for node, id in lost)
            for node, id in lost:
                fleet.ids[node].remove(id)
            facts: dict[str, Any] = {"step": 3, "at": "boundary", "lost": True, "whole": True, "torn": False}
            fleet.hears(fleet.of_all("view_is_over", generation=generation, **facts))
        assert fleet.here.hub.generation == generation + 1
        yield fleet.figures
    with fleet.measured("the hub lost"):
        fleet.moves()
    yield fleet.figures


def table(found: list[Figures]) -> Table:
    titles = ("workers", "what", "heard", "MB", "lines", "MB", "hub s", "us each", "wire s")
    shown = Table(*titles, title="The hub's part")
    for one in found:
        said = [f"{one.heard}", f"{one.heard_bytes / 1e6:.1f}", f"{one.lines}", f"{one.bytes / 1e6:.1f}"]
        shown.add_row(
            f"{one.workers}", one.what, *said, f"{one.seconds:.3f}", f"{one.each_us:.0f}", f"{one.wire_s:.3f}"
        )
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=SIZES)
    parser.add_argument("--of-a-node", type=int, default=8)
    parser.add_argument("--turn", type=int, default=64, help="messages that are heard before what follows is said")
    parser.add_argument("--json", help="writes the figures there, too")
    options = parser.parse_args()
    found: list[Figures] = []
    with interruptible():
        for workers in options.workers:
            for figures in measure(workers, options.of_a_node, options.turn):
                found.append(figures)
                print(f"{figures.workers} workers, {figures.what}: {figures.seconds:.3f} s", flush=True)
    Console(width=100).print(table(found))
    if options.json:
        with open(options.json, "w") as file:
            json.dump([asdict(one) for one in found], file, indent=1)


if __name__ == "__main__":
    main()
