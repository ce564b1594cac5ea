"""How long from a command to its first step, where a model is compiled: by itself, and with what another machine kept?

    python -m tests.benchmarks.compile_cache [--layers 2] [--turns 5] [--quick]

In each turn one process begins a run with torch's folders empty, and compiles; another resumes that run with folders of
its own, which are empty, too. Ratios are to the first of the same turn: the median, and quartiles.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from elastic_checkpoint.net.secret import VARIABLE, generated_secret
from tests.benchmarks import harness
from tests.benchmarks.harness import interruptible, progress

TURNS, TURNS_QUICK, STEPS = 5, 1, 4
_WITHIN_S = 1200
_ROOT = Path(__file__).parents[2]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--layers", type=int, default=2, help="of the transformer that is compiled")
    options.add_argument("--turns", type=int, default=TURNS)
    options.add_argument("--quick", action="store_true")
    options.add_argument("--train", nargs=2, metavar=("URL", "STEPS"), help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.train is not None:
        _train(chosen.train[0], int(chosen.train[1]), chosen.layers)
        return
    by_itself: list[float] = []
    with_the_runs: list[float] = []
    with interruptible():
        for _ in progress("turns", range(TURNS_QUICK if chosen.quick else chosen.turns)):
            with tempfile.TemporaryDirectory() as folder:
                secret = generated_secret()
                first = _taken_s(Path(folder), "one", secret, STEPS, chosen.layers)
                with_the_runs.append(_taken_s(Path(folder), "two", secret, 2 * STEPS, chosen.layers))
                by_itself.append(first)
    if by_itself:
        _show(by_itself, with_the_runs)


def _taken_s(folder: Path, machine: str, secret: str, steps: int, layers: int) -> float:
    """Seconds until the first step was applied, with folders of that machine's own."""
    own = folder / machine
    own.mkdir()
    environ = {
        **os.environ,
        "TMPDIR": str(own),
        "TORCHINDUCTOR_CACHE_DIR": str(own / "compiled"),
        "ELASTIC_NOTICES": "none",
        VARIABLE: secret,
    }
    module = [sys.executable, "-m", "tests.benchmarks.compile_cache", f"--layers={layers}"]
    begun_s = time.perf_counter()
    with subprocess.Popen(
        [*module, "--train", str(folder / "run"), str(steps)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=_ROOT,
        env=environ,
    ) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            taken_s = time.perf_counter() - begun_s
            if not said or process.wait(timeout=_WITHIN_S) != 0:
                raise RuntimeError(f"the run on machine {machine} ended with {process.wait()}")
        finally:
            process.kill()
    return taken_s


def _train(url: str, steps: int, layers: int) -> None:
    import elastic

    elastic.seed(0)
    data = TensorDataset(torch.randn(64 * STEPS * 2, 16, 64), torch.randint(4, (64 * STEPS * 2,)))
    block = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(block, layers), nn.Flatten(), nn.Linear(16 * 64, 4))
    forward = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with elastic.Run(
        url,
        model=model,
        optimizer=optimizer,
        dataset=data,
        batch_size=64,
        virtual_workers=4,
        steps=steps,
        compute=elastic.Compute(compile_cache=True),
    ) as run:
        for number, step in enumerate(run):
            for x, y in step:
                step.backward(F.cross_entropy(forward(x), y, reduction="sum"), count=len(y))
            if number == 0:
                print("applied", flush=True)


def _show(by_itself: list[float], with_the_runs: list[float]) -> None:
    ratios = [one / other for one, other in zip(with_the_runs, by_itself, strict=False)]
    low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    loads_s, loads = statistics.median(with_the_runs), f"ratio {middle:.2f} ({low:.2f} ... {high:.2f})"
    print(f"compiles            {statistics.median(by_itself):7.2f} s")
    print(f"loads what was kept {loads_s:7.2f} s   {loads}")


if __name__ == "__main__":
    harness.run(main)
