"""Runs random drills one after the other, as `elastic drill` would: python -m tests.kit.run_drills FOLDER DRILL…

A drill is a seed, or hosts-SEED for one of hosts, or a file as RandomDrill.to_json writes it. Each prints the command
that replays it before it runs, and what became of it. One that fails keeps its folder. Several of these processes may
share FOLDER: the undisturbed run of one set of the script's options is done once for all. Exit status 1 if one failed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import shlex
import shutil
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from elastic.drill.both_runs import BASELINE, CannotRun, Drill
from elastic.drill.cluster import Cluster, Overrides
from elastic.drill.faults import Fault
from elastic.drill.interruption import Interrupted, interruptible
from elastic.drill.plan.drill_plan import DrillPlan
from elastic.drill.plan.options import Options, parse
from elastic.drill.report.findings import Findings
from elastic.drill.watched_run import WatchedRun
from elastic.errors import ConfigError
from elastic.events.event import Event
from tests.kit.random_drills import RandomDrill, random_drill, random_host_drill

PROGRAM = Path(__file__).parent / "programs" / "varied.py"
WITHIN_S, A_JOIN_S = 240, 60  # each run of a drill, which takes some 15 s on a machine that does nothing else


class SharedDrill(Drill):
    """A drill that looks for its undisturbed run in `shared`, and leaves it there for others."""

    def __init__(self, options: Options, console: Console, shared: Path) -> None:
        super().__init__(options, console)
        self._shared = shared

    def _baseline(self) -> tuple[WatchedRun, list[Event]]:
        done, own = self._shared / "done", self.folder
        with _alone(self._shared):
            if not done.exists():
                for name in (BASELINE, f"{BASELINE}-drill"):
                    shutil.rmtree(self._shared / name, ignore_errors=True)
                self.folder = self._shared
                try:
                    baseline, events = super()._baseline()
                finally:
                    self.folder = own
                if not baseline.left:
                    baseline.cluster.close()
                    done.touch()
                return baseline, events
        (own / BASELINE).symlink_to(self._shared / BASELINE)
        url = self._shared / BASELINE
        cluster = Cluster(PROGRAM, url=url, folder=self._shared / f"{BASELINE}-drill", overrides=Overrides(str(url)))
        return WatchedRun(cluster, self._console, None), cluster.events()


def main(argv: Sequence[str]) -> int:
    folder = Path(argv[0]).resolve()
    try:
        with interruptible():
            held = [run(*_drill(which), folder) for which in argv[1:]]
    except Interrupted as interrupted:
        return interrupted.status
    return 0 if all(held) else 1


def _drill(which: str) -> tuple[RandomDrill, str]:
    """Also: the command that runs it again. hosts-7 is the drill of hosts of seed 7."""
    if (seed := which.removeprefix("hosts-")) != which:
        return random_host_drill(int(seed)), f"make soak HOSTS=1 SEED={seed}"
    if which.isdecimal():
        return random_drill(int(which)), f"make soak DRILLS=1 SEED={which}"
    return RandomDrill.from_json(Path(which).read_text()), f"python -m tests.kit.run_drills FOLDER {which}"


def run(drill: RandomDrill, again: str, folder: Path) -> bool:
    """Whether it held."""
    own = folder / f"drill-{drill.seed}"
    shutil.rmtree(own, ignore_errors=True)
    own.mkdir(parents=True)
    plan_file = folder / f"drill-{drill.seed}.json"
    plan = _possible(drill.plan)
    plan_file.write_text(plan.to_json())
    hang = [] if drill.hang_s is None else [f"--hang-limit={drill.hang_s:g}"]
    how = ["--plan", str(plan_file), *hang, str(PROGRAM), "--", "own", *drill.args]
    say(f"seed {drill.seed}  {again}  {shlex.join(['elastic', 'drill', *how])}")
    begun_s = time.monotonic()
    log = own.with_suffix(".log")
    with log.open("w") as written:
        console = Console(file=written, width=120, highlight=False)
        within_s = WITHIN_S + A_JOIN_S * drill.plan.joining()  # a run stands still until the node is there
        options = parse(["--folder", str(own), f"--within={within_s}", *how])
        shared = folder / f"script-{hashlib.sha256(repr(drill.args).encode()).hexdigest()[:8]}"
        shared.mkdir(exist_ok=True)
        try:
            found = SharedDrill(options, console, shared).run()
            missed = bool(plan.faults) and not found.struck  # then it has shown nothing
            broken, words = bool(found.broken) or missed, _words(found)
        except CannotRun as cannot:
            broken, words = True, f"could not be run: {cannot}"
        except Exception:
            broken, words = True, traceback.format_exc()
    if broken:
        say(log.read_text(), f"seed {drill.seed}  BROKEN  {words}", f"  kept {own}", sep="\n")
    else:
        say(f"seed {drill.seed}  held  {words}  {time.monotonic() - begun_s:.0f} s")
        shutil.rmtree(own, ignore_errors=True)
        log.unlink()
        plan_file.unlink()
    return not broken


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
def _alone(folder: Path) -> Iterator[None]:
    """Of all processes that share it."""
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
