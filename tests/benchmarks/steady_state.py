"""How fast are steps when nothing goes wrong? Run beside plain loops and DDP, as ratios of throughput.

    python -m tests.benchmarks.steady_state [--quick] [--json FILE] [--only digits|mlp|gpt] [--workers 1 2]

For each network and number of workers, steps of Run and of its peers alternate in one process (throughput.py): mode
"exact" with the loop that accumulates as many micro-batches per step, "fast" with the loop that takes its whole
batch at once, and a loop over run.batches(), "plain", with the loop over steps. A ratio is one peer's time over Run's
in neighbouring blocks: above 1, Run is the faster one. The table gives the median of the pairs and their quartiles, on
the wall clock and in CPU time, which other users of the machine disturb less. Aims, in CPU time: 0.97 for "exact"
beside the loop that accumulates, 0.98 for "fast" beside DDP, and 0.95 or better for "plain" beside Run. Before it, for
each network, the parts of a step (parts.py).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from elastic.drill.machine.processes import MARK, kill_marked
from tests.benchmarks import harness
from tests.benchmarks.harness import interruptible, progress
from tests.benchmarks.parts import ORDER

ROOT = Path(__file__).resolve().parents[2]
CYCLES = {"digits": 60, "mlp": 60, "gpt": 12}
CYCLES_QUICK = {"digits": 16, "mlp": 16, "gpt": 3}
COMPARED = (
    ("exact", "exact", "accumulated"),
    ("exact", "exact", "whole"),
    ("exact", "exact, plain", "exact"),
    ("fast", "fast", "whole"),
    ("fast", "fast, plain", "fast"),
)
WITHIN_S = 900.0  # for one network at one number of workers


def main() -> None:
    options = arguments()
    console = Console()
    cycles = CYCLES_QUICK if options.quick else CYCLES
    found: dict[str, Any] = {}
    pairs = [(name, workers) for name in options.only or list(cycles) for workers in options.workers]
    with interruptible():
        for name, workers in progress("networks and numbers of workers", pairs):
            found[f"{name}/{workers}"] = launched(name, workers, cycles[name])
            console.print(where_time_goes(f"{name}, {workers} worker{'s' * (workers > 1)}", found[f"{name}/{workers}"]))
    console.print(ratios_table(found))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


def launched(name: str, workers: int, cycles: int) -> dict[str, Any]:
    """What rank 0 measured. Whatever the launch leaves behind ends with it."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        torchrun = ["torch.distributed.run", "--standalone", f"--nproc-per-node={workers}", "-m"]
        command = [sys.executable, "-m", *(torchrun if workers > 1 else []), "tests.benchmarks.throughput"]
        # DDP's group would find its own way over the machine's network; Run takes the loopback on one node.
        env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "TMPDIR": folder, MARK: folder}
        # glibc gives freed gradients back to the system or not, by luck: a plain loop of the GPT took 0 or 18,000 page
        # faults a step (2026-11-21). Here it always keeps them, which is the plain loops' best case.
        env |= {"MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_MMAP_THRESHOLD_": str(1 << 40)}
        try:
            command += [name, str(cycles), str(result)]
            done = subprocess.run(
                command,
                check=False,
                cwd=ROOT,
                env=env,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=WITHIN_S,
            )
        finally:
            kill_marked(Path(folder))
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} ended with status {done.returncode}:\n{done.stdout}")
        return dict(json.loads(result.read_text()))


def ratios(found: Mapping[str, Any], ours: str, peer: str, clock: int) -> list[float]:
    """Quartiles over the pairs of neighbouring blocks; clock 0 is the wall's, 1 the CPU's."""
    spent = found["seconds"]
    pairs = [theirs[clock] / mine[clock] for mine, theirs in zip(spent[ours], spent[peer], strict=True)]
    return statistics.quantiles(pairs, n=4)


def ratios_table(found: Mapping[str, Any]) -> Table:
    table = Table(title="throughput of Run ÷ that of a plain loop: median, quartiles")
    table.add_column("network, workers")
    table.add_column("mode, beside")
    for column in ("ms/step", "wall clock", "CPU time"):
        table.add_column(column, justify="right")
    for key, result in found.items():
        name, workers = key.split("/")
        for part, ours, peer in COMPARED:
            blocks = result[part]["seconds"][ours]
            step_ms = 1e3 * statistics.median(wall for wall, _ in blocks) / result[part]["steps_per_block"]
            wall, cpu = (ratios(result[part], ours, peer, clock) for clock in (0, 1))
            beside = f"{ours}, {'Run' if peer == part else 'loop' if workers == '1' else 'DDP'} {peer}"
            table.add_row(f"{name} {workers}", beside, f"{step_ms:.1f}", _spread(wall), _spread(cpu))
    return table


def where_time_goes(title: str, found: Mapping[str, Any]) -> Table:
    """CPU time per step of rank 0's training thread, of watched steps: a little slower than those that are compared."""
    columns: dict[str, Mapping[str, float]] = {
        "exact": found["exact"]["parts_ms"]["exact"],
        "exact, plain": found["exact"]["parts_ms"]["exact, plain"],
        "loop, accumulated": found["exact"]["parts_ms"]["accumulated"],
        "fast": found["fast"]["parts_ms"]["fast"],
        "fast, plain": found["fast"]["parts_ms"]["fast, plain"],
        "loop, whole": found["fast"]["parts_ms"]["whole"],
    }
    table = Table(title=f"{title}: where a step's processor time goes, ms")
    table.add_column("part")
    for column in columns:
        table.add_column(column, justify="right")
    for part in [part for part in ORDER if any(part in spent for spent in columns.values())]:
        table.add_row(part, *(f"{spent[part]:.2f}" if part in spent else "" for spent in columns.values()))
    table.add_section()
    table.add_row("sum", *(f"{sum(spent.values()):.2f}" for spent in columns.values()))
    return table


def _spread(quartiles: Sequence[float]) -> str:
    low, median, high = quartiles
    return f"{median:.3f} ({low:.2f}…{high:.2f})"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a third of the blocks")
    parser.add_argument("--json", type=Path, help="write every block's time there")
    parser.add_argument("--only", nargs="+", choices=list(CYCLES), help="these networks")
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2])
    return parser.parse_args()


if __name__ == "__main__":
    harness.run(main)
