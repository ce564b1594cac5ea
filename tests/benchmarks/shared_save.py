"""What the last save of a run takes that loses all of its nodes: uploaded by one of them, and by all.

    python -m tests.benchmarks.shared_save [--mb 64] [--mb-per-s 8] [--nodes 2 4] [--rounds 3]

Nodes are processes of this machine, each with a way of its own to one S3 server (moto's): a relay that takes so many
bytes per second and no more, as a node's network does. The state lies in 16 objects, whatever its size.

save     from the call with blocking=False to the commit, on the node that commits; medians, and the extremes
uploads  the least that these bytes take by so many such ways
ratio    of the save by one node to that by all

All must hold the same bytes, helpers must be connected before a save begins, and each save is verified at the end. What
the server itself takes, on this machine's processors, is in both.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from elastic_checkpoint import Checkpointer, Helper
from tests.benchmarks import harness
from tests.benchmarks.harness import interruptible, progress
from tests.kit.ranks import returned, run_ranks
from tests.kit.relay import Relay
from tests.kit.s3 import S3Server, s3_server

OBJECTS = 16
PATIENCE_S = 600.0


class Way(Relay):
    """From one node to the server: so many bytes per second, of all connections together. down: the other way"""

    def __init__(self, to: int, bytes_per_s: float, *, down: bool = False) -> None:
        self._bytes_per_s, self._down = bytes_per_s, down
        self._free_s = 0.0
        self._lock = threading.Lock()
        super().__init__(to)

    def passes(self, data: bytes, *, up: bool) -> None:
        if up != self._down:
            self._wait(len(data))

    def _wait(self, count: int) -> None:
        with self._lock:
            now_s = time.monotonic()
            self._free_s = max(self._free_s, now_s) + count / self._bytes_per_s
            wait_s = self._free_s - now_s
        time.sleep(max(0.0, wait_s))


@contextlib.contextmanager
def ways(server: S3Server, count: int, bytes_per_s: float) -> Iterator[list[dict[str, Any]]]:
    """Storage options for each node."""
    port = int(server.endpoint_url.rpartition(":")[2])
    with ExitStack() as stack:
        made = [Way(port, bytes_per_s) for _ in range(count)]
        for one in made:
            stack.callback(one.close)
        yield [{**server.options, "endpoint_url": f"http://127.0.0.1:{one.port}"} for one in made]


def state(nbytes: int) -> dict[str, Any]:
    draw = torch.Generator().manual_seed(1)
    return {"w": [torch.randn(nbytes // OBJECTS // 4, generator=draw) for _ in range(OBJECTS)]}


def until(path: Path) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not path.exists():
        if time.monotonic() > deadline_s:
            raise TimeoutError(path.name)
        time.sleep(0.01)


def node(rank: int, size: int, url: str, options: list[dict[str, Any]], folder: str, nbytes: int, rounds: int) -> Any:
    """Rank 0: seconds of each save, and the bytes that others uploaded of each."""
    held, here = state(nbytes), Path(folder)
    if rank:
        until(here / "invitation")
        invitation = json.loads((here / "invitation").read_text())
        helper = Helper(url, options[rank], invitation, rank, held, log=print)
        until(here / "done")
        helper.close(PATIENCE_S)
        return None
    found = []
    with Checkpointer(url, storage_options=options[0], shard_bytes=nbytes // OBJECTS) as runs:
        runs.warm(held)
        if size > 1:
            (here / "writing").write_text(json.dumps(runs.invite(range(1, size))))
            os.replace(here / "writing", here / "invitation")
        for number in range(rounds + 1):  # in the first one helpers connect
            begun_s = time.monotonic()
            saving = runs.save(number, held, blocking=False)
            saving.wait(PATIENCE_S)
            assert saving.ended_s is not None
            found.append((saving.ended_s - begun_s, sum(saving.helped.values())))
        (here / "done").touch()
        assert all(one.ok for one in runs.verify())
    return found[1:]


def measured(server: S3Server, nodes: int, bytes_per_s: float, nbytes: int, rounds: int) -> list[tuple[float, int]]:
    with tempfile.TemporaryDirectory() as folder, ways(server, nodes, bytes_per_s) as options:
        url = f"s3://runs/{Path(folder).name}"
        answers = run_ranks(node, nodes, url, options, folder, nbytes, rounds, within_s=2 * PATIENCE_S)
        found: list[tuple[float, int]] = returned(answers)[0]
        return found


def show(found: dict[int, list[tuple[float, int]]], bytes_per_s: float, nbytes: int, console: Console) -> None:
    title = f"{nbytes / 2**20:,.0f} MiB, {bytes_per_s / 1e6:g} MB/s from each node"
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in ("nodes", "uploads", "save", "by others", "ratio"):
        table.add_column(column, justify="right")
    alone_s = statistics.median(seconds for seconds, _ in found[1]) if found.get(1) else None
    for nodes, saves in found.items():
        seconds = [one for one, _ in saves]
        median_s = statistics.median(seconds)
        table.add_row(
            str(nodes),
            f"{nbytes / bytes_per_s / nodes:.1f} s",
            f"{median_s:.1f} s ({min(seconds):.1f} … {max(seconds):.1f})",
            f"{statistics.median(helped for _, helped in saves) / nbytes:.0%}",
            f"{alone_s / median_s:.2f}" if alone_s is not None else "",
        )
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="The last save of a run, uploaded by one node and by all.")
    parser.add_argument("--mb", type=int, default=64)
    parser.add_argument("--mb-per-s", type=float, default=8.0)
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    nbytes, bytes_per_s = options.mb * 2**20, options.mb_per_s * 1e6
    found: dict[int, list[tuple[float, int]]] = {}
    with s3_server() as server, interruptible():
        server.new_bucket("runs")
        for nodes in progress("nodes", [1, *options.nodes]):
            found[nodes] = measured(server, nodes, bytes_per_s, nbytes, options.rounds)
    show(found, bytes_per_s, nbytes, Console())
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors, torch {torch.__version__}")


if __name__ == "__main__":
    harness.run(main)
