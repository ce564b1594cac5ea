"""What manifest, record, events and curves cost a step of 50 ms together: python -m tests.benchmarks.overhead

Whole runs of one worker in a folder, exact, eight shares a step, in turn with all of them (as every run has, and a
table and TensorBoard's files beside that) and with none. Counted are a run's steps once its manifest is written, which
is done once a launch (`tests.benchmarks.manifest`). Prints, of pairs of runs that follow each other, the median and the
quartiles of two figures:

    steps without work      the processor time that a step takes more, as a part of 50 ms: of all threads, most of which
                            have a processor to themselves elsewhere
    steps of 50 ms of work  the time of one beside the other, which is what the goal is about
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset

import elastic
from elastic.events.log import EventLog
from elastic.logging import CSV, TensorBoard
from elastic.manifest import files
from elastic.manifest.recorder import ManifestRecorder
from elastic.record.recorder import Recorder
from elastic_checkpoint.storage import open_storage
from tests.benchmarks import harness
from tests.benchmarks.harness import interruptible, progress

STEP_S, GOAL = 0.050, 0.003
SHARES = 8
WITHIN_S = 60.0
_WARM = 10  # steps, before those that count
_SETTLES_S = 1.5  # in which loggers' threads open their files, which they do once a launch, too


class NoManifest(ManifestRecorder):
    """Writes no manifest."""

    def record(self, claim: Mapping[str, Any], identity: Mapping[str, Any], workers: Sequence[str]) -> None:
        pass


class NoRecord(Recorder):
    """Keeps no record."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.of_shares = False

    def norm(self, step: int, norm: float) -> None:
        pass

    def add(self, *given: Any, **known: Any) -> None:
        pass

    def save_begins(self, step: int, *, coordinates: bool) -> None:
        pass


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=12, help="of runs, for each figure")
    parser.add_argument("--steps", type=int, default=40, help="of 50 ms, of a run; without work ten times as many")
    options = parser.parse_args()
    added, ratios = list[float](), list[float]()
    with tempfile.TemporaryDirectory() as folder, interruptible():
        made = partial(run, Path(folder))
        work = calibrated()
        made("warm", all_of_it=True, steps=1, work=0)
        for number in progress("pairs", range(options.pairs)):
            order = (True, False) if number % 2 else (False, True)
            idle = {one: made(f"idle{number}{one}", all_of_it=one, steps=10 * options.steps, work=0) for one in order}
            added.append((idle[True][1] - idle[False][1]) / STEP_S)
            busy = {one: made(f"busy{number}{one}", all_of_it=one, steps=options.steps, work=work) for one in order}
            ratios.append(busy[True][0] / busy[False][0])
    if len(ratios) < 2:
        return 1  # interrupted before there was a figure
    low, middle, high = statistics.quantiles(added, n=4)
    print(f"steps without work     + {1e6 * STEP_S * middle:.0f} µs of processors, {middle:.3%} of 50 ms"
          f" (quartiles {low:.3%} to {high:.3%})")  # fmt: skip
    low, of_one, high = statistics.quantiles(ratios, n=4)
    print(f"steps of 50 ms of work {of_one:.4f} of one without (quartiles {low:.4f} to {high:.4f})")
    print(f"{len(ratios)} pairs of runs; the goal is {GOAL:.1%}")
    return 0 if of_one < 1 + GOAL else 1


def run(folder: Path, name: str, *, all_of_it: bool, steps: int, work: int) -> tuple[float, float]:
    """Return the median time of a step, and a step's processor time, of all threads; in seconds."""
    elastic.seed(0)
    model = torch.nn.Linear(64, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(256, 64), torch.arange(256) % 8)
    url, ended = folder / name, list[tuple[float, float]]()
    loggers = [CSV(folder / f"{name}.csv"), TensorBoard(folder / f"{name}-files")] if all_of_it else []
    with ExitStack() as stack:
        if not all_of_it:
            stack.enter_context(patch("elastic.run.EventLog", partial(without_sink, EventLog)))
            stack.enter_context(patch("elastic.loop.session.ManifestRecorder", NoManifest))
            stack.enter_context(patch("elastic.loop.session.Recorder", NoRecord))
        run = stack.enter_context(
            elastic.Run(
                url,
                model=model,
                optimizer=optimizer,
                dataset=data,
                batch_size=64,
                virtual_workers=SHARES,
                steps=_WARM + steps,
                save_every=10**6,
                loggers=loggers,
            )
        )
        if all_of_it:
            wait_for_manifest(url)
        for x, y in run.batches():
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            run.add(loss=loss.detach() * len(y))
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if run.stepped:
                works(work)
                if all_of_it:
                    run.log(loss=run.sums["loss"] / run.count)
                if run.step_index == _WARM - 1:
                    time.sleep(_SETTLES_S)
                ended.append((time.perf_counter(), time.process_time()))
    counted = ended[_WARM - 1 :]
    took_s = statistics.median(after[0] - before[0] for before, after in itertools.pairwise(counted))
    return took_s, (counted[-1][1] - counted[0][1]) / steps


def without_sink(kind: type[EventLog], url: object, *, worker_id: str, **_: object) -> EventLog:
    return kind(None, worker_id=worker_id)


def wait_for_manifest(url: Path) -> None:
    storage, deadline = open_storage(str(url)), time.monotonic() + WITHIN_S
    while not files.read_launches(storage, {}) and time.monotonic() < deadline:
        time.sleep(0.01)


def works(times: int) -> None:
    a = torch.ones(128, 128)
    for _ in range(times):
        a @ a


def calibrated() -> int:
    """Return how often `works` takes a step's time, in the quickest of some tries."""
    times, tries = 500, list[float]()
    for _ in range(10):
        begun_s = time.perf_counter()
        works(times)
        tries.append((time.perf_counter() - begun_s) / times)
    return round(STEP_S / min(tries))


if __name__ == "__main__":
    harness.run(main)
