"""What does the loss of a host cost? Real ones, in namespaces, timed until the last survivor's next applied step.

    python -m tests.benchmarks.hosts [--quick] [--times 3] [--only crash cut …] [--within 120] [--json FILE]

Four hosts of one worker each, a fresh run for each fault, and beside it plain torchrun with the same script on the same
hosts, with an unshared store and tuned timeouts (TORCHRUN below). A run that has ended, or does not get there in time,
is told as such: nothing is measured then. The time of a join is the survivors' longest step on the way to it.

Needs root; a machine that others use gives larger figures: its load stands beside them.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from rich.console import Console
from rich.table import Table

from elastic.drill.hosts.hosts import Hosts, missing
from elastic.drill.hosts.network import host_of, name
from elastic.drill.hosts.on_hosts import PORT
from tests.benchmarks import harness
from tests.benchmarks.harness import interruptible
from tests.benchmarks.recovery_events import Events, ViewKey
from tests.benchmarks.recovery_runs import ROOT, SCRIPT

HOSTS = 4
MEET = ("--nnodes=1:5", "--rdzv-backend=c10d", f"--rdzv-endpoint={name(1)}:{PORT}", "--rdzv-id=bench")
CONF = "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3,join_timeout=600"
LAUNCHERS = {
    "elastic": ("-m", "elastic", "run", *MEET, "--max-restarts=100"),
    "torchrun": ("-m", "torch.distributed.run", *MEET, f"--rdzv-conf={CONF}", "--max-restarts=100"),
}
SETTLED_STEPS = 8
START_S = 180.0
LOOK_S = 0.05


class NotMeasured(Exception):
    """The run did not get where it should; says what became of it."""


@dataclass(frozen=True)
class Row:
    """faulted: the hosts that are lost; empty: one joins"""

    what: str
    faulted: tuple[int, ...]
    act: Callable[[Hosts], None]


ROWS = {
    "crash": Row("a host crashes", (3,), lambda hosts: hosts.crash(3)),
    "two": Row("two of four crash together", (2, 4), lambda hosts: hosts.crash(2, 4)),
    "cut": Row("a host is cut off silently", (3,), lambda hosts: hosts.cut(3)),
    "stop": Row("a host is told to stop", (3,), lambda hosts: hosts.terminate(3)),
    "join": Row("a host joins: the longest step", (), lambda hosts: None),
    "first crash": Row("the first host crashes", (1,), lambda hosts: hosts.crash(1)),
    "first cut": Row("the first host is cut off", (1,), lambda hosts: hosts.cut(1)),
    "first stop": Row("the first host is told to stop", (1,), lambda hosts: hosts.terminate(1)),
}


@dataclass
class Figures:
    """Of one row with one launcher: seconds, and what was said where there are none."""

    seconds: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        told = [f"{statistics.median(self.seconds):.2f} s"] if self.seconds else []
        return ", ".join([*told, *(f"{self.failures.count(why)}x {why}" for why in dict.fromkeys(self.failures))])


class BenchRun:
    """A run of one launcher on hosts, and what its workers have recorded."""

    def __init__(self, launcher: str, hosts: Hosts, folder: Path) -> None:
        self.hosts = hosts
        self.events = Events(folder / "run")
        self._folder = folder
        self._command = [sys.executable, *LAUNCHERS[launcher], "--nproc-per-node=1", str(SCRIPT), str(folder / "run")]
        self._on: list[int] = []

    def join(self, host: int) -> None:
        env = {
            "PYTHONPATH": str(ROOT),
            "TMPDIR": "/var/tmp",
            "OMP_NUM_THREADS": "1",
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        }
        self._on.append(host)
        output = self._folder / f"output-{name(host)}.txt"
        self.hosts.start(host, self._command, env=env, output=output, cwd=self._folder)

    def settled(self, hosts: set[int], *, after: ViewKey = (-1, -1), steps: int, within_s: float) -> ViewKey:
        """Waits until exactly these have applied so many steps in one view, a later one than `after`."""
        deadline = time.monotonic() + within_s
        while True:
            self.events.read()
            view = self.events.newest_view()
            if view.key > after and set(map(host_of, view.workers)) == hosts and view.steps >= steps:
                return view.key
            if not any(map(self.hosts.running, hosts)):
                raise NotMeasured("the run has ended")
            if time.monotonic() > deadline:
                raise NotMeasured(f"not in {within_s:.0f} s")
            time.sleep(LOOK_S)

    def next_step_s(self, at: float, key: ViewKey, survivors: set[int]) -> float:
        """From `at` until the last of the survivors has applied a step in that view."""
        last = at
        for worker, steps in self.events.applied.items():
            if host_of(worker) in survivors and steps[-1].key >= key:
                last = max(last, min(one.t for one in steps if one.key >= key))
        return last - at

    def longest_step_s(self, at: float, survivors: set[int]) -> float:
        """Between two steps that a survivor's host has applied since, whether its worker is another one by then."""
        longest = 0.0
        for host in survivors:
            of_host = [steps for worker, steps in self.events.applied.items() if host_of(worker) == host]
            ends = sorted(one.t for steps in of_host for one in steps)
            longest = max([longest, *(later - earlier for earlier, later in pairwise(ends) if later > at)])
        return longest


@contextmanager
def running(launcher: str) -> Iterator[BenchRun]:
    with (
        tempfile.TemporaryDirectory(prefix="hosts-", ignore_cleanup_errors=True) as folder,
        Hosts(HOSTS + 1, Path(folder) / "hosts") as hosts,
    ):
        run = BenchRun(launcher, hosts, Path(folder))
        for host in range(1, HOSTS + 1):
            run.join(host)
        yield run


def measure(row: Row, launcher: str, draw: random.Random, within_s: float) -> float:
    """Raises NotMeasured."""
    first = set(range(1, HOSTS + 1))
    with running(launcher) as run:
        before = run.settled(first, steps=SETTLED_STEPS, within_s=START_S)
        time.sleep(draw.uniform(0.0, 0.2))
        at = time.time()
        row.act(run.hosts)
        if not row.faulted:
            run.join(HOSTS + 1)
            run.settled({*first, HOSTS + 1}, after=before, steps=SETTLED_STEPS, within_s=within_s)
            return run.longest_step_s(at, first)
        survivors = first - {*row.faulted}
        key = run.settled(survivors, after=before, steps=1, within_s=within_s)
        return run.next_step_s(at, key, survivors)


def table(found: dict[str, dict[str, Figures]]) -> Table:
    made = Table(title=f"seconds until the survivors' next step, median; {HOSTS} hosts")
    for column in ("", "elastic run", "torchrun", "ratio"):
        made.add_column(column, justify="left" if not column else "right")
    for key, by_launcher in found.items():
        ours, theirs = (by_launcher.get(launcher, Figures()) for launcher in LAUNCHERS)
        both = ours.seconds and theirs.seconds
        ratio = f"{statistics.median(theirs.seconds) / statistics.median(ours.seconds):.1f}" if both else ""
        made.add_row(ROWS[key].what, str(ours), str(theirs), ratio)
    return made


def main() -> None:
    options = arguments()
    if (why := missing()) is not None:
        raise SystemExit(f"no hosts: {why}")
    draw = random.Random(options.seed)
    found: dict[str, dict[str, Figures]] = {}
    loads = [os.getloadavg()[0]]
    with interruptible():
        for key in options.only or ROWS:
            for number in range(1 if options.quick else options.times):
                for launcher in LAUNCHERS:
                    figures = found.setdefault(key, {}).setdefault(launcher, Figures())
                    try:
                        figures.seconds.append(measure(ROWS[key], launcher, draw, options.within))
                    except NotMeasured as failed:
                        figures.failures.append(str(failed))
                    loads.append(os.getloadavg()[0])
                    print(f"{key} {number + 1}, {launcher}: {figures}", file=sys.stderr, flush=True)
    console = Console(width=None if sys.stdout.isatty() else 80)
    console.print(table(found))
    console.print(f"load of the machine {min(loads):.1f} to {max(loads):.1f}; seed {options.seed}")
    if options.json is not None:
        told = {key: {launcher: vars(figures) for launcher, figures in by.items()} for key, by in found.items()}
        options.json.write_text(json.dumps({"rows": told, "loads": loads}, indent=1))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=3, help="that each fault is measured with each launcher")
    parser.add_argument("--quick", action="store_true", help="once")
    parser.add_argument("--only", nargs="+", choices=ROWS, metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--within", type=float, default=120.0, help="seconds until a run counts as stuck")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--json", type=Path, help="write every figure there")
    return parser.parse_args()


if __name__ == "__main__":
    harness.run(main)
