"""What does a save cost training, and a load? Ratios from one run, beside torch.save and torch.distributed.checkpoint.

    python -m tests.benchmarks.checkpoints [--mb 1024] [--tensors 1200] [--rounds 5] [--folder /tmp] [--json FILE]

stall     time in the call, plus the training time that is lost until the save is durable: what a loop of matrix
          products takes meanwhile beyond what it takes alone. The loop uses half of the processors, as training does
          that has GPUs or leaves the machine something; "crowded" is the same with a loop that uses all of them.
          "call" is the first part only.
commit    from the beginning of the call until the checkpoint is durable
memcpy    one copy of as many bytes between two arrays that were both touched before; of one thread
raw write the same bytes into files of a shard's size, each fsynced; raw read: of those files, into warm memory

The ways take turns, and each ratio is of medians. Files are read from the page cache, and ("cold", by root only) from
the disk. A machine that others use shows it: the load before and after stands below the table.
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
from rich import box
from rich.console import Console
from rich.table import Table
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

from elastic_checkpoint import Checkpointer, digest
from elastic_checkpoint.format.shards import SHARD_BYTES
from tests.benchmarks import harness
from tests.benchmarks.harness import interruptible, progress

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

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._a, self._b = torch.randn(256, 256), torch.randn(256, 256)
        self._step_s = 0.0

    def alone(self) -> None:
        """Measures a step with nothing beside it."""
        until_s = time.perf_counter() + 0.3
        steps, took_s = self._train(lambda: time.perf_counter() > until_s)
        self._step_s = took_s / steps

    def lost_s(self, done: Callable[[], bool]) -> float:
        """Trains until it is done; returns how much longer the steps took than alone."""
        steps, took_s = self._train(done)
        return max(0.0, took_s - steps * self._step_s)

    def _train(self, done: Callable[[], bool]) -> tuple[int, float]:
        """Steps and seconds."""
        others = torch.get_num_threads()
        torch.set_num_threads(self._threads)
        try:
            begun_s, steps = time.perf_counter(), 0
            while not done():
                torch.mm(self._a, self._b)
                steps += 1
            return steps, time.perf_counter() - begun_s
        finally:
            torch.set_num_threads(others)


def drop_caches() -> bool:
    """Whether the page cache is empty now, which needs root."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("1")
    except OSError:
        return False
    return True


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
        processors = len(os.sched_getaffinity(0))
        self.trainings = {"": Training(max(1, processors // 2)), " crowded": Training(processors)}
        self.seconds: Figures = defaultdict(list)
        self.absent: dict[str, str] = {}
        self._source = np.ones(self.bytes, np.uint8)
        self._target = np.ones(self.bytes, np.uint8)
        self.stager: DefaultStager | None = None

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

    def ours(self, runs: Checkpointer, step: int, how: str) -> None:
        training = self.trainings[how]
        training.alone()
        begun_s = time.perf_counter()
        saving = runs.save(step, self.state, blocking=False)
        call_s = time.perf_counter() - begun_s
        lost_s = training.lost_s(lambda: saving.done)
        self._note("checkpoint", how, call_s, lost_s, time.perf_counter() - begun_s)
        saving.wait(PATIENCE_S)
        runs.wait()

    def waiting(self, name: str, save: Callable[[Path], object]) -> None:
        """A way that returns when all is written; without an fsync, as it is shipped."""
        with self._emptied(name.replace(" ", "-")) as path:
            begun_s = time.perf_counter()
            save(path)
            took_s = time.perf_counter() - begun_s
            for how in self.trainings:
                self._note(name, how, took_s, 0.0, took_s)

    def dcp_beside(self, name: str, kind: AsyncCheckpointerType, how: str) -> None:
        if name in self.absent:
            return
        training = self.trainings[how]
        with self._emptied(name.replace(" ", "-")) as path:
            training.alone()
            if kind is AsyncCheckpointerType.PROCESS and self.stager is None:
                options = StagingOptions(
                    use_pinned_memory=False,
                    use_shared_memory=True,
                    use_async_staging=False,
                    use_non_blocking_copy=False,
                )
                self.stager = DefaultStager(options)
            stager = self.stager if kind is AsyncCheckpointerType.PROCESS else None
            begun_s = time.perf_counter()
            try:
                saving: Any = dcp.async_save(
                    self.state, checkpoint_id=path, async_checkpointer_type=kind, async_stager=stager
                )
                saving = getattr(saving, "upload_completion", saving)
                call_s = time.perf_counter() - begun_s
                lost_s = training.lost_s(saving.done)
                saving.result(timeout=PATIENCE_S)
            except (RuntimeError, ValueError, OSError, AttributeError, TypeError) as error:
                self.absent[name] = f"{type(error).__name__}: {error}".splitlines()[0]
                return
            self._note(name, how, call_s, lost_s, time.perf_counter() - begun_s)

    def load(self, runs: Checkpointer) -> None:
        """Each from the disk, and again from what the page cache has then."""
        expected = digest(self.state)

        def loaded(name: str, load: Callable[[], object]) -> None:
            if drop_caches():
                with self._blank(), timed(self.seconds[f"{name} cold"]):
                    load()
            load()
            with self._blank(), timed(self.seconds[name]):
                load()
            assert digest(self.state) == expected

        with self._emptied("dcp-load") as path:
            dcp.save(self.state, checkpoint_id=path)
            loaded("dcp.load", lambda: dcp.load(self.state, checkpoint_id=path))
        loaded("checkpoint load", lambda: runs.load(self.state))

    @contextlib.contextmanager
    def _blank(self) -> Iterator[None]:
        for tensor in self.state["model"].values():
            tensor.zero_()
        yield

    def _note(self, name: str, how: str, call_s: float, lost_s: float, commit_s: float) -> None:
        self.seconds[f"{name} stall{how}"].append(call_s + lost_s)
        if not how:
            self.seconds[f"{name} call"].append(call_s)
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
            with interruptible():
                for step in progress("rounds", range(1, rounds + 1)):
                    bench.memcpy()
                    bench.raw_write()
                    for number, how in enumerate(bench.trainings):
                        os.sync()
                        bench.ours(runs, 2 * step + number, how)
                    bench.waiting("torch.save", lambda path: torch.save(bench.state, path))
                    bench.waiting("dcp.save", lambda path: dcp.save(bench.state, checkpoint_id=path))
                    for how in bench.trainings:
                        bench.dcp_beside("dcp.async_save thread", AsyncCheckpointerType.THREAD, how)
                        bench.dcp_beside("dcp.async_save process", AsyncCheckpointerType.PROCESS, how)
                    bench.load(runs)
    finally:
        if bench.stager is not None:
            bench.stager.close()
        dist.destroy_process_group()
    return bench


def summary(seconds: Figures) -> dict[str, float]:
    """The ratios that are aimed for, by name."""
    median = {name: statistics.median(values) for name, values in seconds.items() if values}

    def best_of_dcp(what: str) -> float:
        return min(value for name, value in median.items() if name.startswith("dcp") and name.endswith(f" {what}"))

    first, *later = seconds["checkpoint call"]
    return {
        "stall / memcpy": median["checkpoint stall"] / median["memcpy"],
        "call / memcpy": median["checkpoint call"] / median["memcpy"],
        "stall / best of DCP": median["checkpoint stall"] / best_of_dcp("stall"),
        "call / best call of DCP": median["checkpoint call"] / best_of_dcp("call"),
        "crowded stall / memcpy": median["checkpoint stall crowded"] / median["memcpy"],
        "crowded stall / best of DCP": median["checkpoint stall crowded"] / best_of_dcp("stall crowded"),
        "commit / raw write": median["checkpoint commit"] / median["raw write"],
        "verified load / raw read": median["checkpoint load"] / median["raw read"],
        "verified load / dcp.load": median["checkpoint load"] / median["dcp.load"],
        "the same from the disk": median.get("checkpoint load cold", 0.0) / median.get("dcp.load cold", 1.0),
        "first call / later calls": first / statistics.median(later or [first]),
    }


AIMS = {
    "stall / memcpy": 1.3,
    "call / memcpy": 1.3,
    "stall / best of DCP": 0.2,
    "commit / raw write": 1.4,
    "verified load / dcp.load": 0.5,
}
WAYS = ("checkpoint", "torch.save", "dcp.save", "dcp.async_save thread", "dcp.async_save process")


def show(bench: Bench, console: Console) -> None:
    median = {name: statistics.median(values) for name, values in bench.seconds.items() if values}
    if "checkpoint load" not in median:  # interrupted in the first round: there is nothing to compare
        for name, value in median.items():
            console.print(f"{name:34} {value * 1000:10,.0f} ms")
        return
    copy_s, write_s = median["memcpy"], median["raw write"]
    title = f"{bench.bytes / 2**30:.2f} GiB in {len(bench.state['model']):,} tensors, medians, ms"
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))  # 80 columns
    table.add_column("way", min_width=11, overflow="fold")
    for column in ("call", "stall", "crowded", "commit", "stall / memcpy", "crowded / memcpy", "commit / raw"):
        table.add_column(column, justify="right")
    for way in WAYS:
        if way in bench.absent:
            table.add_row(way, bench.absent[way][:40])
            continue
        call_s, stall_s, crowded_s, commit_s = (
            median[f"{way} {what}"] for what in ("call", "stall", "stall crowded", "commit")
        )
        table.add_row(
            way,
            *(f"{value * 1000:,.0f}" for value in (call_s, stall_s, crowded_s, commit_s)),
            *(f"{value:.2f}" for value in (stall_s / copy_s, crowded_s / copy_s, commit_s / write_s)),
        )
    console.print(table)
    plain = ", ".join(f"{name} {median[name] * 1000:,.0f} ms" for name in ("memcpy", "raw write", "raw read"))
    loads = ", ".join(f"{name} {value * 1000:,.0f} ms" for name, value in median.items() if "load" in name)
    console.print(f"{plain}\n{loads}")
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
        ratios = summary(bench.seconds) if bench.seconds["checkpoint load"] else {}
        asked.json.write_text(json.dumps({"seconds": bench.seconds, "ratios": ratios, "load": load}))


if __name__ == "__main__":
    harness.run(main)
