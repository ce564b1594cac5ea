"""How long from a command to its first step? One process, plain torchrun and `elastic run`, in turns.

    python -m tests.benchmarks.start [--workers 4] [--quick]

Each is timed from its start until all of its workers have said that they have applied a step; one process's imports,
until it has said that they are made: of torch alone, and with those of `elastic.Run` and of the first optimizer, which
imports torch's compiler. Ratios are to those of the same turn: the median, and quartiles. `elastic run --timing` says
of any script where the time went.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks import harness
from tests.benchmarks.harness import interruptible, progress
from tests.benchmarks.start_script import APPLIED, IMPORTED

TURNS, TURNS_QUICK = 9, 3
_WITHIN_S = 120
_SCRIPT = str(Path(__file__).with_name("start_script.py"))
_ROOT = Path(__file__).parents[2]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--workers", type=int, default=4)
    options.add_argument("--quick", action="store_true")
    chosen = options.parse_args()
    workers = chosen.workers
    python, standalone = [sys.executable], ["--standalone", f"--nproc-per-node={workers}"]
    ways = {
        "one process: torch": ([*python, _SCRIPT, "imports"], IMPORTED, 1),
        "one process: all its imports": ([*python, _SCRIPT, "all"], IMPORTED, 1),
        "one process: a step": ([*python, _SCRIPT, "alone"], APPLIED, 1),
        f"torchrun, {workers} workers, DDP": (
            [*python, "-m", "torch.distributed.run", *standalone, _SCRIPT, "ddp"],
            APPLIED,
            workers,
        ),
        f"elastic run, {workers} workers": (
            [*python, "-m", "elastic", "run", *standalone, "--no-status", _SCRIPT, "run"],
            APPLIED,
            workers,
        ),
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    with interruptible():
        for name, (command, word, count) in ways.items():  # what is read for the first time
            _taken_s(command, word, count)
            print(f"{name}: can be started", file=sys.stderr, flush=True)
        for _ in progress("turns", range(TURNS_QUICK if chosen.quick else TURNS)):
            for name, (command, word, count) in ways.items():
                taken[name].append(_taken_s(command, word, count))
    if all(taken.values()):
        _show(taken)


def _taken_s(command: Sequence[str], word: str, count: int) -> float:
    """Seconds until `count` lines of its output are `word`."""
    with tempfile.TemporaryDirectory() as folder:
        begun_s = time.perf_counter()
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "ELASTIC_NOTICES": "none"}
        process = subprocess.Popen(
            [*command, f"{folder}/run"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=_ROOT,
            env=environ,
            start_new_session=True,
        )
        try:
            assert process.stdout is not None
            said = 0
            for line in process.stdout:
                said += line.strip() == word
                if said == count:
                    return time.perf_counter() - begun_s
            raise RuntimeError(f"{' '.join(command)} ended with {process.wait()}, and {said} of {count} {word}")
        finally:
            _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    """In order, if it comes to that."""
    try:
        process.wait(timeout=_WITHIN_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _show(taken: dict[str, list[float]]) -> None:
    torch_alone, all_imports = list(taken)[:2]
    for name, all_s in taken.items():
        line = f"{name:32} {statistics.median(all_s):6.2f} s"
        for other in (torch_alone, all_imports):
            if name not in (torch_alone, all_imports):
                line += f"   {_ratio(all_s, taken[other])}"
        print(line)
    print(f"ratios: to {torch_alone}, to {all_imports}")


def _ratio(these_s: Sequence[float], those_s: Sequence[float]) -> str:
    ratios = [one / other for one, other in zip(these_s, those_s, strict=False)]
    low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return f"{middle:.2f} ({low:.2f} ... {high:.2f})"


if __name__ == "__main__":
    harness.run(main)
