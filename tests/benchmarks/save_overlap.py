"""What a save costs training: all copied at once, and copied while the next step computes. In copies of its bytes.

    python -m tests.benchmarks.save_overlap [--mb 256] [--tensors 300] [--rounds 15] [--step 4] [--folder /tmp]

memcpy   one copy of as many bytes between arrays that were both touched before; of one thread
step     products of matrices that take as long as --step copies, on one core or on two; an update, which the copy must
         not see, ends it
call     the time in `save`
lost     how much longer it is from the call to the update than a step alone: the call, what the copy took from the
         step, and what was still to be copied at its end

The process that writes is stopped meanwhile: what it takes is the same both ways (tests/benchmarks/checkpoints.py has
it). A step alone and with each way take turns, and each ratio is of medians; the quartiles, in brackets, are those of
single rounds, and show what others' work on the machine does: its load stands below the table.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from rich import box
from rich.console import Console
from rich.table import Table

from elastic_checkpoint import Checkpointer
from elastic_checkpoint.save.writer import WRITER_MODULE
from tests.benchmarks import harness
from tests.benchmarks.checkpoints import build
from tests.benchmarks.harness import interruptible, progress

WAYS = {"at once": False, "while the step computes": True}
CORES = (1, 2)
PATIENCE_S = 600.0


class Step:
    """So many products, on so many cores."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._a, self._b = torch.randn(384, 384), torch.randn(384, 384)
        self._products = 1

    def lasts(self, seconds: float) -> None:
        self._products = 100
        self._products = max(1, round(100 * seconds / min(self.seconds() for _ in range(5))))

    def seconds(self) -> float:
        others = torch.get_num_threads()
        torch.set_num_threads(self._threads)
        try:
            begun_s = time.perf_counter()
            for _ in range(self._products):
                torch.mm(self._a, self._b)
            return time.perf_counter() - begun_s
        finally:
            torch.set_num_threads(others)


class Bench:
    """seconds: by (what, cores)"""

    def __init__(self, state: dict[str, Any], runs: Checkpointer) -> None:
        self.state = state
        self.bytes = sum(tensor.nbytes for tensor in state["model"].values())
        self.seconds: dict[tuple[str, int], list[float]] = defaultdict(list)
        self._runs = runs
        self._source = np.ones(self.bytes, np.uint8)
        self._target = np.ones(self.bytes, np.uint8)
        self._number = 0
        self.save("at once", lambda: None)  # makes the arena
        [self._writer] = [one for one in psutil.Process().children() if WRITER_MODULE in one.cmdline()]

    def copy_s(self) -> float:
        begun_s = time.perf_counter()
        np.copyto(self._target, self._source)
        return time.perf_counter() - begun_s

    def save(self, way: str, step: Callable[[], object]) -> tuple[float, float]:
        """Seconds in the call, and until the update."""
        self._number += 1
        steady = list(self.state["model"].values()) if WAYS[way] else []
        begun_s = time.perf_counter()
        saving = self._runs.save(self._number, self.state, blocking=False, steady=steady)
        called_s = time.perf_counter()
        step()
        saving.staged()
        ended_s = time.perf_counter()
        return called_s - begun_s, ended_s - begun_s

    def round(self, cores: int, step: Step) -> None:
        self.seconds["memcpy", cores].append(self.copy_s())
        self.seconds["alone", cores].append(step.seconds())
        for way in WAYS:
            self._writer.suspend()
            try:
                call_s, all_s = self.save(way, step.seconds)
            finally:
                self._writer.resume()
            self._runs.wait()
            self.seconds[f"{way}, call", cores].append(call_s)
            self.seconds[way, cores].append(all_s)


def run(bench: Bench, rounds: int, step: float) -> None:
    steps = {cores: Step(cores) for cores in CORES}
    copy_s = min(bench.copy_s() for _ in range(5))
    for one in steps.values():
        one.lasts(step * copy_s)
    with interruptible():
        for _ in progress("rounds", range(rounds)):
            for cores, one in steps.items():
                bench.round(cores, one)


def show(bench: Bench, console: Console) -> None:
    median = {key: statistics.median(values) for key, values in bench.seconds.items()}
    copy_ms = min(values for (what, _), values in median.items() if what == "memcpy") * 1000
    title = f"{bench.bytes / 2**20:,.0f} MiB, a memcpy {copy_ms:,.0f} ms; training lost per save, in memcpys"
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))  # 80 columns
    for column in ("busy cores", "copied", "call", "lost"):
        table.add_column(column, justify="right" if column in ("call", "lost") else "left")
    for cores in CORES:
        copies, alone = bench.seconds["memcpy", cores], bench.seconds["alone", cores]
        for way in WAYS:
            if not (every := bench.seconds[way, cores]):
                continue
            copy_s = median["memcpy", cores]
            lost = (median[way, cores] - median["alone", cores]) / copy_s
            single = [(one - without) / copy for one, without, copy in zip(every, alone, copies, strict=False)]
            spread = statistics.quantiles(single, n=4) if len(single) > 1 else [lost] * 3
            call = median[f"{way}, call", cores] / copy_s
            table.add_row(str(cores), way, f"{call:.2f}", f"{lost:.2f} ({spread[0]:.2f} … {spread[2]:.2f})")
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="What a save costs training, copied at once or beside the next step.")
    parser.add_argument("--mb", type=int, default=256)
    parser.add_argument("--tensors", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--step", type=float, default=4.0, help="how long a step is, in copies of the state")
    parser.add_argument("--folder", type=Path, help="where the checkpoints go for the while; default: a temporary one")
    asked = parser.parse_args(arguments)
    load = [os.getloadavg()[0]]
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder, Checkpointer(folder, keep=2) as runs:
        bench = Bench(build(asked.mb, asked.tensors), runs)
        run(bench, asked.rounds, asked.step)
    load.append(os.getloadavg()[0])
    console = Console()
    show(bench, console)
    console.print(f"load of the machine {load[0]:.1f} before, {load[1]:.1f} after; {os.cpu_count()} processors")


if __name__ == "__main__":
    harness.run(main)
