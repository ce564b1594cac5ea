"""What does a save cost training, and a load? Ratios from one run, beside torch.save and torch.distributed.checkpoint.

    python -m tests.benchmarks.checkpoints [--mb 1024] [--tensors 1200] [--rounds 5] [--folder /tmp] [--json FILE]

stall     time in the call, plus the training time that is lost until the save is durable: what a loop of matrix
          products takes meanwhile beyond what it takes alone. "call" is the first part only.
commit    from the beginning of the call until the checkpoint is durable
memcpy    one copy of as many bytes between two arrays that were both touched before; of one thread
raw write the same bytes into files of a shard's size, each fsynced; raw read: of those files, into warm memory

The ways take turns, and each ratio is of medians; files come from the page cache when they are read. A machine that
others use shows it: the load before and after stands below the table.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import shutil
import statistics
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from rich.console import Console
from rich.table import Table
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

from checkpoint import Checkpointer, digest
from checkpoint.shards import SHARD_BYTES

SMALL_FLOATS = 1024  # every other tensor is a bias
PATIENCE_S = 600.0

Figures = dict[str, list[float]]


def build(mb: int, tensors: int) -> dict[str, Any]:
    """A state of `mb` MiB in so many tensors, half of them small."""
    large = (mb * 2**18 - tensors // 2 * SMALL_FLOATS) // (tensors - tensors // 2)
    sizes = [SMALL_FLOATS if n % 2 else large for n in range(tensors)]
    return {"model": {f"layer{n}": torch.randn(size) for n, size in enumerate(sizes)}, "epoch": 3}


class Training:
    """A loop that would rather go on: what it loses while something else runs is part of what that costs."""

    def __init__(self) -> None:
        self._a, self._b = torch.randn(256, 256), torch.randn(256, 256)
        self._step_s = 0.0

    def alone(self) -> None:
        """Measures a step with nothing beside it."""
        begun_s, steps = time.perf_counter(), 0
        while time.perf_counter() - begun_s < 0.3:
            self._step()
            steps += 1
        self._step_s = (time.perf_counter() - begun_s) / steps

    def lost_s(self, done: Callable[[], bool]) -> float:
        """Trains until it is done; returns how much longer the steps took than alone."""
        begun_s, steps = time.perf_counter(), 0
        while not done():
            self._step()
            steps += 1
        return max(0.0, time.perf_counter() - begun_s - steps * self._step_s)

    def _step(self) -> None:
        torch.mm(self._a, self._b)


@contextlib.contextmanager
def timed(into: list[float]) -> Iterator[None]:
    begun_s = time.perf_counter()
    yield
    into.append(time.perf_counter() - begun_s)


class Bench:
    """All ways on one state, one after another."""

    def __init__(self, state: dict[str, Any], folder: Path) -> None:
        self.state = state
        self.folder = folder
        self.bytes = sum(tensor.nbytes for tensor in state["model"].values())
        self.training = Training()
        self.seconds: Figures = defaultdict(list)
        self.absent: dict[str, str] = {}
        self._source = np.ones(self.bytes, np.uint8)
        self._target = np.ones(self.bytes, np.uint8)
        self._stager: DefaultStager | None = None

    def memcpy(self) -> None:
        with timed(self.seconds["memcpy"]):
            np.copyto(self._target, self._source)

    def raw_write(self) -> None:
        with self._emptied("raw") as folder:
            folder.mkdir()
            with timed(self.seconds["raw write"]):
                for start in range(0, self.bytes, SHARD_BYTES):
                    with open(folder / str(start), "wb", buffering=0) as file:
                        rest = self._source.data[start : start + SHARD_BYTES]
                        while rest:
                            rest = rest[file.write(rest) :]
                        os.fsync(file.fileno())
            with timed(self.seconds["raw read"]):
                for start in range(0, self.bytes, SHARD_BYTES):
                    with open(folder / str(start), "rb", buffering=0) as file:
                        file.readinto(self._target.data[start : start + SHARD_BYTES])

    def ours(self, runs: Checkpointer, step: int) -> None:
        self.training.alone()
        begun_s = time.perf_counter()
        saving = runs.save(step, self.state, blocking=False)
        call_s = time.perf_counter() - begun_s
        self._beside("checkpoint", begun_s, call_s, lambda: saving.done)
        saving.wait(PATIENCE_S)
        runs.wait()

    def waiting(self, name: str, save: Callable[[Path], object]) -> None:
        """A way that returns when all is written; without an fsync, as it is shipped."""
        with self._emptied(name.replace(" ", "-")) as path:
            begun_s = time.perf_counter()
            save(path)
            took_s = time.perf_counter() - begun_s
            self.seconds[f"{name} call"].append(took_s)
            self.seconds[f"{name} stall"].append(took_s)
            self.seconds[f"{name} commit"].append(took_s)

    def dcp_beside(self, name: str, kind: AsyncCheckpointerType) -> None:
        if name in self.absent:
            return
        with self._emptied(name.replace(" ", "-")) as path:
            self.training.alone()
            if kind is AsyncCheckpointerType.PROCESS and self._stager is None:
                options = StagingOptions(
                    use_pinned_memory=False,
                    use_shared_memory=True,
                    use_async_staging=False,
                    use_non_blocking_copy=False,
                )
                self._stager = DefaultStager(options)
            stager = self._stager if kind is AsyncCheckpointerType.PROCESS else None
            begun_s = time.perf_counter()
            try:
                saving: Any = dcp.async_save(
                    self.state, checkpoint_id=path, async_checkpointer_type=kind, async_stager=stager
                )
                saving = getattr(saving, "upload_completion", saving)
                call_s = time.perf_counter() - begun_s
                lost_s = self.training.lost_s(saving.done)
                saving.result(timeout=PATIENCE_S)
            except (RuntimeError, ValueError, OSError, AttributeError, TypeError) as error:
                self.absent[name] = f"{type(error).__name__}: {error}".splitlines()[0]
                return
            self._note(name, call_s, lost_s, time.perf_counter() - begun_s)

    def load(self, runs: Checkpointer) -> None:
        expected = digest(self.state)
        with self._emptied("dcp-load") as path:
            dcp.save(self.state, checkpoint_id=path)
            self._blank()
            with timed(self.seconds["dcp.load"]):
                dcp.load(self.state, checkpoint_id=path)
            assert digest(self.state) == expected
        self._blank()
        with timed(self.seconds["checkpoint load"]):
            runs.load(self.state)
        assert digest(self.state) == expected

    def _blank(self) -> None:
        for tensor in self.state["model"].values():
            tensor.zero_()

    def _beside(self, name: str, begun_s: float, call_s: float, done: Callable[[], bool]) -> None:
        lost_s = self.training.lost_s(done)
        self._note(name, call_s, lost_s, time.perf_counter() - begun_s)

    def _note(self, name: str, call_s: float, lost_s: float, commit_s: float) -> None:
        self.seconds[f"{name} call"].append(call_s)
        self.seconds[f"{name} stall"].append(call_s + lost_s)
        self.seconds[f"{name} commit"].append(commit_s)

    @contextlib.contextmanager
    def _emptied(self, name: str) -> Iterator[Path]:
        """A folder's path; what was written before is on the disk when it is handed out, and what is written goes."""
        path = self.folder / name
        os.sync()
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)
            path.unlink(missing_ok=True)


def run(mb: int, tensors: int, rounds: int, folder: Path) -> Bench:
    bench = Bench(build(mb, tensors), folder)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with Checkpointer(folder / "runs", keep=2) as runs:
            runs.warm(bench.state)
            bench.memcpy()
            bench.seconds.clear()
            for step in range(1, rounds + 1):
                bench.memcpy()
                bench.raw_write()
                os.sync()
                bench.ours(runs, step)
                bench.waiting("torch.save", lambda path: torch.save(bench.state, path))
                bench.waiting("dcp.save", lambda path: dcp.save(bench.state, checkpoint_id=path))
                bench.dcp_beside("dcp.async_save thread", AsyncCheckpointerType.THREAD)
                bench.dcp_beside("dcp.async_save process", AsyncCheckpointerType.PROCESS)
                bench.load(runs)
    finally:
        if bench._stager is not None:
            bench._stager.close()
        dist.destroy_process_group()
    return bench


def summary(seconds: Figures) -> dict[str, float]:
    """The ratios that are aimed for, by name."""
    median = {name: statistics.median(values) for name, values in seconds.items()}
    others = {name: value for name, value in median.items() if name.startswith("dcp") and name.endswith(" stall")}
    first, *later = seconds["checkpoint call"]
    return {
        "stall / memcpy": median["checkpoint stall"] / median["memcpy"],
        "call / memcpy": median["checkpoint call"] / median["memcpy"],
        "stall / best of DCP": median["checkpoint stall"] / min(others.values()),
        "call / best call of DCP": median["checkpoint call"]
        / min(value for name, value in median.items() if name.startswith("dcp") and name.endswith(" call")),
        "commit / raw write": median["checkpoint commit"] / median["raw write"],
        "verified load / raw read": median["checkpoint load"] / median["raw read"],
        "verified load / dcp.load": median["checkpoint load"] / median["dcp.load"],
        "first call / later calls": first / statistics.median(later or [first]),
    }


AIMS = {
    "stall / memcpy": 1.3,
    "call / memcpy": 1.3,
    "stall / best of DCP": 0.2,
    "call / best call of DCP": 0.2,
    "commit / raw write": 1.4,
    "verified load / dcp.load": 0.5,
}


def show(bench: Bench, console: Console) -> None:
    median = {name: statistics.median(values) for name, values in bench.seconds.items()}
    copy_s, write_s = median["memcpy"], median["raw write"]
    table = Table(title=f"{bench.bytes / 2**30:.2f} GiB in {len(bench.state['model']):,} tensors, medians")
    for column in ("way", "call", "stall", "commit", "call / memcpy", "stall / memcpy", "commit / raw write"):
        table.add_column(column, justify="left" if column == "way" else "right")
    ways = ("checkpoint", "torch.save", "dcp.save", "dcp.async_save thread", "dcp.async_save process")
    for way in ways:
        if way in bench.absent:
            table.add_row(way, "-", "-", "-", "-", "-", bench.absent[way][:40])
            continue
        call_s, stall_s, commit_s = (median[f"{way} {what}"] for what in ("call", "stall", "commit"))
        table.add_row(
            way,
            *(f"{value * 1000:,.0f} ms" for value in (call_s, stall_s, commit_s)),
            f"{call_s / copy_s:.2f}",
            f"{stall_s / copy_s:.2f}",
            f"{commit_s / write_s:.2f}",
        )
    console.print(table)
    plain = ", ".join(f"{name} {median[name] * 1000:,.0f} ms" for name in ("memcpy", "raw write", "raw read"))
    loads = ", ".join(f"{name} {median[name] * 1000:,.0f} ms" for name in ("checkpoint load", "dcp.load"))
    console.print(f"{plain}, {loads}")
    for name, value in summary(bench.seconds).items():
        aim = AIMS.get(name)
        verdict = "" if aim is None else f"   aim {aim:g}: {'[green]met' if value <= aim else '[red]missed'}"
        console.print(f"{name:26} {value:6.2f}{verdict}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="What a save and a load cost, beside DCP's.")
    parser.add_argument("--mb", type=int, default=1024)
    parser.add_argument("--tensors", type=int, default=1200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where the checkpoints go for the while; default: a temporary one")
    parser.add_argument("--json", type=Path, help="write all seconds and ratios there")
    asked = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    console = Console()
    load = [os.getloadavg()[0]]
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        bench = run(asked.mb, asked.tensors, asked.rounds, Path(folder))
    load.append(os.getloadavg()[0])
    show(bench, console)
    console.print(f"load of the machine {load[0]:.1f} before, {load[1]:.1f} after; {os.cpu_count()} processors")
    if asked.json:
        asked.json.write_text(json.dumps({"seconds": bench.seconds, "ratios": summary(bench.seconds), "load": load}))


if __name__ == "__main__":
    main()
