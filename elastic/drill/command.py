"""`elastic drill`: a script without faults, the same script with faults, and a verdict. Returns the exit status.

    options (checked)  ->  the run without faults: how many steps are there?  ->  the plan, printed and saved
      ->  the run with faults, launched again where all was lost  ->  findings  ->  shown; storage removed or kept

Promises  nothing of a drill outlives it: whatever happens to it, its processes are killed before it ends, and its
          storage is removed unless the drill failed or it was asked to keep it.
          Every wait has a deadline.
Leaves    what strikes to the plan, how to cluster.py and injection.py, whether promises held to the judge.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from elastic.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from elastic.drill.cluster import Cluster
    from elastic.drill.findings import Findings
    from elastic.drill.options import Options
    from elastic.drill.plan import DrillPlan
    from elastic.observe.events import Event

HOLDS, BROKEN, CANNOT = 0, 1, 2
CALM, HURT = "undisturbed", "disturbed"
_OUTPUT_SHOWN = 3000  # characters of a script's output where it failed
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """The drill was told to end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.status = 128 + number


class CannotRun(Exception):
    """The drill could not be run as asked; nothing is said about the script's promises."""


def main(argv: Sequence[str]) -> int:
    """0 every invariant holds, 1 one is broken, 2 the drill could not be run as asked, 128 + n ended by signal n."""
    from elastic.drill.options import parse

    try:
        options = parse(argv)
    except ConfigError as wrong:
        print(f"elastic drill: {wrong}", file=sys.stderr)
        return CANNOT
    from rich.console import Console

    console = Console(highlight=False)
    try:
        with _told_to_end():
            return Drill(options, console).run()
    except Interrupted as interrupted:
        print(f"elastic drill: ended by {interrupted}; its processes and its storage are gone", file=sys.stderr)
        return interrupted.status
    except (CannotRun, ConfigError) as wrong:
        print(f"elastic drill: {wrong}", file=sys.stderr)
        return CANNOT


class Drill:
    """folder: of both runs, made by `run` and removed by it unless it is worth keeping"""

    folder: Path

    def __init__(self, options: Options, console: Console) -> None:
        self._options = options
        self._console = console
        self._clusters: list[Cluster] = []
        self._begun_s = time.monotonic()

    def run(self) -> int:
        options = self._options
        worth_keeping = options.keep
        if options.folder is not None:
            self.folder = options.folder.resolve()
            self.folder.mkdir(parents=True, exist_ok=True)
        else:
            self.folder = Path(tempfile.mkdtemp(prefix="elastic-drill-"))
        try:
            self._headline()
            found = self._both_runs()
            worth_keeping |= bool(found.broken)
            from elastic.drill.show import show

            show(self._console, replace(found, kept=self.folder if worth_keeping else None))
            return BROKEN if found.broken else CANNOT if found.never else HOLDS
        finally:
            with _undisturbed_by_signals():
                self._clear_away(keep=worth_keeping)

    def _headline(self) -> None:

        options, asked = self._options, self._options.asked
        script = " ".join([*["-m"] * options.module, options.script, *options.args])
        nodes = f" on {asked.nodes} nodes" if asked.nodes > 1 else ""
        seed = f", seed {asked.seed}" if asked.seed is not None else ""
        self._say(
            f"\n[bold]Drill[/bold] of {script}: {asked.workers} worker{'s' if asked.workers > 1 else ''}{nodes}{seed}"
        )

    def _both_runs(self) -> Findings:
        from elastic.drill.acts import flipped
        from elastic.drill.bad_storage import RECORD, struck
        from elastic.drill.costs import costs
        from elastic.drill.diagnosis import diagnose
        from elastic.drill.findings import Findings
        from elastic.drill.review import damage, review
        from elastic.drill.story import of_plan, words
        from elastic.drill.verdict import Violation

        options = self._options
        calm, calm_events = self._calm()
        steps = next(event["step"] for event in reversed(calm_events) if event["event"] == "finished")
        plan = options.plan(steps)
        plan_file = self.folder / "plan.json"
        plan_file.write_text(plan.to_json())
        self._say(f"\n[bold]The plan[/bold]{'' if plan.seed is None else f' (seed {plan.seed})'}")
        for line in of_plan(plan.faults):
            self._say(line)
        if plan.storage.any:
            self._say(f"      {plan.storage}")
        hurt, hurt_events, extra = self._hurt(plan, total=steps)

        sizes: dict[str, Any] = next(event["config"] for event in calm_events if event["event"] == "run_started")
        exact = sizes["mode"] == "exact"
        left = [Violation("left", f"left behind: {what}") for what in calm.left]
        verdict_calm = review(calm.url, calm_events, steps=steps, redone_max=0)
        spoilt = flipped(hurt.cluster.folder)
        verdict_hurt = review(
            hurt.url,
            hurt_events,
            steps=steps,
            reference=calm_events,
            lost_max=hurt.lost_max(),
            may_fall_back=bool(spoilt),
            spoilt=spoilt,
        )
        if exact and not verdict_hurt.violations:
            extra += _final_states(calm.url, hurt.url)
        verdict_calm = replace(verdict_calm, violations=(*verdict_calm.violations, *left))
        verdict_hurt = replace(verdict_hurt, violations=(*extra, *verdict_hurt.violations))
        broken = bool(verdict_calm.violations or verdict_hurt.violations)
        storage = ", ".join(f"{count} {what}" for what, count in sorted(struck(self.folder / RECORD).items()))
        return Findings(
            plan=plan,
            calm=verdict_calm,
            hurt=verdict_hurt,
            events=(calm_events, hurt_events),
            struck=costs(hurt_events, plan.faults),
            never=[f"step {plan.faults[at].when.step}: {words(plan.faults[at])}" for at in hurt.not_reached()],
            storage=(storage or "nothing failed") if plan.storage.any else "",
            checkpoints=sum(len(damage(cluster.url)) for cluster in (calm, hurt)),
            sizes=(sizes["dataset_length"], sizes["batch_size"]),
            exact=exact,
            diagnoses=diagnose(calm_events, hurt_events, script=self._source(), exact=exact) if broken else [],
            replay=options.replay(plan_file),
            kept=None,
            seconds=time.monotonic() - self._begun_s,
        )

    def _calm(self) -> tuple[_Cluster, list[Event]]:
        """The run without faults, finished."""
        from elastic.drill.cluster import DrillTimeout
        from elastic.drill.story import counted

        options = self._options
        workers = options.undisturbed_workers
        self._say(f"\n[bold]Without faults[/bold], {counted(workers, 'worker')}")
        cluster = self._cluster(CALM, workers=workers)
        try:
            code = self._launch(cluster)
        except DrillTimeout as late:
            raise CannotRun(f"the run without faults: {late}") from late
        events = cluster.cluster.events()
        if code or not any(event["event"] == "finished" for event in events):
            if not any(event["event"] == "run_started" for event in events):
                why = "the script never came to `with elastic.Run(…)`, or failed before it"
            else:
                why = "the script did not finish its training"
            raise CannotRun(
                f"the run without faults ended with status {code}: {why}\n{cluster.cluster.output()[-_OUTPUT_SHOWN:]}"
            )
        return cluster, events

    def _hurt(self, plan: DrillPlan, *, total: int) -> tuple[_Cluster, list[Event], list[Any]]:
        """The run with faults, launched as often as faults end it. Also: violations that are no matter of events."""
        from elastic.drill.cluster import DrillTimeout
        from elastic.drill.story import counted
        from elastic.drill.verdict import Violation

        nodes = f" on {plan.nodes} nodes" if plan.nodes > 1 else ""
        self._say(f"\n[bold]With faults[/bold], {counted(plan.workers, 'worker')}{nodes}")
        cluster = self._cluster(HURT, workers=plan.workers, plan=plan)
        violations: list[Violation] = []
        known, code = 0, 0
        try:
            with cluster.told(total) as story:
                while True:
                    code = self._launch(cluster, story)
                    events = cluster.cluster.events()
                    launched, known = events[known:], len(events)
                    again = _goes_on(launched, plan)
                    if again is None or cluster.launches > len(plan.faults):
                        break
                    workers = plan.resume_workers if again == "lost" else plan.workers
                    nodes_now = plan.nodes if workers % plan.nodes == 0 else 1
                    self._say(f"            started again with {counted(workers, 'worker')}")
                    cluster.cluster.start(workers=workers, nodes=nodes_now)
        except DrillTimeout as late:
            violations.append(Violation("deadline", f"the run with faults: {late}"))
        events = cluster.cluster.events()
        if code and not violations:
            output = cluster.cluster.output()[-_OUTPUT_SHOWN:]
            violations.append(Violation("finished", f"its last launch ended with status {code}\n{output}"))
        violations += [Violation("left", f"left behind: {what}") for what in cluster.left]
        return cluster, events, violations

    def _cluster(self, name: str, *, workers: int, plan: DrillPlan | None = None) -> _Cluster:
        from elastic.drill import disk
        from elastic.drill.bad_storage import RECORD, imposed
        from elastic.drill.cluster import Cluster
        from elastic.drill.faults import Disk
        from elastic.drill.plan import StorageFaults

        options = self._options
        storage = self.folder / name
        joins = 0 if plan is None else plan.joining()
        nodes = 1 if plan is None else plan.nodes
        faults = StorageFaults() if plan is None else plan.storage
        seed = plan.seed or 0 if plan is not None else 0
        hang = [] if options.hang_s is None else [f"--hang-limit={options.hang_s:g}"]
        if plan is not None and any(isinstance(fault, Disk) for fault in plan.faults):
            disk.mount(storage, like=self.folder / CALM)
        cluster = Cluster(
            options.script,
            options.args,
            url=storage,
            folder=self.folder / f"{name}-drill",
            workers=workers,
            launcher="elastic",
            nodes=nodes,
            nodes_max=nodes + joins + 1 if nodes > 1 or joins else None,
            restarts=max(3, 1 + len(plan.faults)) if plan is not None else 3,
            options=hang,
            plan=plan.for_workers() if plan is not None else None,
            module=options.module,
            imposed=imposed(storage, faults, seed=seed, record=self.folder / RECORD),
        )
        self._clusters.append(cluster)
        return _Cluster(cluster, self._console, plan, grace_s=plan.grace_s if plan is not None else None)

    def _launch(self, cluster: _Cluster, story: Any = None) -> int:
        """One launch to its end; its exit status. Raises DrillTimeout."""
        if story is None:
            with cluster.told(None) as told:
                return cluster.wait(told, within_s=self._options.within_s)
        return cluster.wait(story, within_s=self._options.within_s)

    def _source(self) -> str | None:
        """The script's file."""
        if not self._options.module:
            return os.path.abspath(self._options.script)
        with contextlib.suppress(ImportError, ValueError):
            sys.path.insert(0, os.getcwd())
            spec = importlib.util.find_spec(self._options.script)
            return spec.origin if spec is not None else None
        return None

    def _clear_away(self, *, keep: bool) -> None:
        for cluster in self._clusters:
            cluster.close()
        self._take_the_disk_away(keep=keep)
        if keep:
            return
        if self._options.folder is None:
            shutil.rmtree(self.folder, ignore_errors=True)
            return
        for entry in self.folder.iterdir():
            shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() else entry.unlink(missing_ok=True)

    def _take_the_disk_away(self, *, keep: bool) -> None:
        """What is to be kept of it is copied first."""
        storage = self.folder / HURT
        if not storage.is_mount():
            return
        from elastic.drill import disk

        disk.heal(storage)
        copy = self.folder / f"{HURT}-copy"
        if keep:
            shutil.copytree(storage, copy)
        disk.unmount(storage)
        if keep:
            storage.rmdir()
            copy.rename(storage)

    def _say(self, line: str) -> None:
        self._console.print(line, soft_wrap=True)


class _Cluster:
    """One run under the drill's eyes: what it left behind, and who has to be killed after his grace."""

    def __init__(self, cluster: Cluster, console: Console, plan: DrillPlan | None, *, grace_s: float | None) -> None:
        self.cluster = cluster
        self.left: list[str] = []
        self.launches = 0
        self._console = console
        self._faults = plan.faults if plan is not None else ()
        self._grace_s = grace_s
        self._leaving: dict[int, float] = {}  # pid -> when its grace is over, on the monotonic clock
        self._healthy_s: float | None = None  # when the disk is to be healed, on the same clock

    @property
    def url(self) -> str:
        return self.cluster.url

    def lost_max(self) -> int | None:
        return self.cluster.lost_max()

    def not_reached(self) -> list[int]:
        return self.cluster.not_reached()

    def told(self, total: int | None) -> Any:
        from elastic.drill.follow import Follow
        from elastic.drill.story import Story

        follow = Follow(self.cluster.evidence)
        return Story(self._console, follow, faults=self._faults, total=total, heard=self._heard)

    def wait(self, story: Any, *, within_s: float) -> int:
        self.launches += 1

        def watching() -> None:
            story.watching()
            self._end_grace()
            self._heal(time.monotonic())

        ended = self.cluster.wait(within_s=within_s, watching=watching)
        story.watching()
        self._heal(inf)
        self.left += ended.left_behind
        return ended.exit_code

    def _heard(self, event: Event) -> None:
        from elastic.drill.faults import Disk, Terminate

        fault = self._faults[event["index"]] if event["event"] == "fault" else None
        if isinstance(fault, Terminate):
            assert self._grace_s is not None
            self._leaving[int(event["worker"].rsplit("-", 2)[1])] = time.monotonic() + self._grace_s
        elif isinstance(fault, Disk):
            self._healthy_s = time.monotonic() + fault.seconds

    def _heal(self, now_s: float) -> None:
        from elastic.drill import disk

        if self._healthy_s is not None and now_s >= self._healthy_s:
            self._healthy_s = None
            disk.heal(Path(self.url))

    def _end_grace(self) -> None:
        from elastic.drill.acts import alive_among

        over = [pid for pid, until_s in self._leaving.items() if time.monotonic() > until_s]
        for pid in alive_among(over, self.cluster.folder) if over else []:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in over:
            del self._leaving[pid]


def _goes_on(launched: Sequence[Event], plan: DrillPlan) -> str | None:
    """Why a launch that has ended must be followed by another one: "lost" everything, or an agent was lost or all
    workers "left"; None: it is over."""
    from elastic.drill.faults import KillAgent, KillAll, LeaveNode, Terminate

    if any(event["event"] == "finished" for event in launched):
        return None
    struck = [plan.faults[event["index"]] for event in launched if event["event"] == "fault"]
    if any(isinstance(fault, KillAll) for fault in struck):
        return "lost"
    return "left" if any(isinstance(fault, KillAgent | LeaveNode | Terminate) for fault in struck) else None


def _final_states(calm: str, hurt: str) -> list[Any]:
    """What differs between the last checkpoints of both runs: weights, optimizer, and all else that survives."""
    from checkpoint.diff import Side, compare
    from checkpoint.history import read_history
    from checkpoint.storage import open_storage
    from elastic.drill.verdict import Violation

    with contextlib.ExitStack() as stack:
        sides = []
        for url in (calm, hurt):
            storage = open_storage(url)
            stack.callback(storage.close)
            lineage = read_history(storage, lambda _: None).lineage
            if not lineage:
                return [Violation("final", f"there is no checkpoint in {url}, so the last states cannot be compared")]
            sides.append(Side(storage, lineage[0]))
        found = compare(*sides).differences
    names = ", ".join(one.path for one in found[:5])
    what = f"the last checkpoints differ in {len(found)} entries: {names}"
    return [Violation("final", what)] if found else []


@contextlib.contextmanager
def _told_to_end() -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP raise Interrupted."""

    def raised(number: int, _: FrameType | None) -> None:
        raise Interrupted(number)

    with _handled(dict.fromkeys(_SIGNALS, raised)):
        yield


@contextlib.contextmanager
def _undisturbed_by_signals() -> Iterator[None]:
    """While everything is being cleared away, which takes a moment."""
    with _handled(dict.fromkeys(_SIGNALS, signal.SIG_IGN)):
        yield


@contextlib.contextmanager
def _handled(
    handlers: Mapping[signal.Signals, Callable[[int, FrameType | None], None] | signal.Handlers],
) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
