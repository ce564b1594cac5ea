"""What the record of its steps costs a run, beside none: python -m tests.benchmarks.record [--runs 9] [--steps 400]

Whole runs of one worker in a folder, of eight shares a step, that are saved each fifty steps, in turn with the record
and without it: processor time of all threads in the quickest of each, so that what is written in the background counts,
too, in µs a step, and as a part of a step of 50 ms; and the bytes that a step takes.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import elastic
from elastic.config import Config
from elastic.record.recorder import Recorder
from tests.benchmarks import harness
from tests.benchmarks.harness import interruptible, progress

STEP_S = 0.050
GOAL = 0.003
SHARES = 8


class Nothing(Recorder):
    """Keeps no record."""

    def __init__(self, config: Config, worker_id: str, hear: Callable[[Mapping[str, Any]], None]) -> None:
        super().__init__(config, worker_id, hear)
        self.of_shares = False

    def norm(self, step: int, norm: float) -> None:
        pass

    def add(self, *_: Any, **__: Any) -> None:
        pass


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=9, help="of each kind")
    parser.add_argument("--steps", type=int, default=400, help="of a run")
    options = parser.parse_args()
    took: dict[type[Recorder], list[float]] = {Nothing: [], Recorder: []}
    with tempfile.TemporaryDirectory() as folder, interruptible():
        run(Path(folder) / "warm", Recorder, 20)
        for number in progress("runs of each kind", range(options.runs)):
            for kind, seconds in took.items():
                url = Path(folder) / f"{kind.__name__}{number}"
                seconds.append(run(url, kind, options.steps))
        written = sum(path.stat().st_size for path in (url / "record").iterdir()) if took[Recorder] else 0
    if not took[Recorder]:
        return 1  # interrupted before there was a figure
    without_s, with_s = (min(seconds) / options.steps for seconds in took.values())  # whatever else runs takes no less
    cost_s = with_s - without_s
    print(f"processor time  {1e6 * with_s:.0f} µs a step with the record, {1e6 * without_s:.0f} without it")
    print(f"it costs        {1e6 * cost_s:.0f} µs a step, {cost_s / STEP_S:.3%} of one of {1e3 * STEP_S:.0f} ms")
    print(f"written         {written / options.steps:.0f} bytes a step, of {SHARES} shares")
    return 0 if cost_s < GOAL * STEP_S else 1


def run(url: Path, kind: type[Recorder], steps: int) -> float:
    """Seconds of processors for a run, from its first step to its end."""
    elastic.seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(4096, 64), torch.arange(4096) % 8)
    begun_s = 0.0
    with (
        patch("elastic.loop.session.Recorder", kind),
        elastic.Run(
            url, model=model, optimizer=optimizer, dataset=data, batch_size=128, virtual_workers=SHARES, steps=steps,
            save_every=50,
        ) as training,
    ):  # fmt: skip
        for step in training:
            begun_s = begun_s or time.process_time()
            for x, y in step:
                loss = F.cross_entropy(model(x), y, reduction="sum")
                step.backward(loss, count=len(y))
                step.add(loss=loss)
    return time.process_time() - begun_s


if __name__ == "__main__":
    harness.run(main)
