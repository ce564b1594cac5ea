"""What a connection of the control plane costs the processor of either end: measured on this machine, over loopback.

    python -m tests.benchmarks.connection_costs

The hub's end and the nodes' are threads, each with a clock of its own processor time; both are what agents have
(LoopConnection, TLS by the run's secret). The model of large runs (scale.py) takes its figures from here.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from checkpoint.net.keepalive import keep_alive
from checkpoint.net.secret import generated_secret
from checkpoint.net.secured import client_side, prepare, server_side
from elastic.launch.net.event_loop import EventLoop, run_once
from elastic.launch.net.loop_connection import LoopConnection
from elastic.membership.messages.wire import LONG_LINE_MAX, Lines, Message, encode
from tests.benchmarks import harness
from tests.benchmarks.harness import interruptible, progress

CONNECTIONS, TRIPS, LONG_TRIPS = 60, 400, 8
LONG = 1 << 20
MESSAGE: Message = {"say": "view_is_over", "worker": "host-1234-abcdef", "generation": 7, "step": 1200, "lost": True}


@dataclass(frozen=True)
class End:
    """Seconds of the processor.

    connection  to accept or to dial, and to shake hands
    line  to hear or to say one, without making it or reading what it says
    byte  each of a long line, likewise
    """

    connection: float = 0.0
    line: float = 0.0
    byte: float = 0.0


@dataclass(frozen=True)
class Costs:
    hub: End = End()
    node: End = End()


def measure(secret: str | None) -> Costs:
    """secret: None, without TLS"""
    prepare(secret)
    long_one = {**MESSAGE, "why": "x" * LONG}
    _turn(secret, 1, MESSAGE, 1)  # imports
    connections = _turn(secret, CONNECTIONS, MESSAGE, 1)
    trips = _turn(secret, 1, MESSAGE, TRIPS)
    long_trips = _turn(secret, 1, long_one, LONG_TRIPS)
    ends = []
    for connection_s, trips_s, long_s in zip(connections, trips, long_trips, strict=True):
        line = (trips_s / TRIPS - _codec_s(MESSAGE, TRIPS)) / 2
        byte = (long_s / LONG_TRIPS - _codec_s(long_one, LONG_TRIPS)) / 2 / LONG
        ends.append(End(max(0.0, connection_s / CONNECTIONS - 2 * line), max(0.0, line), max(0.0, byte)))
    return Costs(*ends)


def _codec_s(message: Message, trips: int) -> float:
    begun = time.thread_time()
    for _ in range(trips):
        Lines(LONG_LINE_MAX).feed(encode(message))
    return (time.thread_time() - begun) / trips


def _turn(secret: str | None, connections: int, message: Message, trips: int) -> tuple[float, float]:
    """Processor time of the hub's end, and of the nodes'."""
    spent: list[float] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        hub = threading.Thread(target=_timed(lambda: _answer(server, secret, connections), spent))
        hub.start()
        nodes: list[float] = []
        _timed(lambda: _ask(server.getsockname(), secret, connections, message, trips), nodes)()
        hub.join()
    return spent[0], nodes[0]


def _timed(act: Callable[[], None], spent: list[float]) -> Callable[[], None]:
    def runs() -> None:
        begun = time.thread_time()
        act()
        spent.append(time.thread_time() - begun)

    return runs


def _ask(at: tuple[str, int], secret: str | None, connections: int, message: Message, trips: int) -> None:
    for _ in range(connections):
        with EventLoop() as loop, socket.create_connection(at) as connected:
            keep_alive(connected)
            heard: list[Message] = []
            node = LoopConnection(loop, connected, heard.append, lambda why: None, client_side(secret))
            node.takes_long_lines()
            for _ in range(trips):
                heard.clear()
                node.say(message)
                while not heard:
                    run_once(loop, None)
            node.close()


def _answer(server: socket.socket, secret: str | None, connections: int) -> None:
    """Says what it hears, until all have hung up."""
    for _ in range(connections):
        connected, _ = server.accept()
        keep_alive(connected)
        with EventLoop() as loop:
            ended: list[str | None] = []
            hub = LoopConnection(loop, connected, lambda said: hub.say(said), ended.append, server_side(secret))  # noqa: B023, PLW0108
            hub.takes_long_lines()
            while not ended:
                run_once(loop, None)


def main() -> None:
    with interruptible():
        for secured in progress("kinds", (False, True)):
            costs = measure(generated_secret() if secured else None)
            for name, end in asdict(costs).items():
                figures = f"connection {1e6 * end['connection']:.0f} us, line {1e6 * end['line']:.1f} us"
                print(f"{'TLS' if secured else 'clear':6}{name:5} {figures}, MB {1e9 * end['byte']:.1f} ms")


if __name__ == "__main__":
    harness.run(main)
