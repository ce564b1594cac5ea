"""How fast is an epoch's order, and the reading? python -m tests.benchmarks.data_speed [--turns 15]

For a million, a billion and a trillion examples: indices a second of one core, a million positions a call; the time of
a step's 256; the bytes of the order; the time until the first index, with what it takes to make the order. Beside it,
where the memory holds it, a shuffled list of NumPy and of torch, in turns. Then the first batch of a run that resumes
in the middle of an epoch of a billion examples, through the run's plan and the reading of computed examples, beside one
that shuffles a list of ten million first. Then a run's loader beside a plain DataLoader of the same settings, in this
process and in loader processes that are there already: batches of pictures that are decoded and noisy. Medians, of
ratios turn by turn; exit status 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import collections
import statistics
import time
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from elastic.data.data_plan import DataPlan, Examples
from elastic.data.loader import Loader, read_once
from elastic.data.permutation import Permutation
from elastic.events.observer import Observer
from elastic.orders import Shuffled
from tests.benchmarks import harness
from tests.benchmarks.harness import interruptible, progress

LENGTHS = (10**6, 10**9, 10**12)
BATCH, MANY = 256, 10**6
GOAL_PER_S, GOAL_BYTES, GOAL_FIRST_S = 20e6, 1000, 50e-6
RESUMED, LISTED = 10**9, 10**7
PICTURES, SIDE, READ, PROCESSES, GOAL_LOADING = 1024, 112, 64, (0, 2), 0.97

Figures = dict[str, list[float]]


class Computed:
    """Examples that nobody stored."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, index % 7], dtype=torch.float32)


class Pictures:
    """As a small PNG is: some work to decode, and noise from torch's generator."""

    def __init__(self) -> None:
        picture = np.random.default_rng(0).integers(0, 16, (SIDE, SIDE, 3), dtype=np.uint8)
        self.packed = zlib.compress(picture.tobytes())

    def __len__(self) -> int:
        return PICTURES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        pixels = torch.frombuffer(bytearray(zlib.decompress(self.packed)), dtype=torch.uint8)
        picture = pixels.view(SIDE, SIDE, 3).permute(2, 0, 1).float().div_(255)
        return picture + 0.05 * torch.randn(1), index


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--large", action="store_true", help="lists of a billion, too, once: 16 GB and two minutes")
    options = parser.parse_args()
    torch.set_num_threads(1)
    figures: dict[int, Figures] = {length: {} for length in LENGTHS}
    resumed: Figures = {}
    loading: dict[int, list[tuple[float, float]]] = {processes: [] for processes in PROCESSES}
    with interruptible():
        for turn in progress("turns", range(options.turns)):
            for length, found in figures.items():
                lists = length <= LISTED or (options.large and not turn)
                orders(found, length, turn, lists=lists and 3 * 8 * length < available_bytes())
            resumes(resumed, turn)
            for processes in PROCESSES:
                loads(loading, processes, turn)
    if not resumed:
        return 1  # interrupted before there was a figure
    missed = [line for length, found in figures.items() for line in told(length, found)]
    ours, listed = (statistics.median(resumed[kind]) for kind in ("ours", "listed"))
    print(
        f"resumed in the middle of {RESUMED:,} examples: first batch of {BATCH} after {1e3 * ours:.2f} ms, "
        f"{1e3 * statistics.median(resumed['plan']):.3f} of them the plan; "
        f"with a list of {LISTED:,} shuffled first {1e3 * listed:.0f} ms, {listed / ours:.0f} times as long"
    )
    missed += [line for processes, seconds in loading.items() for line in told_of_loading(processes, seconds)]
    aims = "20 M indices a second, 1 kB, first index in 50 µs, 0.97 of a DataLoader"
    print("goals: " + ("; ".join(missed) if missed else f"{aims}: met"))
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


def loads(found: dict[int, list[tuple[float, float]]], processes: int, turn: int) -> None:
    """One turn: seconds for the same batches by a DataLoader and by ours, who is first in turns."""
    dataset: Any = Pictures()
    order = Permutation(PICTURES, turn)
    indices = order.at(np.arange(PICTURES, dtype=np.int64))
    requests = [Examples(np.zeros(READ, dtype=np.int64), indices[at : at + READ]) for at in range(0, PICTURES, READ)]
    batches = [request.indices.tolist() for request in requests]
    options: dict[str, Any] = {"num_workers": processes, "prefetch_factor": 2} if processes else {}
    ours = Loader(dataset, seed=turn, observer=Observer(), num_workers=processes)

    def of_torch() -> float:
        reading = iter(torch.utils.data.DataLoader(dataset, batch_sampler=batches, **options))
        next(reading)  # the processes are there
        return took(lambda: collections.deque(reading, maxlen=0))

    def of_run() -> float:
        ours.open(requests)
        ours.next()
        seconds = took(lambda: collections.deque((ours.next() for _ in requests[1:]), maxlen=0))
        ours.close()
        return seconds

    both = {which: which() for which in ((of_torch, of_run) if turn % 2 else (of_run, of_torch))}
    found[processes].append((both[of_torch], both[of_run]))


def told_of_loading(processes: int, seconds: list[tuple[float, float]]) -> list[str]:
    """Prints the line; returns the goal, if it is missed."""
    if not seconds:
        return []
    ratio = statistics.median(theirs / ours for theirs, ours in seconds)
    of_one = statistics.median(theirs for theirs, _ in seconds) / (PICTURES - READ)
    more = statistics.median(ours - theirs for theirs, ours in seconds) / (PICTURES - READ)
    where = f"{processes} loader processes" if processes else "in the training process"
    print(
        f"read {where}: {ratio:.3f} of a DataLoader's examples/s, which takes {1e6 * of_one:.0f} µs each; "
        f"{1e6 * more:+.0f} µs each"
    )
    return [] if ratio >= GOAL_LOADING else [f"{ratio:.3f} of a DataLoader, {where}"]


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
