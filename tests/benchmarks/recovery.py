"""How long does a loss cost? Real faults at random moments, timed from the signal to the survivors' next applied step.

    python tests/benchmarks/recovery.py [--quick] [--faults 200] [--only kill …] [--json FILE]

Every time is of a survivor: the last of them to apply a step in the view that follows the fault. "beyond the step" is
that time less the median step before the fault. Beside it, in the same run, the same script under plain torchrun
(TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1: with its defaults half of the jobs that lose a worker do not come back).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from elastic.observe.events import Event, read_events

SCRIPT = Path(__file__).with_name("recovery_script.py")
SETTLED_STEPS = 5
WAIT_S = 90.0


@dataclass
class Times:
    """Seconds, one per fault. beyond: less the median step; back: until the world has its old size again."""

    total: list[float] = field(default_factory=list)
    beyond: list[float] = field(default_factory=list)
    back: list[float] = field(default_factory=list)
    pause: list[float] = field(default_factory=list)
    redone: int = 0
    steps: list[float] = field(default_factory=list)


class Watched:
    """A run whose events are read as they come."""

    def __init__(self, process: subprocess.Popen[bytes], url: Path) -> None:
        self.process = process
        self.url = url
        self._offsets: dict[Path, int] = {}
        self.events: list[Event] = []

    def read(self) -> list[Event]:
        for path in (self.url / "events").glob("*.jsonl"):
            with path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._offsets[path] = self._offsets.get(path, 0) + len(whole)
            self.events += [json.loads(line) for line in whole.splitlines()]
        return self.events

    def wait(self, holds: Callable[[list[Event]], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not holds(self.read()):
            if self.process.poll() is not None:
                raise SystemExit(f"the run ended with {self.process.returncode}; its output is above")
            if time.monotonic() > deadline:
                raise SystemExit(f"nothing happened for {WAIT_S} s")
            time.sleep(0.005)

    def settled(self, workers: int) -> dict[str, list[Event]]:
        """Waits until `workers` workers have applied some steps in one view; their step_applied events of it."""
        found: dict[str, list[Event]] = {}

        def holds(events: list[Event]) -> bool:
            nonlocal found
            applied = [event for event in events[-400 * workers :] if event["event"] == "step_applied"]
            newest = max((place(event) for event in applied), default=None)
            of_view: dict[str, list[Event]] = defaultdict(list)
            for event in applied:
                if place(event) == newest:
                    of_view[event["worker"]].append(event)
            found = dict(of_view)
            return len(found) == workers and all(len(one) >= SETTLED_STEPS for one in found.values())

        self.wait(holds)
        return found


def place(event: Event) -> tuple[int, int]:
    return event.get("claim") or 0, event["generation"]


@contextmanager
def running(launcher: list[str], arguments: list[str]) -> Iterator[Watched]:
    folder = Path(tempfile.mkdtemp(prefix="recovery-"))
    url = folder / "run"
    process = subprocess.Popen(
        [*launcher, str(SCRIPT), str(url), *arguments],
        env={**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
        stdout=subprocess.DEVNULL,
        stderr=(folder / "log").open("wb"),
        start_new_session=True,
    )
    try:
        yield Watched(process, url)
    except SystemExit:
        sys.stderr.write((folder / "log").read_text()[-3000:])
        raise
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(WAIT_S)
        time.sleep(1.0)  # its workers see that it is gone
        shutil.rmtree(folder, ignore_errors=True)


def median_step_s(of_view: dict[str, list[Event]]) -> float:
    times: list[float] = sorted(event["t"] for event in next(iter(of_view.values())))
    return statistics.median(later - earlier for earlier, later in zip(times, times[1:], strict=False))


def faults(
    watched: Watched, workers: int, count: int, draw: random.Random, act: Callable[[int], None], *, joins: bool = True
) -> Times:
    """`act(pid)` on a worker, at a random moment of a step, `count` times."""
    times = Times()
    for _ in range(count):
        before = watched.settled(workers)
        step_s = median_step_s(before)
        time.sleep(draw.uniform(0.0, 2 * step_s))
        victim = draw.choice(sorted(before))
        survivors = sorted(set(before) - {victim})
        old = place(next(iter(before.values()))[0])
        pid = int(victim.rsplit("-", 2)[1])
        at = time.time()
        act(pid)
        first: dict[str, float] = {}

        def went_on(events: list[Event]) -> bool:
            for event in events[-200 * workers :]:
                if event["event"] == "step_applied" and event["t"] > at and place(event) > old:
                    first.setdefault(event["worker"], event["t"])
            return len(first.keys() & set(survivors)) == len(survivors) if joins else len(first) >= workers

        watched.wait(went_on)
        ours = [first[worker] for worker in survivors] if joins else list(first.values())
        times.total.append(max(ours) - at)
        times.beyond.append(max(ours) - at - step_s)
        times.steps.append(step_s)
        if joins:
            back = watched.settled(workers)
            newcomer = next(iter(set(back) - set(survivors)), None)
            if newcomer is not None:
                times.back.append(min(event["t"] for event in back[newcomer]) - at)
                own = sorted(
                    e["t"] for e in watched.events if e["event"] == "step_applied" and e["worker"] == survivors[0]
                )
                joined = min(event["t"] for event in back[survivors[0]])
                times.pause.append(joined - max((t for t in own if t < joined), default=joined) - step_s)
    return times


def shown(name: str, times: Times) -> list[str]:
    def p(values: list[float], q: float) -> str:
        if not values:
            return "-"
        return f"{1e3 * sorted(values)[min(len(values) - 1, int(q * len(values)))]:,.0f}"

    return [
        name,
        str(len(times.total)),
        p(times.steps, 0.5),
        f"{p(times.total, 0.5)} / {p(times.total, 0.99)}",
        f"{p(times.beyond, 0.5)} / {p(times.beyond, 0.99)}",
        f"{p(times.back, 0.5)} / {p(times.back, 0.99)}",
        f"{p(times.pause, 0.5)} / {p(times.pause, 0.99)}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--quick", action="store_true", help="20 faults of each kind, 3 under torchrun")
    parser.add_argument("--only", nargs="*", help="kill, kill-loaders, stop, terminate, torchrun")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    count = 20 if options.quick else options.faults
    draw = random.Random(options.seed)
    print(f"seed {options.seed}")
    elastic = [str(Path(sys.executable).with_name("elastic")), "run", "--standalone"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=1000"]
    found: dict[str, Times] = {}

    def wanted(name: str) -> bool:
        return not options.only or name in options.only

    def kill(pid: int) -> None:
        os.kill(pid, signal.SIGKILL)

    def stop(pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)

    if wanted("kill"):
        with running([*elastic, "--nproc-per-node=4"], []) as watched:
            found["SIGKILL, 4 workers"] = faults(watched, 4, count, draw, kill)
    if wanted("kill-loaders"):
        with running([*elastic, "--nproc-per-node=5"], ["--num-workers=2"]) as watched:
            found["SIGKILL, 5 workers, num_workers=2"] = faults(watched, 5, count, draw, kill)
    if wanted("stop"):
        with running([*elastic, "--nproc-per-node=4"], []) as watched:
            found["SIGSTOP, 4 workers"] = faults(watched, 4, max(3, count // 10), draw, stop)
    if wanted("torchrun"):
        with running([*torchrun, "--nproc-per-node=4"], []) as watched:
            found["plain torchrun, SIGKILL"] = faults(
                watched, 4, 3 if options.quick else max(5, count // 20), draw, kill, joins=False
            )

    table = Table("", "faults", "step", "to the next step, p50 / p99", "beyond the step", "worker back", "join costs")
    for name, times in found.items():
        table.add_row(*shown(name, times))
    Console(width=150).print(table, "milliseconds")
    if options.json is not None:
        options.json.write_text(json.dumps({name: vars(times) for name, times in found.items()}))


if __name__ == "__main__":
    main()
