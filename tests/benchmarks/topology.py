"""How many bytes leave a host in a step? Two hosts of two workers each, in namespaces, by their interfaces' counters.

    python -m tests.benchmarks.topology [--steps 23] [--json FILE]

A network of 7.9 MB is trained in mode "exact" and in mode "fast", each as it is and with all sums as on one host
(flat); beside it DDP, launched by torchrun, whose gloo sends its sums around a ring. What a ring of W ranks must send
is 2(W-1)/W of the gradients from each rank, so from each host; the least that H hosts must is 2(H-1)/H. The last row
runs as many workers on one host: the weights at the end must be those of two hosts, to the bit.

Steps are timed, too; here a wire is memory, and processors are what four workers lack. Needs root.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from elastic.drill.hosts.hosts import missing
from tests.benchmarks import harness
from tests.benchmarks.harness import interruptible
from tests.kit.crossing import Crossing, crossing
from tests.kit.hosts import Hosts

HOSTS, WORKERS = 2, 2
RING = 2 * (HOSTS * WORKERS - 1) / (HOSTS * WORKERS)
LEAST = 2 * (HOSTS - 1) / HOSTS
EXACT, ALONE = "exact", "exact, one host"
RUNS = {
    EXACT: (HOSTS, WORKERS, "elastic", ()),
    "exact, flat": (HOSTS, WORKERS, "elastic", ("--flat",)),
    "fast": (HOSTS, WORKERS, "elastic", ("--mode=fast",)),
    "fast, flat": (HOSTS, WORKERS, "elastic", ("--mode=fast", "--flat")),
    "DDP": (HOSTS, WORKERS, "torchrun", ("--ddp",)),
    ALONE: (1, HOSTS * WORKERS, "elastic", ()),
}


def main() -> int:
    options = arguments()
    if (why := missing()) is not None:
        raise SystemExit(f"no hosts: {why}")
    found: dict[str, Crossing] = {}
    with (
        interruptible(),
        tempfile.TemporaryDirectory(prefix="topology-", ignore_cleanup_errors=True) as folder,
        Hosts(HOSTS, Path(folder) / "hosts") as hosts,
    ):
        for number, (what, (count, workers, launcher, flags)) in enumerate(RUNS.items()):
            steps = f"--steps={options.steps}"
            at = Path(folder) / str(number)
            found[what] = crossing(hosts, count, at, *flags, steps, launcher=launcher, workers=workers)
            print(f"{what}: {found[what].most:.3f}", file=sys.stderr, flush=True)
    console = Console(width=None if sys.stdout.isatty() else 80)
    console.print(table(found))
    if options.json is not None:
        options.json.write_text(json.dumps({what: asdict(one) for what, one in found.items()}, indent=1))
    if EXACT not in found or ALONE not in found:
        return 0
    console.print(f"beside a ring: {found[EXACT].most / RING:.2f} of its bytes ({LEAST / RING:.2f} is the least)")
    same = found[EXACT].digest == found[ALONE].digest
    console.print(f"weights at the end as on one host: {'yes' if same else 'NO'} ({found[EXACT].digest[:16]})")
    return 0 if same else 1


def table(found: dict[str, Crossing]) -> Table:
    made = Table(title=f"out of a host in a step; {HOSTS} hosts of {WORKERS} workers")
    for column in ("", "MB", "of the gradients", "of a ring's", "ms per step"):
        made.add_column(column, justify="left" if not column else "right")
    for what, one in found.items():
        made.add_row(
            what,
            f"{max(one.bytes) / 1e6:.2f}",
            f"{one.most:.3f}",
            f"{one.most / RING:.3f}",
            f"{1e3 * one.seconds:.0f}",
        )
    return made


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=23, help="of which the first three do not count")
    parser.add_argument("--json", type=Path, help="write every figure there")
    return parser.parse_args()


if __name__ == "__main__":
    harness.run(main)
