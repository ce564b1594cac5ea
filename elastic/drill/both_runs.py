"""Both runs of a drill, one after the other, and what was found.

    the run without faults: how many steps are there?  ->  the plan, printed and saved
      ->  the run with faults, launched again where all was lost  ->  findings  ->  shown; storage removed or kept

Promises  nothing of a drill outlives it: whatever happens to it, its processes are killed before it ends, and its
          storage is removed unless the drill failed or it was asked to keep it.
          Every wait has a deadline.
Leaves    what strikes to the plan, how to cluster.py and injector.py, whether promises held to the judge.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from elastic.drill.cluster import Cluster, DrillTimeout
from elastic.drill.end import restart_reason, unexplained_status
from elastic.drill.environment import Overrides
from elastic.drill.faults.registry import KINDS
from elastic.drill.hosts.hosts import ORPHANS_S, Hosts
from elastic.drill.hosts.on_hosts import OnHosts
from elastic.drill.inject.bad_storage import RECORD, behind_faults, summary, torn
from elastic.drill.interruption import undisturbed_by_signals
from elastic.drill.judge.misled import misled, unnamed
from elastic.drill.judge.review import end_violations, final_states, review
from elastic.drill.judge.verdict import Verdict, Violation
from elastic.drill.location import Location
from elastic.drill.machine.holdings import leaks
from elastic.drill.machine.hosting import NodeHosting, ThisMachine
from elastic.drill.plan import saves
from elastic.drill.plan.drill_plan import DrillPlan, StorageFaults
from elastic.drill.plan.options import Options
from elastic.drill.report.costs import costs
from elastic.drill.report.diagnosis import diagnose
from elastic.drill.report.findings import Findings
from elastic.drill.report.show import show
from elastic.drill.report.story import of_plan
from elastic.drill.watched_run import WatchedRun
from elastic.errors import CollectiveMismatch, ConfigError, IdentityMismatch, StepError
from elastic.events.event import Event
from elastic.events.words import counted
from elastic.membership.worker.live import ORPHAN_S

BASELINE, FAULTED = "undisturbed", "disturbed"
_JOINS_AWAIT_S = 60.0
_REFUSALS = (StepError.__name__, CollectiveMismatch.__name__, IdentityMismatch.__name__)
_OUTPUT_SHOWN = 3000  # characters of a script's output where it failed


class CannotRun(Exception):
    """The drill could not be run as asked; nothing is said about the script's promises."""


class Refused(CannotRun):
    """The run itself has refused the script, by name, before there were any faults."""


class Drill:
    """One drill of a script: its two runs, and what they show.

    folder    the drill's, made by `run` and removed by it unless it is worth keeping
    location  where both runs live: in the folder, or elsewhere
    this_machine, hosts  what makes the nodes of a run
    """

    folder: Path
    this_machine: Callable[[], NodeHosting] = ThisMachine
    hosts: type[Hosts] = Hosts

    def __init__(self, options: Options, console: Console) -> None:
        self._options = options
        self.location = Location(options.storage_root)
        self._console = console
        self._clusters: list[Cluster] = []
        self._begun_s = time.monotonic()

    def run(self) -> Findings:
        """Run the script without faults and with them; show and return the findings. Raises CannotRun, ConfigError."""
        options = self._options
        self.location.check()
        worth_keeping = options.keep
        if options.folder is not None:
            self.folder = options.folder.resolve()
            self.folder.mkdir(parents=True, exist_ok=True)
        else:
            self.folder = Path(tempfile.mkdtemp(prefix="elastic-drill-"))
        try:
            self._headline()
            try:
                found = self._both_runs()
            except (CannotRun, ConfigError):
                raise
            except Exception:  # a bug in the drill: what it was about is needed to find it
                worth_keeping = True
                self._say(f"kept    {escape(str(self.folder))}")
                raise
            worth_keeping |= bool(found.broken or found.never)
            elsewhere = self.location.elsewhere
            found = replace(found, kept=self.folder if worth_keeping else None, elsewhere=elsewhere)
            show(self._console, found)
            return found
        finally:
            with undisturbed_by_signals():
                self._clear_away(keep=worth_keeping)

    def _headline(self) -> None:
        options, asked = self._options, self._options.asked
        script = " ".join([*["-m"] * options.module, options.script, *options.args])
        nodes = _on_nodes(asked)
        seed = f", seed {asked.seed}" if asked.seed is not None else ""
        replicas = f" in replicas of {asked.replica_size}" if asked.replica_size > 1 else ""
        who = f"{counted(asked.workers, 'worker')}{replicas}{nodes}{seed}"
        self._say(f"\n[bold]Drill[/bold] of {escape(script)}: {who}")

    def _both_runs(self) -> Findings:
        """Run the script without faults, then with the plan's, and return what the judge finds in both."""
        options = self._options
        baseline, baseline_events = self._baseline()
        steps = next(event["step"] for event in reversed(baseline_events) if event["event"] == "finished")
        saved = [event["step"] for event in baseline_events if event["event"] == "saved"]
        plan = options.plan(steps, _step_s(baseline_events))
        plan = saves.with_saves(plan, steps=steps, saved=saved) if options.saves else plan
        plan_file = self.folder / "plan.json"
        plan_file.write_text(plan.to_json())
        self._show_plan(plan)
        faulted, faulted_events, extra = self._faulted(plan, total=steps)

        sizes: dict[str, Any] = next(event["config"] for event in baseline_events if event["event"] == "run_started")
        exact = sizes["mode"] == "exact"
        beside = end_violations(left_behind=baseline.left_behind)
        at: dict[str, Any] = {"storage_options": self.location.options}
        baseline_verdict = review(baseline.url, baseline_events, steps=steps, redone_max=0, **at)
        baseline_verdict = replace(baseline_verdict, violations=(*baseline_verdict.violations, *beside))
        faulted_verdict, spoilt = self._review_faulted(plan, faulted, faulted_events, baseline_events, steps)
        if exact and not faulted_verdict.violations:
            extra += final_states(baseline.url, faulted.url, but=spoilt, **at)
        extra += leaks(
            faulted_events,
            baseline_events,
            store=self.location.elsewhere is not None,
            misled=misled(faulted_events, plan.faults),
        )
        extra += unnamed(faulted_events, plan.faults)
        faulted_verdict = replace(faulted_verdict, violations=(*extra, *faulted_verdict.violations))
        never = [plan.faults[at] for at in faulted.cluster.not_reached()]
        broken = bool(baseline_verdict.violations or faulted_verdict.violations)
        return Findings(
            plan=plan,
            baseline=baseline_verdict,
            faulted=faulted_verdict,
            events=(baseline_events, faulted_events),
            struck=costs(faulted_events, plan.faults),
            never=[f"step {one.when.step}: {one.in_words()}" for one in never],
            storage=summary(self.folder / RECORD) if plan.storage.any else "",
            checkpoints=baseline_verdict.checkpoints + faulted_verdict.checkpoints,
            sizes=(sizes["dataset_length"], sizes["batch_size"]),
            exact=exact,
            diagnoses=diagnose(baseline_events, faulted_events, exact=exact) if broken else [],
            replay=options.replay(plan_file),
            kept=None,
            seconds=time.monotonic() - self._begun_s,
        )

    def _show_plan(self, plan: DrillPlan) -> None:
        """Print the plan: its seed, each fault, what storage suffers, and how often the run saves if not as it says."""
        self._say(f"\n[bold]The plan[/bold]{'' if plan.seed is None else f' (seed {plan.seed})'}")
        for line in of_plan(plan.faults):
            self._say(line)
        if plan.storage.any:
            self._say(f"      {plan.storage}")
        if (cadence := saves.in_words(plan)) is not None:
            asked = self._options.asked.save_every is not None
            why = "" if asked else ": the script would have saved nothing before the loss of all"
            self._say(f"      the run saves {cadence}{why}")

    def _review_faulted(
        self, plan: DrillPlan, run: WatchedRun, events: list[Event], baseline_events: list[Event], steps: int
    ) -> tuple[Verdict, set[str]]:
        """Return the verdict on the run with faults, and the names of checkpoints that they damaged on purpose."""
        torn_manifests = torn(self.folder / RECORD)
        taken = run.lost_max()
        spoilt = set(torn_manifests).union(*(kind.spoilt(run.cluster.drill) for kind in KINDS.values()))
        verdict = review(
            run.url,
            events,
            steps=steps,
            reference=baseline_events,
            lost_max=None if taken is None else taken + len(torn_manifests),  # who saves last what is torn, ends
            may_fall_back=bool(spoilt),
            one_launch=plan.hosts and run.launches == 1,
            spoilt=spoilt,
            misled=misled(events, plan.faults),
            storage_options=self.location.options,
        )
        return verdict, spoilt

    def _baseline(self) -> tuple[WatchedRun, list[Event]]:
        """Run the script without faults to its end; return the run and its events. Raises CannotRun, Refused."""
        options = self._options
        workers = options.undisturbed_workers
        self._say(f"\n[bold]Without faults[/bold], {counted(workers, 'worker')}")
        cluster = self._cluster(BASELINE, workers=workers)
        try:
            with cluster.story(None) as story:
                code = cluster.wait(story, within_s=options.within_s)
        except DrillTimeout as late:
            raise CannotRun(f"the run without faults: {late}") from late
        events = cluster.cluster.events()
        if code or not any(event["event"] == "finished" for event in events):
            refusal = next((event["error"] for event in events if event["event"] == "error"), "")
            if refusal.startswith(_REFUSALS):
                raise Refused(refusal)
            if not any(event["event"] == "run_started" for event in events):
                why = (
                    "the script never came to `with elastic.Run(…)`, or failed before it; for one that forms torch's "
                    "group by itself there is --torchrun"
                )
            else:
                why = "the script did not finish its training"
            raise CannotRun(
                f"the run without faults ended with status {code}: {why}\n{cluster.cluster.output()[-_OUTPUT_SHOWN:]}"
            )
        return cluster, events

    def _faulted(self, plan: DrillPlan, *, total: int) -> tuple[WatchedRun, list[Event], list[Violation]]:
        """Run the script with faults, launched again when they end it. Return also violations that no event shows."""
        self._say(f"\n[bold]With faults[/bold], {counted(plan.workers, 'worker')}{_on_nodes(plan)}")
        cluster = self._cluster(FAULTED, workers=plan.workers, plan=plan)
        late: str | None = None
        known, code = 0, 0
        try:
            with cluster.story(total) as story:
                while True:
                    cluster.wait(story, within_s=self._options.within_s)
                    events = cluster.cluster.events()
                    launched, known = events[known:], len(events)
                    code = unexplained_status(cluster.cluster.exit_codes(), launched, plan)
                    again = restart_reason(launched, plan, code, cluster.overdue)
                    if again is None or cluster.launches > len(plan.faults):
                        break
                    workers = plan.resume_workers if again == "lost" else plan.workers
                    nodes_now = plan.nodes if workers % (plan.nodes * plan.replica_size) == 0 else 1
                    self._say(f"            started again with {counted(workers, 'worker')}")
                    cluster.cluster.start(workers=workers, nodes=nodes_now)
        except DrillTimeout as timeout:
            late = str(timeout)
        output = cluster.cluster.output()
        beside = end_violations(exit_code=code, output=output, left_behind=cluster.left_behind, late=late)
        return cluster, cluster.cluster.events(), beside

    def _cluster(self, name: str, *, workers: int, plan: DrillPlan | None = None) -> WatchedRun:
        """Return a run that has not started yet, in storage of its own, with the plan's faults if there is one."""
        options = self._options
        url = self.location.url(self.folder, name)
        joins = 0 if plan is None else plan.joining()
        nodes = 1 if plan is None else plan.nodes
        faults = StorageFaults() if plan is None else plan.storage
        seed = plan.seed or 0 if plan is not None else 0
        hang = [] if options.hang_s is None else [f"--hang-limit={options.hang_s:g}"]
        for kind in {type(fault) for fault in plan.faults} if plan is not None else ():
            kind.prepare(Path(url), like=self.folder / BASELINE)
        target, target_options = behind_faults(
            url, self.location.options, faults, seed=seed, record=self.folder / RECORD
        )
        overrides = Overrides(
            url=target,
            storage_options=target_options,
            save_every=plan.save_every if plan is not None else options.asked.save_every,
            joins_await_s=_JOINS_AWAIT_S,
            steps=options.steps,
            cross_check=_cross_check(options, plan),
        )
        hosting = None
        if plan is not None and plan.hosts:
            orphans_s = ORPHANS_S + (ORPHAN_S if any(fault.orphans for fault in plan.faults) else 0.0)
            hosting = OnHosts(self.hosts(nodes, self.folder / "hosts", orphans_s=orphans_s))
        cluster = Cluster(
            options.script,
            options.args,
            url=url,
            folder=self.folder / f"{name}-drill",
            workers=workers,
            launcher="elastic",
            nodes=nodes,
            nodes_max=nodes + joins + 1 if nodes > 1 or joins else None,
            replica_size=plan.replica_size if plan is not None else 1,
            restarts=max(3, 1 + len(plan.faults)) if plan is not None else 3,
            options=hang,
            plan=plan.for_workers() if plan is not None else None,
            module=options.module,
            ready=True,
            overrides=overrides,
            hosting=hosting or self.this_machine(),
        )
        self._clusters.append(cluster)
        return WatchedRun(cluster, self._console, plan, hosting)

    def _clear_away(self, *, keep: bool) -> None:
        """End all that still runs; remove the drill's files and storage, unless they are to be kept."""
        for cluster in self._clusters:
            cluster.close()
        for kind in KINDS.values():
            kind.clear_away(self.folder / FAULTED, keep=keep)
        if keep:
            return
        if (why := self.location.remove()) is not None:
            self._say(f"[yellow]not removed:[/] {escape(f'{self.location.elsewhere}: {why}')}")
        if self._options.folder is None:
            shutil.rmtree(self.folder, ignore_errors=True)
            return
        for entry in self.folder.iterdir():
            shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() else entry.unlink(missing_ok=True)

    def _say(self, line: str) -> None:
        self._console.print(line, soft_wrap=True)


def _cross_check(options: Options, plan: DrillPlan | None) -> float | None:
    """Return the part of all shares that two workers pass; None: as the script says."""
    asked = options.cross_check is None and plan is not None and any(fault.checks_shares for fault in plan.faults)
    return 1.0 if asked else options.cross_check


def _step_s(events: Sequence[Event]) -> float:
    """Return the median seconds from one step to the next, of one worker of the run without faults."""
    one = next(event["worker"] for event in events if event["event"] == "step_applied")
    times = [event["t"] for event in events if event["event"] == "step_applied" and event["worker"] == one]
    return max(statistics.median(b - a for a, b in pairwise(times)), 1e-3) if len(times) > 1 else 1.0


def _on_nodes(plan: DrillPlan) -> str:
    return f" on {plan.nodes} {'hosts' if plan.hosts else 'nodes'}" if plan.nodes > 1 else ""
