"""What the record of its steps costs a worker, beside a step of 50 ms: python -m tests.benchmarks.record [--steps 2000]

Everything that a step of eight shares on one worker does for its record is done over and over, as elastic/loop does it,
beside the same without it: digests of each share's batch, loss and sums, what they add to the step's row, the step's
line; and, in the background, that it is encoded and written to a folder as each fifty steps are saved. Processor time
of all threads in the quickest of some rounds, since whatever else runs takes no less; prints µs per step and the ratio.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from elastic.data.example_digest import quick_digest
from elastic.group.sums import Agreed
from elastic.loop.steps.reading import Contribution
from elastic.record.recorder import Recorder
from tests.benchmarks import harness
from tests.benchmarks.harness import interruptible, progress

STEP_S = 0.050
GOAL = 0.003
SHARES, EXAMPLES, SAVED_EVERY = 8, 16, 50
BATCH = torch.randn(EXAMPLES, 64), torch.arange(EXAMPLES)
LOSS = torch.tensor(1.5)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000, help="of a round")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    without, on_path, in_all, written = list[float](), list[float](), list[float](), 0
    with tempfile.TemporaryDirectory() as folder, interruptible():
        for number in progress("rounds", range(options.rounds)):
            begun_s = time.process_time()
            for _ in range(options.steps):
                shares(None)
            without.append((time.process_time() - begun_s) / options.steps)
            url = Path(folder, str(number))
            of_path_s, of_all_s = recorded(url, options.steps)
            on_path.append(of_path_s - without[-1])
            in_all.append(of_all_s - without[-1])
            written = sum(path.stat().st_size for path in (url / "record").iterdir())
    if not in_all:
        return 1  # interrupted before there was a figure
    cost_s = min(in_all)
    print(f"on the way of a step  {1e6 * min(on_path):.0f} µs, of {SHARES} shares")
    print(f"with the background   {1e6 * cost_s:.0f} µs, {cost_s / STEP_S:.3%} of a step of {1e3 * STEP_S:.0f} ms")
    print(f"written               {written / options.steps:.0f} bytes a step; the goal is {GOAL:.1%}")
    return 0 if cost_s < GOAL * STEP_S else 1


def recorded(url: Path, steps: int) -> tuple[float, float]:
    """Seconds of processors per step: of this thread, and of all."""
    recorder = Recorder(config(url), "host-17-abcdef", lambda _: None)
    begun_s, here_s = time.process_time(), time.thread_time()
    for step in range(steps):
        agreed = shares(Contribution)
        recorder.norm(step, 2.5 + step)
        recorder.add(step, 1, agreed, coordinates=True, epoch=0, gradients=0, weights=0, passed_over=None, first=None)
        if step % SAVED_EVERY == 0:
            recorder.save_begins(step, coordinates=True)
    here_s = time.thread_time() - here_s
    recorder.close()
    return here_s / steps, (time.process_time() - begun_s) / steps


def shares(kind: type[Contribution] | None) -> Agreed:
    """What a worker's shares add to a step; None: without what is for the record."""
    own, digests = Contribution(), list[int]()
    for _ in range(SHARES):
        own.begin_share()
        if kind is not None:
            own.has_read(quick_digest(BATCH, 1))
            own.has_lost(LOSS)
        own.add({"loss": LOSS})
    if kind is not None:
        digests = own.digests([range(share, share + 1) for share in range(SHARES)])
    row = np.zeros(10 + len(digests) + 3)  # as StepSums writes and reads it
    row[: 10 + len(digests)].view(np.int64)[:] = (*range(10), *digests)
    read = tuple(one for one in row[10 : 10 + len(digests)].view(np.int64).reshape(-1).tolist() if one)
    return Agreed({"loss": 1.5}, 128, (0,), (0,), (0,), (), (), 0, shares=read)


def config(url: Path) -> Any:
    """What a Recorder asks of a run's configuration."""
    plan, compute = SimpleNamespace(virtual_workers=SHARES), SimpleNamespace(mode="exact")
    return SimpleNamespace(url=str(url), storage_options={}, plan=plan, compute=compute)


if __name__ == "__main__":
    harness.run(main)
