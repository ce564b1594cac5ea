"""What a connection of the control plane costs the processor of either end: measured on this machine, over loopback.

    python -m tests.benchmarks.connection_costs

A connection's two ends are threads, each with a clock of its own processor time. What is said over one, and what lies
there is heard, in one thread by turns. All is what agents have (Connection, TLS by the run's secret). The model of
large runs (scale.py) takes its figures from here.
"""

from __future__ import annotations

import socket
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from elastic.membership.messages.wire import LONG_LINE_MAX, Lines, Message, encode
from elastic_checkpoint.net.connection import Connection, keep_alive
from elastic_checkpoint.net.event_loop import EventLoop, run_once
from elastic_checkpoint.net.secret import generated_secret
from elastic_checkpoint.net.transport import client_side, prepare, server_side
from tests.benchmarks import harness
from tests.benchmarks.harness import interruptible, progress

CONNECTIONS, TRIPS, LONG_TRIPS = 60, 400, 8
TOGETHER = 8
LONG = 1 << 20
MESSAGE: Message = {"say": "view_is_over", "worker": "host-1234-abcdef", "generation": 7, "step": 1200, "lost": True}


@dataclass(frozen=True)
class Costs:
    """Seconds of the processor. What it takes to make a line, or to read what it says, is in none.

    accepted, dialled  a connection, with its handshake
    write     what is said in one turn, to one who hears: a record, a system call
    said      each line of it; and a byte of a long one
    read      to hear what lies there, of one connection: a turn, a system call
    record    each of it, beyond one write of as many lines
    heard     each line of it; and a byte of a long one
    """

    accepted: float = 0.0
    dialled: float = 0.0
    write: float = 0.0
    said: float = 0.0
    said_byte: float = 0.0
    read: float = 0.0
    record: float = 0.0
    heard: float = 0.0
    heard_byte: float = 0.0

    def saying_s(self, lines: int, size: int) -> float:
        """In one write."""
        return self.write + lines * self.said + size * self.said_byte

    def hearing_s(self, reads: int, records: int, lines: int, size: int) -> float:
        return reads * self.read + records * self.record + lines * self.heard + size * self.heard_byte


def measure(secret: str | None) -> Costs:
    """secret: None, without TLS"""
    prepare(secret)
    _connect(secret)  # imports
    connections = _connect(secret)
    line = encode(MESSAGE)
    one_said, one_heard = _talk(secret, line, TRIPS)
    lines_said, lines_heard = _talk(secret, line, TRIPS, lines=TOGETHER)
    _, records_heard = _talk(secret, line, TRIPS, writes=TOGETHER)
    long_said, long_heard = _talk(secret, encode({**MESSAGE, "why": "x" * LONG}), LONG_TRIPS)
    said = max(0.0, (lines_said - one_said) / (TOGETHER - 1))
    heard = max(0.0, (lines_heard - one_heard) / (TOGETHER - 1))
    record = max(0.0, (records_heard - lines_heard) / (TOGETHER - 1))
    accepted, dialled = (max(0.0, spent_s / CONNECTIONS - one_said - one_heard) for spent_s in connections)
    return Costs(
        accepted=accepted,
        dialled=dialled,
        write=max(0.0, one_said - said),
        said=said,
        said_byte=max(0.0, long_said - one_said) / LONG,
        read=max(0.0, one_heard - heard - record),
        record=record,
        heard=heard,
        heard_byte=max(0.0, long_heard - one_heard) / LONG,
    )


def _talk(secret: str | None, line: bytes, trips: int, *, writes: int = 1, lines: int = 1) -> tuple[float, float]:
    """Processor time to say so many lines in each of so many writes, and to hear them all, once they lie there. Of
    medians: what else runs on the machine takes from some."""
    with socket.create_server(("127.0.0.1", 0)) as server, EventLoop() as nodes, EventLoop() as hubs:
        dialled, heard = socket.create_connection(server.getsockname()), list[Message]()
        accepted, _ = server.accept()
        keep_alive(dialled)
        keep_alive(accepted)
        node = Connection(nodes, dialled, heard.append, lambda why: None, client_side(secret))
        hub = Connection(hubs, accepted, heard.append, lambda why: None, server_side(secret))
        hub.takes_long_lines(LONG_LINE_MAX)

        def says() -> None:
            for _ in range(writes):
                for _ in range(lines):
                    node.send(line)
                nodes.end_turn()

        def trip() -> tuple[float, float]:
            heard.clear()
            said_s, heard_s = _spent_s(says), 0.0
            while len(heard) < writes * lines:
                heard_s += _spent_s(lambda: run_once(hubs, 0.0))
                if len(heard) < writes * lines:  # a long line, of which the kernel takes a part; or they shake hands
                    said_s += _spent_s(lambda: run_once(nodes, 0.0))
            return said_s, heard_s

        trip()
        said, found = zip(*(trip() for _ in range(trips)), strict=True)
        node.close()
        hub.close()
    arrived = line * (writes * lines)
    read = [_spent_s(lambda: Lines(LONG_LINE_MAX).feed(arrived)) for _ in range(trips)]
    return statistics.median(said), statistics.median(found) - statistics.median(read)


def _spent_s(act: Callable[[], object]) -> float:
    begun_s = time.thread_time()
    act()
    return time.thread_time() - begun_s


def _connect(secret: str | None) -> tuple[float, float]:
    """Processor time to accept connections and to dial them, each for a line that comes back."""
    accepted: list[float] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        hub = threading.Thread(target=lambda: accepted.append(_spent_s(lambda: _answer(server, secret))))
        hub.start()
        dialled_s = _spent_s(lambda: _ask(server.getsockname(), secret))
        hub.join()
    return accepted[0], dialled_s


def _ask(at: tuple[str, int], secret: str | None) -> None:
    for _ in range(CONNECTIONS):
        with EventLoop() as loop, socket.create_connection(at) as connected:
            keep_alive(connected)
            heard: list[Message] = []
            node = Connection(loop, connected, heard.append, lambda why: None, client_side(secret))
            node.say(MESSAGE)
            while not heard:
                run_once(loop, None)
            node.close()


def _answer(server: socket.socket, secret: str | None) -> None:
    """Says what it hears, until all have hung up."""
    for _ in range(CONNECTIONS):
        connected, _ = server.accept()
        keep_alive(connected)
        with EventLoop() as loop:
            ended: list[str | None] = []
            hub = Connection(loop, connected, lambda said: hub.say(said), ended.append, server_side(secret))  # noqa: B023, PLW0108
            while not ended:
                run_once(loop, None)


def main() -> None:
    with interruptible():
        for secured in progress("kinds", (False, True)):
            costs = measure(generated_secret() if secured else None)
            print("TLS" if secured else "clear")
            for name, seconds in asdict(costs).items():
                a_byte = name.endswith("_byte")
                figure = f"{1e9 * seconds:.1f} ms, each MB" if a_byte else f"{1e6 * seconds:.1f} us"
                print(f"    {name.removesuffix('_byte'):9} {figure}")


if __name__ == "__main__":
    harness.run(main)
