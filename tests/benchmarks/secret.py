"""What does the run's secret cost the control plane? Agent and hub, over loopback TCP, with and without, in turns.

    python -m tests.benchmarks.secret [--quick]

The round trip of a small message through both ends' Connection, as an agent and the hub have it, and the time from
connecting until the first message is answered (with a secret: the handshake). Ratios are of neighbouring turns: the
median, and quartiles. Steps do not come here: gradients travel by gloo, and in a quiet run each node says `ping` 2.5
times a second, and hears it as often.
"""

from __future__ import annotations

import argparse
import socket
import statistics
import threading
import time
from collections.abc import Sequence

from elastic.launch.hub.server import PING_S
from elastic.membership.messages.wire import Message
from elastic_checkpoint.net.connection import Connection, keep_alive
from elastic_checkpoint.net.event_loop import EventLoop, run_once
from elastic_checkpoint.net.secret import generated_secret
from elastic_checkpoint.net.transport import client_side, server_side
from tests.benchmarks import harness
from tests.benchmarks.harness import interruptible, progress

TRIPS, TURNS = 400, 31
TURNS_QUICK = 9
MESSAGE = {"say": "view_is_over", "worker": "host-1234-abcdef", "generation": 7, "step": 1200, "lost": True}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--quick", action="store_true")
    turns = TURNS_QUICK if options.parse_args().quick else TURNS
    secret = generated_secret()
    trips: dict[bool, list[float]] = {False: [], True: []}
    firsts: dict[bool, list[float]] = {False: [], True: []}
    with interruptible():
        _turn(secret)  # imports, and the certificate
        for _ in progress("turns", range(turns)):
            for secured in (False, True):
                first_s, trip_s = _turn(secret if secured else None)
                firsts[secured].append(first_s)
                trips[secured].append(trip_s)
    if trips[True]:
        _show("round trip of a message", trips[False], trips[True])
        _show("from connecting to the first answer", firsts[False], firsts[True])
        extra_s = statistics.median(trips[True]) - statistics.median(trips[False])
        print(f"in a quiet run: {extra_s / PING_S * 1e6:.0f} us a second for each node, and nothing for a step")


def _turn(secret: str | None) -> tuple[float, float]:
    """Seconds to the first answer, and of a later round trip."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        hub = threading.Thread(target=_answer, args=(server, secret))
        hub.start()
        begun = time.perf_counter()
        with EventLoop() as loop, socket.create_connection(server.getsockname()) as connected:
            keep_alive(connected)
            heard: list[Message] = []
            agent = Connection(loop, connected, heard.append, lambda why: None, client_side(secret))
            first_s = _round_trips(loop, agent, heard, 1, begun)
            trip_s = _round_trips(loop, agent, heard, TRIPS, time.perf_counter()) / TRIPS
            agent.close()
        hub.join()
    return first_s, trip_s


def _round_trips(loop: EventLoop, agent: Connection, heard: list[Message], count: int, begun: float) -> float:
    for _ in range(count):
        heard.clear()
        agent.say(MESSAGE)
        while not heard:
            run_once(loop, None)
    return time.perf_counter() - begun


def _answer(server: socket.socket, secret: str | None) -> None:
    """Says what it hears, until the other end hangs up."""
    with EventLoop() as loop:
        connected, _ = server.accept()
        keep_alive(connected)
        ended: list[str | None] = []
        hub = Connection(loop, connected, lambda said: hub.say(said), ended.append, server_side(secret))  # noqa: PLW0108
        while not ended:
            run_once(loop, None)


def _show(what: str, without: Sequence[float], secured: Sequence[float]) -> None:
    ratios = [one / other for other, one in zip(without, secured, strict=False)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    without_us, secured_us = (statistics.median(all_s) * 1e6 for all_s in (without, secured))
    ratio = f"ratio {middle:.2f} ({low:.2f} ... {high:.2f})"
    print(f"{what:36} {without_us:6.0f} us, with a secret {secured_us:6.0f} us; {ratio}")


if __name__ == "__main__":
    harness.run(main)
