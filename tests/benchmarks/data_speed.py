"""How fast is the order of an epoch, and what does it weigh? python -m tests.benchmarks.data_speed [--turns 15]

For a million, a billion and a trillion examples: indices a second of one core, a million positions a call; the time of
a step's 256; the bytes of the order; the time until the first index, with what it takes to make the order. Beside it,
where the memory holds it, a shuffled list of NumPy and of torch, in turns. Then the first batch of a run that resumes
in the middle of an epoch of a billion examples, through the run's plan and the reading of computed examples, beside one
that shuffles a list of ten million first. Medians; exit status 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import statistics
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from elastic.data.data_plan import DataPlan
from elastic.data.loader import read_once
from elastic.data.permutation import Permutation
from elastic.orders import Shuffled
from tests.benchmarks import harness
from tests.benchmarks.harness import interruptible, progress

LENGTHS = (10**6, 10**9, 10**12)
BATCH, MANY = 256, 10**6
GOAL_PER_S, GOAL_BYTES, GOAL_FIRST_S = 20e6, 1000, 50e-6
RESUMED, LISTED = 10**9, 10**7

Figures = dict[str, list[float]]


class Computed:
    """Examples that nobody stored."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, index % 7], dtype=torch.float32)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--large", action="store_true", help="lists of a billion, too, once: 16 GB and two minutes")
    options = parser.parse_args()
    torch.set_num_threads(1)
    figures: dict[int, Figures] = {length: {} for length in LENGTHS}
    resumed: Figures = {}
    with interruptible():
        for turn in progress("turns", range(options.visits)):
            for length, found in figures.items():
                lists = length <= LISTED or (options.large and not turn)
                orders(found, length, turn, lists=lists and 3 * 8 * length < available_bytes())
            resumes(resumed, turn)
    if not resumed:
        return 1  # interrupted before there was a figure
    missed = [line for length, found in figures.items() for line in told(length, found)]
    ours, listed = (statistics.median(resumed[kind]) for kind in ("ours", "listed"))
    print(
        f"resumed in the middle of {RESUMED:,} examples: first batch of {BATCH} after {1e3 * ours:.2f} ms, "
        f"{1e3 * statistics.median(resumed['plan']):.3f} of them the plan; "
        f"with a list of {LISTED:,} shuffled first {1e3 * listed:.0f} ms, {listed / ours:.0f} times as long"
    )
    print("goals: " + ("; ".join(missed) if missed else "20 M indices a second, 1 kB, first index in 50 µs: met"))
    return 1 if missed else 0


def orders(found: Figures, length: int, key: int, *, lists: bool) -> None:
    """One turn: ours, then the lists."""
    order = Permutation(length, key)
    some = np.random.default_rng(key).integers(0, length, MANY)
    few = some[:BATCH].copy()
    note(found, "per s", MANY / took(lambda: order.at(some)))
    note(found, "batch", min(took(lambda: order.at(few)) for _ in range(20)))
    note(found, "first", min(took(lambda: Permutation(length, key).at(few[:1])) for _ in range(20)))
    tracemalloc.start()
    held = [Permutation(length, key) for key in range(100)]
    note(found, "bytes", tracemalloc.get_traced_memory()[0] / len(held))
    tracemalloc.stop()
    if lists:
        generator = np.random.default_rng(key)
        note(found, "numpy", length / took(lambda: generator.permutation(length)))
        note(found, "torch", length / took(lambda: torch.randperm(length)))


def resumes(found: Figures, turn: int) -> None:
    def plan() -> DataPlan:
        return DataPlan(
            dataset_length=RESUMED, batch_size=BATCH, virtual_workers=1, seed=turn, epochs=3, order=Shuffled()
        )

    def first() -> None:
        run = plan()
        half = run.step(run.total_steps // 2 + turn)
        read_once(Computed(RESUMED), half.examples(0), seed=turn, collate_fn=None, to=torch.device("cpu"))

    def listed() -> None:
        order = torch.randperm(LISTED)
        dataset = Computed(LISTED)
        torch.utils.data.default_collate([dataset[i] for i in order[LISTED // 2 :][:BATCH].tolist()])

    note(found, "plan", took(lambda: plan().step(RESUMED // BATCH + turn).indices))
    note(found, "ours", took(first))
    note(found, "listed", took(listed))


def told(length: int, found: Figures) -> list[str]:
    """Prints the line of one length; returns the goals that it misses."""
    per_s, batch, first, held = (statistics.median(found[name]) for name in ("per s", "batch", "first", "bytes"))
    print(
        f"{length:>17,} examples: {per_s / 1e6:5.1f} M indices/s; {BATCH} in {1e6 * batch:.0f} µs; "
        f"first after {1e6 * first:.0f} µs; {held:,.0f} bytes"
    )
    for name in ("numpy", "torch"):
        if name in found:
            # Of the turns that measured both: an interrupted one may not have.
            rate = statistics.median(ours / theirs for ours, theirs in zip(found["per s"], found[name], strict=False))
            waits = length / statistics.median(found[name])
            print(
                f"{'':17} {name}'s list: {rate:.2f} times its indices/s; its first after {1e3 * waits:,.1f} ms, "
                f"{waits / first:,.0f} times as long; {8 * length:,} bytes"
            )
    if "numpy" not in found:
        print(f"{'':17} a list of them would take {8 * length:,} bytes, and as much again to shuffle")
    return [
        f"{length:,}: {what}"
        for what, met in (
            (f"{per_s / 1e6:.1f} M indices/s", per_s >= GOAL_PER_S),
            (f"{held:.0f} bytes", held < GOAL_BYTES),
            (f"first index after {1e6 * first:.0f} µs", first < GOAL_FIRST_S),
        )
        if not met
    ]


def note(found: Figures, name: str, value: float) -> None:
    found.setdefault(name, []).append(value)


def took(what: Callable[[], object]) -> float:
    begun_s = time.perf_counter()
    what()
    return time.perf_counter() - begun_s


def available_bytes() -> int:
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) * 1024


if __name__ == "__main__":
    harness.run(main)
