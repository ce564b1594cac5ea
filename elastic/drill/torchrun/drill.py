"""A drill of a script for torchrun: it runs without faults and with them, and a table says what they did to it.

    each run: `elastic run` of the script, watched (watched.py)  ->  notes  ->  steps (lineage.py)  ->  a row of each

Faults strike from outside, once the worker with that rank has done so many steps in all.

Promises  nothing of the drill outlives it, but for what the script itself writes outside of its folder.
Leaves    how a script keeps the two runs apart: each run's folder stands for {run} in its arguments. Where the second
          goes on from the first one's weights the drill says so, and nothing else.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from elastic.drill.cluster import Cluster
from elastic.drill.faults import Fault, Join, Kill, KillAll, Plan, Stop
from elastic.drill.faults.registry import NAMED
from elastic.drill.faults.signals import KillAgent, LeaveNode
from elastic.drill.interruption import undisturbed_by_signals
from elastic.drill.machine import processes
from elastic.drill.plan.drill_plan import DrillPlan
from elastic.drill.plan.options import Options
from elastic.drill.report.story import of_plan
from elastic.drill.torchrun.lineage import Lineage, lineage, lost_and_repeated, worlds
from elastic.errors import ConfigError
from elastic.events.words import counted, seconds
from elastic_checkpoint import linux

RUN = "{run}"
_STRIKES = (Kill, Stop, KillAll, KillAgent, LeaveNode, Join)
_SHOWN = 3000  # characters of a script's output where it failed
_METRIC = re.compile(
    r"\b(\w*(?:loss|acc|accuracy|perplexity|score|f1|auc|error))\b['\"]?\s*[:=]?\s*['\"]?(-?\d+(?:\.\d+)?(?:e-?\d+)?)",
    re.IGNORECASE,
)
_LIVE = "Run: the others go on, in their processes"
_VAIN = "Run: the current step; Preemption: none after a notice"
_DATA = "ElasticLoader or Run: none lost or repeated"
_BITS = "Run: the same bits"


@dataclass(frozen=True)
class Run:
    """What became of one run."""

    status: int
    steps: Lineage
    first: tuple[int, int] | None  # weights
    metrics: dict[str, str]
    left_behind: tuple[str, ...]
    output: str


class TorchrunDrill:
    """One drill of a script for torchrun. `run` returns the command's exit status."""

    def __init__(self, options: Options, console: Console) -> None:
        self._options = options
        self._console = console
        self._clusters: list[Cluster] = []

    def run(self) -> int:
        """Run the script twice, and show what was found. Raises ConfigError where the drill cannot be run as asked."""
        options = self._options
        folder = options.folder.resolve() if options.folder else Path(tempfile.mkdtemp(prefix="elastic-drill-"))
        folder.mkdir(parents=True, exist_ok=True)
        status = 2
        try:
            self._say(f"\n[bold]Without faults[/bold], {counted(options.asked.workers, 'worker')}")
            baseline = self._one(folder / "undisturbed", options.asked, ())
            if baseline.status or not baseline.steps.steps:
                why = "it failed" if baseline.status else "no optimizer of torch's took a step"
                raise ConfigError(f"the run without faults: {why}\n{baseline.output[-_SHOWN:]}")
            plan = self._plan(len(baseline.steps.steps))
            self._say("\n[bold]The plan[/bold]")
            for line in of_plan(plan.faults):
                self._say(line)
            self._say(f"\n[bold]With faults[/bold], {counted(plan.workers, 'worker')}")
            faulted = self._one(folder / "disturbed", plan, plan.faults)
            if faulted.first != baseline.first:
                raise ConfigError(
                    "the run with faults began with other weights than the one without\n"
                    "  state  nothing is judged: it went on from what the first had saved, or the script sets no seed\n"
                    f"  next   give each run a folder of its own by {RUN} in the script's arguments: -- --output {RUN}"
                )
            never = sorted(set(range(len(plan.faults))) - self._clusters[-1].drill.happened().keys())
            broken = self._show(baseline, faulted)
            for index in never:
                self._say(f"  never struck: {plan.faults[index].in_words()}")
            status = 1 if broken else 2 if never else 0
            return status
        finally:
            with undisturbed_by_signals():
                for cluster in self._clusters:
                    cluster.close()
                if options.folder is None and not options.keep and status == 0:
                    shutil.rmtree(folder, ignore_errors=True)
                elif options.folder is None:
                    self._say(f"kept    {escape(str(folder))}")

    def _plan(self, steps: int) -> DrillPlan:
        """Return the plan for a script of so many steps. Raises ConfigError for faults that only a run can meet."""
        kinds = tuple(name for name in self._options.kinds if issubclass(NAMED[name].kind, _STRIKES))
        plan = replace(self._options, kinds=kinds).plan(steps)
        unfit = [fault for fault in plan.faults if not isinstance(fault, _STRIKES) or fault.when.step is None]
        if unfit:
            raise ConfigError(
                f"{unfit[0].in_words()}: that strikes a script in an elastic.Run alone; here are --kill, --stop, "
                "--lose-all, --kill-agent, --leave-node and --join, each at a step"
            )
        return plan

    def _one(self, folder: Path, plan: DrillPlan, faults: Sequence[Fault]) -> Run:
        """Run the script once, with these faults."""
        options = self._options
        own, notes = folder / "run", folder / "notes"
        for made in (own, notes):
            made.mkdir(parents=True)
        script = [*["-m"] * options.module, options.script if options.module else os.path.abspath(options.script)]
        joins = sum(isinstance(fault, Join) for fault in faults)
        cluster = Cluster(
            "elastic.drill.torchrun.watched",
            [str(notes), *script, *(arg.replace(RUN, str(own)) for arg in options.args)],
            url=folder / "none",
            folder=folder / "drill",
            workers=plan.workers,
            launcher="elastic",
            nodes=plan.nodes,
            nodes_max=plan.nodes + joins + 1 if plan.nodes > 1 or joins else None,
            restarts=1 + len(plan.faults),
            options=["--no-status"],
            plan=Plan(tuple(faults)),
            observed=False,
            module=True,
        )
        self._clusters.append(cluster)
        striking = _Striking(cluster, faults, notes)
        output = ""
        while True:
            ended = cluster.wait(within_s=options.within_s, watching=striking.look)
            output += cluster.output()
            if not striking.lost_all:
                break
            striking.lost_all = False
            cluster.start(workers=plan.resume_workers, nodes=plan.nodes if plan.resume_workers % plan.nodes == 0 else 1)
        found = worlds(_notes(notes))
        first = next((world.begins for world in found if world.begins is not None), None)
        metrics = dict(_METRIC.findall(output))
        taken = {-signal.SIGKILL} if any(isinstance(fault, KillAgent) for fault in faults) else set()
        status = next((code for code in cluster.exit_codes().values() if code and code not in taken), 0)
        return Run(status, lineage(found), first, metrics, ended.left_behind, output)

    def _show(self, baseline: Run, faulted: Run) -> bool:
        """Show what was found; return whether something of it is broken."""
        table = Table(box=box.SIMPLE_HEAD, show_edge=False)
        for name in ("", "without faults", "with faults", "what would change it"):
            table.add_column(name, overflow="fold")
        steps, restarts = faulted.steps, faulted.steps.restarts
        again = f"started again {counted(len(restarts), 'time')}" if restarts else "never started again"
        table.add_row("comes to its end", "yes", f"{'no' if faulted.status else 'yes'}, {again}", _LIVE)
        size = str(self._options.asked.workers)
        table.add_row("workers", size, " → ".join([size, *(str(restart.size) for restart in restarts)]), "")
        table.add_row("steps in the result", str(len(baseline.steps.steps)), str(len(steps.steps)), "")
        redone = sum(restart.redone for restart in restarts)
        table.add_row("steps done once more", "0", str(redone), _VAIN)
        table.add_row("until the next step", "", _times([one.after_s for one in restarts]), "Run: about 0.1 s")
        table.add_row("until a new one", "", _times([one.beyond_s for one in restarts]), "the same")
        broken = bool(faulted.status or faulted.left_behind)
        before, after = baseline.steps.read(), steps.read()
        for data in sorted({*before, *after}):
            lost, repeated = lost_and_repeated(before.get(data, {}), after.get(data, {}))  # type: ignore[arg-type]
            broken |= bool(lost or repeated)
            said = f"{lost} lost ({_of_an_epoch(lost, data)}), {repeated} repeated" if lost or repeated else "the same"
            table.add_row(f"examples of {data}", str(before[data].total() if data in before else 0), said, _DATA)
        for name in baseline.metrics:
            is_same = faulted.metrics.get(name) == baseline.metrics[name]
            table.add_row(f"{name}, at the end", baseline.metrics[name], faulted.metrics.get(name, "none"),
                          "" if is_same else _BITS)  # fmt: skip
        left = "; ".join(faulted.left_behind) or "nothing"
        table.add_row("left behind", "; ".join(baseline.left_behind) or "nothing", left, "")
        self._console.print(table)
        if steps.astray:
            self._say(
                f"  {counted(steps.astray, 'start')} began with weights that no step had left: they are no resume"
            )
        if faulted.status:
            self._say(faulted.output[-_SHOWN:])
        return broken

    def _say(self, line: str) -> None:
        self._console.print(line, soft_wrap=True)


class _Striking:
    """Strikes, from outside, the faults whose time has come."""

    def __init__(self, cluster: Cluster, faults: Sequence[Fault], notes: Path) -> None:
        self._cluster = cluster
        self._faults = faults
        self._notes = notes
        self._read: dict[Path, _Noted] = {}
        self.lost_all = False

    def look(self) -> None:
        """Strike the first fault that has not happened, if so many steps are done."""
        happened = self._cluster.drill.happened()
        index = next((at for at in range(len(self._faults)) if at not in happened), None)
        if index is None:
            return
        fault = self._faults[index]
        for path in self._notes.glob("*.jsonl"):
            self._read.setdefault(path, _Noted()).read(path)
        of_rank = [one for one in self._read.values() if one.who.get("rank") == fault.worker]
        if not of_rank or sum(one.steps for one in of_rank) <= (fault.when.step or 0):
            return
        pid = max(of_rank, key=lambda one: one.who["t"]).who["pid"]
        agent = (stat := linux.process_stat(pid)) and stat.parent
        if agent and self._cluster.drill.claim(index, 0):
            self._strike(fault, pid, agent)

    def _strike(self, fault: Fault, pid: int, agent: int) -> None:
        match fault:
            case KillAll():
                self.lost_all = True
                processes.kill_marked(self._cluster.folder)
            case Join():
                pass  # the cluster starts that node, since the fault has happened
            case Stop():
                linux.send_signal(pid, signal.SIGSTOP)
            case Kill():
                linux.send_signal(pid, signal.SIGKILL)
            case KillAgent():
                linux.send_signal(agent, signal.SIGKILL)
            case LeaveNode():
                linux.send_signal(agent, signal.SIGTERM)


@dataclass
class _Noted:
    """What one process has noted so far: who it is, and how many steps. Only what is new of its file is read."""

    who: dict[str, Any] = field(default_factory=dict)
    steps: int = 0
    _offset: int = 0

    def read(self, path: Path) -> None:
        """Read the lines that have come since the last time, as far as they are whole."""
        with path.open("rb") as file:
            file.seek(self._offset)
            found = file.read()
        whole = found[: found.rfind(b"\n") + 1]
        self._offset += len(whole)
        for note in map(json.loads, whole.splitlines()):
            self.who = self.who or note
            self.steps += "step" in note


def _notes(folder: Path) -> list[list[dict[str, Any]]]:
    """Return the notes of each process, as far as their lines are whole."""
    found = []
    for path in folder.glob("*.jsonl"):
        lines = path.read_text().split("\n")[:-1]
        if lines:
            found.append([json.loads(line) for line in lines])
    return found


def _times(found: Sequence[float | None]) -> str:
    return ", ".join("never" if one is None else seconds(one) for one in found) or "-"


def _of_an_epoch(count: int, data: str) -> str:
    """Return a part of a data set in words; data: as watched.py names it."""
    return f"{count / max(1, int(data.rpartition(' ')[2])):.0%} of an epoch"
