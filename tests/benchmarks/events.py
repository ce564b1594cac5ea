"""What recording costs a step, beside a step of 50 ms: python -m tests.benchmarks.events [--seconds 5]

Everything that a step does for its events is done over and over, as elastic/loop does it: the stopwatch's changes,
digests of what was read and summed, the record, its line, its place in the log, and what the live status hears of it.
Rank 0's step, with four shares of eight examples, three sums, and a save every hundred steps. The log is so long that
segments fill and are folded, which is part of the price. Prints µs per step and the ratio.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import torch

from elastic.events import schema
from elastic.events.digests import digest_of_indices, digest_of_sums, plain_values
from elastic.events.log import EventLog
from elastic.events.timing import DATA, EVALUATE, WAIT, Stopwatch
from elastic.status.tracker import StatusTracker
from tests.benchmarks import harness
from tests.benchmarks.harness import interruptible, progress

STEP_S = 0.050
GOAL = 0.005
SHARES, EXAMPLES = 4, 8


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="how long each kind of log is measured")
    options = parser.parse_args()
    worst, found = 0.0, list[str]()
    with tempfile.TemporaryDirectory() as folder, interruptible():
        logs = (("none", None), ("folder", folder), ("objects", "memory://benchmark-of-events"))
        for kind, url in progress("kinds of log", logs):
            log = EventLog(url, worker_id="host-17-abcdef")
            log.hear(StatusTracker(total_steps=10**6, shares=16, show=lambda _: None).hear)
            each_s, slowest_s, steps = measure(log, options.seconds)
            log.close()
            worst = max(worst, each_s / STEP_S)
            found.append(
                f"{kind:8} {1e6 * each_s:6.1f} µs a step, {each_s / STEP_S:.3%} of one of {STEP_S * 1e3:.0f} ms; "
                f"999 of 1,000 within {1e6 * slowest_s:.0f} µs; {steps:,} steps"
            )
        size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
        found.append(f"the folder holds {size / 1e6:.1f} MB")
    print("\n".join(found))
    if not worst:
        return 1  # interrupted before there was a figure
    print(f"at most {worst:.3%} of a step; the goal is {GOAL:.1%}")
    return 0 if worst < GOAL else 1


def measure(log: EventLog, seconds: float) -> tuple[float, float, int]:
    """(seconds per step, that of the slowest in a thousand, steps)."""
    log.context(rank=0, world_size=4, generation=3, claim=1)
    stopwatch = Stopwatch()
    read = list(range(SHARES * EXAMPLES))
    took: list[float] = []
    end_s = time.perf_counter() + seconds
    while (begun_s := time.perf_counter()) < end_s:
        step(log, stopwatch, len(took), read)
        took.append(time.perf_counter() - begun_s)
    mean_s = sum(took) / len(took)
    return mean_s, sorted(took)[len(took) * 999 // 1000], len(took)


def step(log: EventLog, stopwatch: Stopwatch, index: int, read: list[int]) -> None:
    for _ in range(SHARES):
        stopwatch.at(stopwatch.at(DATA))
    for on in (WAIT, None, WAIT, None, EVALUATE, None):
        stopwatch.at(on)
    sums = {"loss": SUMS[0], "correct": SUMS[1], "tokens": 4096}
    log.emit(
        schema.StepApplied(
            step=index,
            epoch=index // 1000,
            attempt=0,
            shares=[0, SHARES],
            count=256,
            indices=digest_of_indices(read),
            sums=digest_of_sums(sums, 256),
            redone=False,
            values=plain_values(sums),
            **stopwatch.lap(),
        )
    )
    if index % 100 == 99:
        log.emit(schema.SaveBegun(step=index + 1))
        log.emit(schema.Staged(step=index + 1, seconds=0.01))
        log.emit(schema.Saved(step=index + 1, bytes=10, seconds=0.5, stall=0.01, name="c"))


SUMS = torch.tensor(123.456, dtype=torch.float64), torch.tensor(231, dtype=torch.int64)

if __name__ == "__main__":
    harness.run(main)
