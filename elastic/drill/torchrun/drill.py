"""A drill of a script for torchrun: it runs without faults and with them, and a table says what they did to it.

    each run: `elastic run` of the script, watched (watched.py, progress.py)  ->  notes  ->  steps (lineage.py)
      ->  rows (table.py)

Faults strike from outside, once the worker with that rank has done so many steps in all, or as a line is printed.

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

from rich.console import Console
from rich.markup import escape

from elastic.drill.cluster import Cluster
from elastic.drill.faults import Fault, Join, Kill, KillAll, Plan, Stop
from elastic.drill.faults.registry import NAMED, OF_SCRIPTS
from elastic.drill.faults.signals import KillAgent, LeaveNode
from elastic.drill.interruption import undisturbed_by_signals
from elastic.drill.machine import processes
from elastic.drill.plan.drill_plan import DrillPlan
from elastic.drill.plan.options import Options
from elastic.drill.report.story import of_plan
from elastic.drill.torchrun.lineage import lineage, worlds
from elastic.drill.torchrun.progress import Watch, only_in, points
from elastic.drill.torchrun.table import DrillTable, Run
from elastic.errors import ConfigError
from elastic.events.words import counted
from elastic_checkpoint import linux

RUN = "{run}"
_UNDISTURBED = "undisturbed"
_SHOWN = 3000  # characters of a script's output where it failed
_METRIC = re.compile(
    r"\b(\w*(?:loss|acc|accuracy|perplexity|score|f1|auc|error))\b['\"]?\s*[:=]?\s*['\"]?(-?\d+(?:\.\d+)?(?:e-?\d+)?)",
    re.IGNORECASE,
)


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
            baseline = self._one(folder / _UNDISTURBED, options.asked, ())
            if baseline.status:
                raise ConfigError(f"the run without faults: it failed\n{baseline.output[-_SHOWN:]}")
            plan = self._plan(len(baseline.steps.steps))
            self._say("\n[bold]The plan[/bold]")
            for line in of_plan(plan.faults):
                self._say(escape(line))
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
        kinds = tuple(name for name in self._options.kinds if issubclass(NAMED[name].kind, OF_SCRIPTS))
        named = self._options.asked.faults
        if not steps and (kinds or any(fault.when.output is None for fault in named)):
            raise ConfigError(
                "no optimizer of torch's took a step, so that none can be named\n"
                "  state  the run without faults came to its end; nothing was struck\n"
                "  next   name lines of its output: --kill '1@output=TEXT'"
            )
        return replace(self._options, kinds=kinds).plan(steps)

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
        watch = Watch(own)
        striking = _Striking(cluster, faults, notes, watch)
        output = ""
        while True:
            ended = cluster.wait(within_s=options.within_s, watching=striking.look)
            watch.look(cluster.output_file)
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
        undisturbed = folder.parent / _UNDISTURBED / "run"
        return Run(
            status=status,
            steps=lineage(found),
            starts=[world.t for world in found[1:]],
            sizes=[world.size for world in found],
            first=first,
            metrics=metrics,
            watch=watch,
            points=points(own),
            left_behind=ended.left_behind,
            only_here=only_in(own, undisturbed),
            output=output,
        )

    def _show(self, baseline: Run, faulted: Run) -> bool:
        """Show what was found; return whether something of it is broken."""
        found = DrillTable(baseline, faulted)
        self._console.print(found.table)
        if faulted.steps.astray:
            starts = counted(faulted.steps.astray, "start")
            self._say(f"  {starts} began with weights that no step had left: they are no resume")
        if faulted.status:
            self._say(escape(faulted.output[-_SHOWN:]))
        return found.broken

    def _say(self, line: str) -> None:
        self._console.print(line, soft_wrap=True)


class _Striking:
    """Strikes, from outside, the faults whose time has come."""

    def __init__(self, cluster: Cluster, faults: Sequence[Fault], notes: Path, watch: Watch) -> None:
        self._cluster = cluster
        self._faults = faults
        self._notes = notes
        self._watch = watch
        self._read: dict[Path, _Noted] = {}
        self._struck_at: dict[str, int] = {}  # a text -> so many lines there were when a fault struck at it
        self.lost_all = False

    def look(self) -> None:
        """Strike the first fault at a step that has not happened, and those at a line, if their time has come."""
        self._watch.look(self._cluster.output_file)
        happened = self._cluster.drill.happened()
        due = [index for index in range(len(self._faults)) if index not in happened]
        if not due:
            return
        for path in self._notes.glob("*.jsonl"):
            self._read.setdefault(path, _Noted()).read(path)
        at_steps = [index for index in due if self._faults[index].when.output is None]
        at_lines = [index for index in due if self._faults[index].when.output is not None]
        for index in [*at_steps[:1], *at_lines]:
            self._strike_if_due(index)

    def _strike_if_due(self, index: int) -> None:
        fault = self._faults[index]
        text = fault.when.output
        of_rank = [one for one in self._read.values() if one.who.get("rank") == fault.worker]
        if not of_rank:
            return
        if text is None and sum(one.steps for one in of_rank) <= (fault.when.step or 0):
            return
        if text is not None and not self._watch.says(text, since=self._struck_at.get(text, 0)):
            return
        pid = max(of_rank, key=lambda one: one.who["t"]).who["pid"]
        agent = (stat := linux.process_stat(pid)) and stat.parent
        if agent and self._cluster.drill.claim(index, 0):
            if text is not None:
                self._struck_at[text] = len(self._watch.lines)
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
