"""What a run's manifest costs it, beside none: python -m tests.benchmarks.manifest [--runs 10] [--steps 60]

Whole runs of one worker in a folder, with steps of 50 ms, in turn with a manifest and without one: seconds from
entering the run to leaving it, beside each other; how long training itself stands still for it; what is done in the
background; the bytes that are written. All of it happens in a launch's first moments, so that the ratio of runs as
short as these is a bad case.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset

import elastic
from elastic.config import Config
from elastic.manifest import files
from elastic.manifest.collect import Collecting, Launched
from elastic.manifest.recorder import ManifestRecorder
from elastic.membership.environment import Launch
from elastic_checkpoint.storage import open_storage
from tests.benchmarks import harness
from tests.benchmarks.harness import interruptible, progress

STEP_S = 0.050
GOAL = 0.02  # of a run of three seconds


class Measured(ManifestRecorder):
    """Notes how long training stands still for it, and what it is told."""

    stalls_s: list[float] = []  # noqa: RUF012
    launched: Launched

    def __init__(self, config: Config, launch: Launch, worker_id: str) -> None:
        super().__init__(config, launch, worker_id)
        self.launched_by = partial(Launched, config=config, launch=launch, worker_id=worker_id)

    def record(self, claim: Mapping[str, Any], identity: Mapping[str, Any], workers: Sequence[str]) -> None:
        begun_s = time.perf_counter()
        super().record(claim, identity, workers)
        self.stalls_s.append(time.perf_counter() - begun_s)
        Measured.launched = self.launched_by(
            claim=claim, identity=identity, workers=workers, argv=sys.argv, orig_argv=sys.orig_argv
        )


class Nothing(ManifestRecorder):
    """Writes no manifest."""

    def record(self, claim: Mapping[str, Any], identity: Mapping[str, Any], workers: Sequence[str]) -> None:
        pass


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10, help="of each kind")
    parser.add_argument("--steps", type=int, default=60, help="of a run")
    options = parser.parse_args()
    took: dict[type[ManifestRecorder], list[float]] = {Nothing: [], Measured: []}
    sizes: list[int] = []
    alone: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as folder, interruptible():
        run(Path(folder) / "warm", Measured, 2)
        for number in progress("runs of each kind", range(options.runs)):
            for kind, seconds in took.items():
                url = Path(folder) / f"{kind.__name__}{number}"
                seconds.append(run(url, kind, options.steps))
            sizes.append(sum(path.stat().st_size for path in written(url)))
            alone.append(collected(Path(folder) / f"alone{number}"))
    if not sizes:
        return 1  # interrupted before there was a figure
    without_s, with_s = (statistics.median(seconds) for seconds in took.values())
    wall_s, processor_s = (statistics.median(seconds) for seconds in zip(*alone, strict=True))
    print(f"a run of {options.steps} steps   {with_s:.3f} s with a manifest, {without_s:.3f} s without one")
    print(f"beside each other      {with_s / without_s:.4f}")
    print(f"training stands still  {1e3 * statistics.median(Measured.stalls_s):.2f} ms a launch")
    print(f"in the background      {1e3 * wall_s:.0f} ms, {1e3 * processor_s:.0f} ms of them of this processor")
    print(f"written                {statistics.median(sizes) / 1e3:.0f} kB")
    return 0 if with_s / without_s < 1 + GOAL else 1


def collected(url: Path) -> tuple[float, float]:
    """Seconds, and of the processor, for a manifest that is collected and written with nothing beside it."""
    begun = time.perf_counter(), time.thread_time()
    collecting = Collecting(Measured.launched, threading.Event())
    files.add(open_storage(url), str(url), collecting.manifest(), collecting.files)
    return time.perf_counter() - begun[0], time.thread_time() - begun[1]


def written(url: Path) -> list[Path]:
    return [url / "manifest.json", url / "launches.jsonl", *(url / "manifest").iterdir()]


def run(url: Path, kind: type[ManifestRecorder], steps: int) -> float:
    """Seconds of a run."""
    elastic.seed(0)
    model = torch.nn.Linear(64, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(256, 64), torch.arange(256) % 8)
    given: dict[str, Any] = {"model": model, "optimizer": optimizer, "dataset": data, "batch_size": 64, "steps": steps}
    with patch("elastic.loop.session.ManifestRecorder", kind):
        begun_s = time.perf_counter()
        with elastic.Run(url, virtual_workers=1, **given) as run:
            for x, y in run.batches():
                until_s = time.perf_counter() + STEP_S
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
                while time.perf_counter() < until_s:
                    model(x)  # a processor that works, and hands over the interpreter's lock as a step does
                optimizer.step()
        return time.perf_counter() - begun_s


if __name__ == "__main__":
    harness.run(main)
