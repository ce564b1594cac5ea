"""Runs random drills one after the other, as `elastic drill` would: python -m tests.kit.run_drills FOLDER DRILL…

A drill is a seed, or hosts-SEED for one of hosts, or TARGET-SEED (target_drills.py), or a file as RandomDrill.to_json
writes it. Each prints the command that replays it before it runs, and what became of it. One that fails keeps its
folder. Several of these processes may share FOLDER: the undisturbed run of one set of the script's options is done once
for all. Where the script prints what its worker holds and knows at the end ("took part: ..."), that must be what the
undisturbed worker printed, on every worker. Exit status 1 if one failed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import re
import shlex
import shutil
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from elastic.drill.both_runs import BASELINE, FAULTED, CannotRun
from elastic.drill.cluster import Cluster, Overrides
from elastic.drill.faults import Fault
from elastic.drill.interruption import Interrupted, interruptible
from elastic.drill.judge.verdict import Violation
from elastic.drill.plan.drill_plan import DrillPlan
from elastic.drill.plan.options import Options, parse
from elastic.drill.report.findings import Findings
from elastic.drill.watched_run import WatchedRun
from elastic.errors import ConfigError
from elastic.events.event import Event
from tests.kit.forked_drill import ForkedDrill
from tests.kit.random_drills import RandomDrill, random_drill, random_host_drill
from tests.kit.target_drills import TARGETS, target_drill

PROGRAMS = Path(__file__).parent / "programs"
OWN = "own"
WITHIN_S, A_JOIN_S = 240, 60  # each run of a drill, which takes some 15 s on a machine that does nothing else


class SharedDrill(ForkedDrill):
    """A drill that looks for its undisturbed run in `shared`, and leaves it there for others.

    Beside OWN, which the script takes for its run's URL, it may write files, whose names may be part of its state: they
    are the same for all runs of one script, of which one goes on at a time.
    """

    def __init__(self, options: Options, console: Console, shared: Path) -> None:
        super().__init__(options, console)
        self._shared = shared

    def _baseline(self) -> tuple[WatchedRun, list[Event]]:
        done, own = self._shared / "done", self.folder
        with _alone(self._shared, "lock"):
            if not done.exists():
                for name in (BASELINE, f"{BASELINE}-drill"):
                    shutil.rmtree(self._shared / name, ignore_errors=True)
                self.folder = self._shared
                try:
                    baseline, events = super()._baseline()
                finally:
                    self.folder = own
                if not baseline.left_behind:
                    baseline.cluster.close()
                    done.touch()
                return baseline, events
        (own / BASELINE).symlink_to(self._shared / BASELINE)
        url = self._shared / BASELINE
        cluster = Cluster(
            self._options.script, url=url, folder=self._shared / f"{BASELINE}-drill", overrides=Overrides(str(url))
        )
        return WatchedRun(cluster, self._console, None), cluster.events()

    def _cluster(self, name: str, **of_the_run: Any) -> WatchedRun:
        for written in self._shared.glob(f"{OWN}-*"):
            shutil.rmtree(written)
        return super()._cluster(name, **of_the_run)

    def _both_runs(self) -> Findings:
        with _alone(self._shared, "running"):
            found = super()._both_runs()
        found_apart = apart(self._shared / f"{BASELINE}-drill", self.folder / f"{FAULTED}-drill")
        return replace(found, faulted=replace(found.faulted, violations=(*found.faulted.violations, *found_apart)))


def main(argv: Sequence[str]) -> int:
    folder = Path(argv[0]).resolve()
    try:
        with interruptible():
            held = [run_one(which, folder) for which in argv[1:]]
    except Interrupted as interrupted:
        return interrupted.status
    return 0 if all(held) else 1


def run_one(which: str, folder: Path) -> bool:
    """Whether it held. folder: absolute"""
    return run(*_drill(which), folder)


def _drill(which: str) -> tuple[RandomDrill, str]:
    """Also: the command that runs it again. hosts-7 is the drill of hosts of seed 7, fabric-7 that of Fabric."""
    if (seed := which.removeprefix("hosts-")) != which:
        return random_host_drill(int(seed)), f"make soak HOSTS=1 SEED={seed}"
    if which.isdecimal():
        return random_drill(int(which)), f"make soak DRILLS=1 SEED={which}"
    again = f"python -m tests.kit.run_drills FOLDER {which}"
    target, _, seed = which.rpartition("-")
    if target in TARGETS:
        return target_drill(target, int(seed)), again
    return RandomDrill.from_json(Path(which).read_text()), again


def run(drill: RandomDrill, again: str, folder: Path) -> bool:
    """Whether it held."""
    name = f"{Path(drill.program).stem}-{drill.seed}"
    own = folder / f"drill-{name}"
    shutil.rmtree(own, ignore_errors=True)
    own.mkdir(parents=True)
    plan_file = folder / f"drill-{name}.json"
    plan = _possible(drill.plan)
    plan_file.write_text(plan.to_json())
    hang = [] if drill.hang_s is None else [f"--hang-limit={drill.hang_s:g}"]
    shared = folder / f"script-{hashlib.sha256(repr((drill.program, drill.args)).encode()).hexdigest()[:8]}"
    shared.mkdir(exist_ok=True)
    how = ["--plan", str(plan_file), *hang, str(PROGRAMS / drill.program), "--", str(shared / OWN), *drill.args]
    say(f"{name}  {again}  {shlex.join(['elastic', 'drill', *how])}")
    begun_s = time.monotonic()
    log = own.with_suffix(".log")
    with log.open("w") as written:
        console = Console(file=written, width=120, highlight=False)
        within_s = WITHIN_S + A_JOIN_S * drill.plan.joining()  # a run stands still until the node is there
        options = parse(["--folder", str(own), f"--within={within_s}", *how])
        try:
            found = SharedDrill(options, console, shared).run()
            missed = bool(plan.faults) and not found.struck  # then it has shown nothing
            broken, words = bool(found.broken) or missed, _words(found)
        except CannotRun as cannot:
            broken, words = True, f"could not be run: {cannot}"
        except Exception:
            broken, words = True, traceback.format_exc()
    if broken:
        say(log.read_text(), f"{name}  BROKEN  {words}", f"  kept {own}", sep="\n")
    else:
        say(f"{name}  held  {words}  {time.monotonic() - begun_s:.0f} s")
        shutil.rmtree(own, ignore_errors=True)
        log.unlink()
        plan_file.unlink()
    return not broken


def apart(undisturbed: Path, faulted: Path) -> list[Violation]:
    """What workers printed of their end that is not what the undisturbed one did. The folders are the drills'."""
    alone = _told(undisturbed)
    told = _told(faulted)
    if not alone:
        return []
    if not told:
        return [Violation("final", f"no worker said what it holds at the end; the undisturbed one: {alone}")]
    return [Violation("final", f"a worker ended with {one}, the undisturbed one with {alone}") for one in told - alone]


def _told(folder: Path) -> set[str]:
    """By the workers of the last launch."""
    last = max(folder.glob("output-*.txt"), key=lambda path: int(path.stem.rpartition("-")[2]))
    return set(re.findall(r"took part: ([0-9a-f]{64}\b.*)", last.read_text(errors="replace")))


def say(*lines: str, sep: str = "\n") -> None:
    print(*lines, sep=sep, flush=True)


def _words(found: Findings) -> str:
    never = f", never struck: {'; '.join(found.never)}" if found.never else ""
    sizes = " ".join(map(str, found.faulted.world_sizes))
    broken = " ".join(sorted({violation.invariant for _, violation in found.broken}))
    return f"{broken} {len(found.struck)} faults, views of {sizes}, {found.faulted.redone} redone{never}".strip()


def _possible(plan: DrillPlan) -> DrillPlan:
    """Without the faults that cannot strike on this machine: only root makes broken disks."""

    def can_strike(fault: Fault) -> bool:
        with contextlib.suppress(ConfigError):
            fault.check_machine()
            return True
        return False

    return replace(plan, faults=tuple(filter(can_strike, plan.faults)))


@contextlib.contextmanager
def _alone(folder: Path, lock_name: str) -> Iterator[None]:
    """Of all processes that share it."""
    with (folder / lock_name).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
