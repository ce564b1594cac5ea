"""What the cross-check costs a run: python -m tests.benchmarks.cross_check [--steps 60] [--rounds 3]

One worker trains the same steps, of eight shares, with no share checked, with those of a run's first step and of its
saves (the default), and with a tenth and all of its shares passed twice; the ways take turns. Then what is compared
before a save is digested, as each worker does it, beside a copy of the same memory. Prints each way's time as a ratio
to the run without checks, and the comparison's part of a minute, for a state of one gigabyte.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import elastic
from elastic.state.bits import digest_of
from tests.benchmarks import harness
from tests.benchmarks.harness import interruptible, progress

SHARES = 8
WAYS: dict[str, float | None] = {"none": None, "default": 0.0, "a tenth": 0.1, "all": 1.0}
MINUTE_S, GOAL = 60.0, 0.005
STATE_MB = 256


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    took: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder, interruptible():
        turns = [(number, way) for number in range(options.rounds) for way in WAYS]
        for number, way in progress("runs", turns):
            took[way].append(run(Path(folder, f"{number} {way}"), WAYS[way], options.steps))
    if len(took) < len(WAYS):
        return 1  # interrupted before there was a figure
    alone = statistics.median(took["none"])
    for way, seconds in took.items():
        ratio = statistics.median(seconds) / alone
        print(f"{way:8} {statistics.median(seconds) / options.steps * 1e3:7.2f} ms a step, {ratio:.3f} of none")
    digested_s, copied_s = state()
    part = digested_s / MINUTE_S
    print(
        f"a state of 1 GB is digested in {digested_s * 1e3:.0f} ms, {digested_s / copied_s:.2f} of a copy: {part:.2%} "
        f"of a run that saves each minute; the goal is {GOAL:.1%}"
    )
    return 0 if part < GOAL else 1


def run(url: Path, part: float | None, steps: int) -> float:
    """Seconds of all but the first step."""
    elastic.seed(0)
    data = TensorDataset(torch.randn(4096, 256), torch.randint(0, 10, (4096,)))
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
    optimizer = torch.optim.AdamW(model.parameters())
    begun_s = 0.0
    with elastic.Run(
        url, model=model, optimizer=optimizer, dataset=data, batch_size=512, virtual_workers=SHARES, steps=steps,
        checks=elastic.Checks(cross_check=part),
    ) as training:  # fmt: skip
        for x, y in training.batches():
            if training.step_index and not begun_s:
                begun_s = time.perf_counter()
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            ended_s = time.perf_counter()
    return ended_s - begun_s


def state() -> tuple[float, float]:
    """Seconds for a gigabyte: digested, and copied. The fastest of several, on one thread."""
    torch.set_num_threads(1)
    tensors = [torch.randn(STATE_MB * 2**18 // 64) for _ in range(64)]
    into = [torch.empty_like(tensor) for tensor in tensors]
    digested, copied = list[float](), list[float]()
    for _ in range(5):
        begun_s = time.perf_counter()
        digest_of(tensors)
        digested.append(time.perf_counter() - begun_s)
        for to, tensor in zip(into, tensors, strict=True):
            to.copy_(tensor)
        copied.append(time.perf_counter() - begun_s - digested[-1])
    scale = 1e9 / (STATE_MB * 2**20)
    return min(digested) * scale, min(copied) * scale


if __name__ == "__main__":
    harness.run(main)
