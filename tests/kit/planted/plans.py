"""The runs in which planted bugs show: small ones, with real faults, each green while no bug is planted.

All of them train the same: 24 steps in epochs of 24, 24 and 20 examples. So one undisturbed run, by one process, is the
reference of all; those whose script has a habit (programs/habits.py) have one for each habit.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from elastic.drill.cluster import Cluster, DrillTimeout
from elastic.drill.faults import At, Fault, Hold, Kill, Plan, Terminate
from elastic.drill.judge.review import end_violations, final_states, review
from elastic.drill.judge.verdict import Verdict, Violation
from elastic.drill.machine.holdings import leaks
from elastic.events.event import Event
from tests.kit.forkserver import ForkedMachine
from tests.kit.planted.bug import Bug
from tests.kit.planted.planting import environment

STEPS = 24
WITHIN_S = 240.0
HUNG_S = 3.0  # a run that hangs for certain is not waited for any longer
PROGRAMS = Path(__file__).parents[1] / "programs"


@dataclass(frozen=True, kw_only=True)
class Way:
    """How a run goes.

    what      in words, for people
    workers   under `elastic run`; None: a process on its own
    launches  one after the other: every one but the last is killed by the faults
    meanwhile the same command is started a second time, while the first one is held
    waits     that second one may be waiting, by its bug, for the first one to end: who is held is let go then
    habit     of its script, or what it does about its bad steps (`ON_BAD`); None: the plain one
    """

    what: str
    faults: Sequence[Fault] = ()
    workers: int | None = None
    launches: int = 1
    meanwhile: bool = False
    waits: bool = False
    habit: str | None = None
    options: Mapping[str, object] = field(default_factory=dict)


ON_BAD = {"skips": "skip", "goes back": "rollback"}
"""What programs/poisoned.py does about its bad steps, 2 and 14 of 24."""

_LOST = (Kill(1, At(3, "backward")),)
_HELD = (Hold(0, At(10, "forward")),)
_KILLED = (Kill(0, At(10, "forward")),)
WAYS: dict[str, Way] = {
    "alone": Way(what="one process, no faults", options={"evaluate_every": 6}),
    "alone, loading ahead": Way(what="one process with a loader process, no faults", options={"num_workers": 1}),
    "baseline": Way(what="3 workers, no faults", workers=3),
    "lost": Way(what="3 workers, one is killed and replaced", workers=3, faults=_LOST, options={"awaits": 3}),
    "told to leave": Way(what="3 workers, one is told to leave", workers=3, faults=(Terminate(1, At(3, "backward")),)),
    "left last": Way(
        what="one of 2 workers is told to leave, the other is killed",
        workers=2,
        faults=(Terminate(1, At(10, "forward")), Kill(0, At(10, "applied"))),
    ),
    "resumed": Way(what="killed in a step, started again", faults=_KILLED, launches=2),
    "unfreezes, resumed": Way(
        what="a layer is unfrozen, then killed in a step, started again", faults=_KILLED, launches=2, habit="unfreezing"
    ),
    "teacher": Way(what="3 workers and a mean teacher, no faults", workers=3, habit="teacher"),
    "skips together": Way(what="3 workers pass two steps over, no faults", workers=3, habit="skips"),
    "skips, resumed": Way(
        what="a step is passed over, then killed, started again from before it",
        faults=(Kill(0, At(15, "forward")),),
        launches=2,
        habit="skips",
    ),
    "goes back": Way(what="one process goes back to a save, twice, no faults", habit="goes back"),
    "cut": Way(what="killed right after a save, started again", faults=(Kill(0, At(7, "saved")),), launches=2),
    "launched twice": Way(what="started a second time by accident", faults=_HELD, meanwhile=True),
    "launched twice, waits": Way(
        what="started a second time, let go when that ends or waits", faults=_HELD, meanwhile=True, waits=True
    ),
}


@dataclass(frozen=True)
class Undisturbed:
    url: Path
    events: Sequence[Event]


def undisturbed(folder: Path, habit: str | None) -> Undisturbed:
    """The run that all others of that habit are compared with."""
    with _cluster(replace(WAYS["alone"], habit=habit), folder, {}) as cluster:
        end = cluster.finish(within_s=WITHIN_S)
        assert end.verdict.ok, f"{end.verdict}\n{end.output}"
        return Undisturbed(Path(cluster.url), end.events)


def judged(way: Way, folder: Path, reference: Undisturbed, bug: Bug | None = None) -> tuple[Verdict, str]:
    """The verdict on the run, as a drill comes to it, and what its last launch printed.

    bug  planted in all of its processes; they mark in `folder`/marks that it has acted there
    """
    marks = folder / "marks"
    marks.mkdir(parents=True)
    env = environment(bug, marks) if bug is not None else {}
    hangs = bug is not None and "deadline" in bug.caught_by
    with _cluster(way, folder, env) as cluster:
        for _ in range(way.launches - 1):
            cluster.start().wait(within_s=WITHIN_S)
        cluster.start()
        if way.meanwhile:
            cluster.wait_held(within_s=WITHIN_S)
            with _cluster(replace(way, faults=()), folder, env, "second") as second:
                if way.waits:
                    _ended_or_waits(second.start(), marks)
                    cluster.let_go()
                second.wait(within_s=WITHIN_S)
            cluster.let_go()
        if hangs:
            cluster.wait_for(lambda _: any(marks.iterdir()), within_s=WITHIN_S)
        beside = _ended(cluster, within_s=HUNG_S if hangs else WITHIN_S)
        events, lost_max = cluster.events(), cluster.lost_max()
        beside += leaks(events, reference.events)
        verdict = review(cluster.url, events, steps=STEPS, reference=reference.events, lost_max=lost_max)
        verdict = replace(verdict, violations=(*beside, *verdict.violations))
        if verdict.ok:
            verdict = replace(verdict, violations=tuple(final_states(str(reference.url), cluster.url)))
        return verdict, cluster.output()


def _ended_or_waits(cluster: Cluster, marks: Path) -> None:
    until_s = time.monotonic() + WITHIN_S
    while None in cluster.exit_codes().values() and not any(marks.iterdir()):
        assert time.monotonic() < until_s, f"the second launch neither ends nor waits\n{cluster.output()}"
        time.sleep(0.05)


def _ended(cluster: Cluster, *, within_s: float) -> list[Violation]:
    try:
        ended = cluster.wait(within_s=within_s)
    except DrillTimeout as late:
        return end_violations(late=str(late))
    return end_violations(exit_code=ended.exit_code, output=cluster.output(), left_behind=ended.left_behind)


def _cluster(way: Way, folder: Path, env: Mapping[str, str], name: str = "drill") -> Cluster:
    options = {"steps": STEPS, "length": 68, "save_every": 4, **way.options}
    program = "small.py" if way.habit is None else "poisoned.py" if way.habit in ON_BAD else "varied.py"
    if way.habit is None:
        options |= {"seed": 7}
    elif way.habit in ON_BAD:
        options = {"steps": STEPS, "save_every": 4, "nan": 70, "on_bad": ON_BAD[way.habit]}
    else:
        options |= {"habit": way.habit, "batch_size": 24, "virtual_workers": 8, "norm": "batch", "pause": 0.02}
    flags = [text for option, value in options.items() for text in (f"--{option.replace('_', '-')}", str(value))]
    return Cluster(
        PROGRAMS / program,
        [str(folder / "run"), *flags],
        url=folder / "run",
        folder=folder / name,
        workers=way.workers,
        launcher="elastic",
        steps=STEPS,
        env=env,
        plan=Plan(tuple(way.faults)),
        hosting=ForkedMachine(),
    )
