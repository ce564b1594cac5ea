"""What do spot fleets make of a run, for real? Recorded traces, sped up, replayed with 4 workers under `elastic run`
and under plain torchrun with periodic saves, and what the simulation says of the same.

    python -m tests.benchmarks.goodput [--speedup 60] [--hours 3] [--traces 2] [--json FILE]

goodput    steps that last, of those that the fleet could have done had no change cost anything: at each moment as many
           nodes as the trace has, each step as long as one of so many workers takes in this very replay, in mean, where
           no change is near
predicted  the same by elastic/plan/simulation.py, with what one loss and one join of this very session took

Of a trace, one machine in several is looked at, so that about four are there. A loss is a SIGKILL to all processes of a
node at once; a node that comes has its imports done, and starts its worker. Both have a store that survives, and
torchrun's rendezvous is tuned. Time is compressed, and what a loss costs is not: so a replay loses far more than the
trace would.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path

from rich.console import Console
from rich.table import Table

from elastic.plan import trace
from elastic.plan.simulation import Outcome, Policy, simulate
from elastic.plan.trace import Trace
from tests.benchmarks import harness
from tests.benchmarks.goodput_fleet import NODES, Fleet, How, Note, fleet
from tests.benchmarks.goodput_script import SHARES
from tests.benchmarks.harness import interruptible
from tests.benchmarks.recovery_runs import Stuck

TRACES = (("aws-p3-2020", 7, 1, 1.0), ("gcp-oobleck-2023", 6, 1, 0.0))
"""One machine in so many, from this one on; and the hour at which the replay begins."""
_READY_S = 8.0  # of this machine's time: imports of a node that stands ready
_LONG = 1.3  # steps: what is longer has met something
_ENOUGH = 5  # steps, for a mean
_NEAR_S = 2.0  # after a change
_TRIES = 3  # plain torchrun now and then forms two jobs of one


@dataclass(frozen=True)
class Costs:
    """In seconds: beyond a step, of the first step after a loss; and, summed over the steps around it, of a join.

    arrive_s  from a node's coming to the first step that it has a part in
    step_s    of four workers, where nothing happens
    """

    loss_s: float
    join_s: float
    arrive_s: float
    step_s: float


@dataclass(frozen=True)
class Replay:
    trace: str
    how: How
    goodput: float
    predicted: float
    steps: int
    ideal: float
    lost_steps: int
    changes: int


def replayed(name: str, every: int, first: int, begin: float, *, hours: float, speedup: float) -> Trace:
    """What is replayed: NODES machines at most."""
    of = trace.read(name).part(first, every).limited(NODES)
    seen = of.window(3600 * begin, 3600 * (begin + hours))
    changes = tuple(replace(change, t_s=change.t_s / speedup) for change in seen.changes)
    return replace(seen, changes=changes, length_s=seen.length_s / speedup)


def costs(how: How, away_s: float, save_s: float) -> Costs:
    """Of one loss and one join, undisturbed otherwise. Raises Stuck."""
    for left in reversed(range(_TRIES)):
        try:
            return _costs(how, away_s, save_s)
        except Stuck:
            if not left:
                raise
    raise AssertionError


def _costs(how: How, away_s: float, save_s: float) -> Costs:
    with fleet(how, list("abcd"), away_s=away_s, save_s=save_s) as (made, _):
        made.stand_ready("e")
        before = made.wait(4, steps=20, after_t=0.0)
        time.sleep(_READY_S)
        lost_t = made.lose("d")
        after = made.wait(3, steps=20, after_t=lost_t)
        loss_s = after[0].t - lost_t - _step_s(after)
        called_t = made.call("e")
        grown = made.wait(4, steps=20, after_t=called_t)
        around = [note for note in made.notes() if called_t - 1 < note.t <= grown[-1].t]
        gaps = [(new.t - old.t, new.world_size) for old, new in pairwise(around)]
        usual = {3: _step_s(after), 4: _step_s(before)}
        join_s = sum(max(0.0, gap - usual[size]) for gap, size in gaps if gap > _LONG * usual[size])
        arrive_s = grown[0].t - called_t - usual[4]
        return Costs(max(loss_s, 0.0), join_s, max(arrive_s, 0.0), usual[4])


def replay(seen: Trace, how: How, *, away_s: float, save_s: float) -> tuple[list[Note], float]:
    """Its notes, and when it began."""
    first = seen.changes[0]
    assert first.t_s == 0
    comes = [(change.t_s, node) for change in seen.changes[1:] for node in change.come]
    moments = [(t_s, "ready", node) for t_s, node in ((max(0.0, t_s - _READY_S), node) for t_s, node in comes)]
    moments += [(t_s, "comes", node) for t_s, node in comes]
    moments += [(change.t_s, "goes", node) for change in seen.changes[1:] for node in change.gone]
    numbered = {node: 0 for _, _, node in moments} | dict.fromkeys(first.come, 0)
    with fleet(how, [f"{node}.0" for node in first.come], away_s=away_s, save_s=save_s) as (made, begun_t):
        for t_s, what, node in sorted(moments, key=lambda one: (one[0], ("goes", "ready", "comes").index(one[1]))):
            time.sleep(max(0.0, begun_t + t_s - time.time()))
            if what == "ready":
                made.stand_ready(f"{node}.{numbered[node] + 1}")
            elif what == "comes":
                numbered[node] += 1
                made.call(f"{node}.{numbered[node]}")
            else:
                made.lose(f"{node}.{numbered[node]}")
        time.sleep(max(0.0, begun_t + seen.length_s - time.time()))
        return _until(made, begun_t + seen.length_s), begun_t


def judged(seen: Trace, how: How, notes: Sequence[Note], begun_t: float, of: Costs, save_s: float) -> Replay:
    moments = [begun_t + change.t_s for change in seen.changes[1:]]
    calm = [
        (new.t - old.t, new.world_size)
        for old, new in pairwise(notes)
        if (new.steps, new.world_size) == (old.steps + 1, old.world_size)
        and not any(old.t - _NEAR_S < t < new.t for t in moments)
    ]
    by_size = {size: [gap for gap, of_size in calm if of_size == size] for size in range(1, NODES + 1)}
    known = {size: statistics.mean(gaps) for size, gaps in by_size.items() if len(gaps) >= _ENOUGH}
    known = known or {NODES: of.step_s}

    def step_s(nodes: int) -> float:
        near = min(known, key=lambda size: abs(size - nodes))
        return known[near] * -(-SHARES // nodes) / -(-SHARES // near)

    begun = next(note.steps for note in notes if note.t >= begun_t)
    done = notes[-1].steps - begun
    highest, lost = begun, 0
    for old, new in pairwise(notes):
        highest = max(highest, old.steps)
        lost += max(0, old.steps - new.steps + 1)
    survives = how == "ours"
    policy = Policy(
        name=how,
        survives=survives,
        loss_s=of.loss_s,
        join_s=of.join_s,
        start_s=0.0 if survives else of.loss_s,
        arrive_s=of.arrive_s,
        stall_s=0.002,
        durable_s=0.05,
        interval_s=save_s,
    )
    ahead_s = policy.start_s  # the replay begins when all train
    predicted: Outcome = simulate(seen, policy, step_s)
    ideal = sum(seconds / step_s(len(there)) for seconds, there in seen.stretches() if there)
    expected = predicted.steps + ahead_s / step_s(len(seen.changes[0].come))
    changes = len(seen.changes) - 1
    return Replay(seen.name, how, done / ideal, expected / ideal, done, ideal, lost, changes)


def _until(made: Fleet, end_t: float) -> list[Note]:
    return [note for note in made.notes() if note.t <= end_t]


def _gaps_s(notes: Sequence[Note]) -> list[float]:
    return [new.t - old.t for old, new in pairwise(notes) if new.steps == old.steps + 1]


def _step_s(notes: Sequence[Note]) -> float:
    return statistics.median(_gaps_s(notes))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speedup", type=float, default=60.0)
    parser.add_argument("--hours", type=float, default=3.0, help="of each trace")
    parser.add_argument("--traces", type=int, default=len(TRACES))
    parser.add_argument("--away", type=float, default=0.03, help="seconds asleep in each share of a step")
    parser.add_argument("--save-every", type=float, default=5.0, help="seconds of training, for both")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    away_s, save_s = options.away, options.save_every
    console, found = Console(highlight=False), []
    of: dict[How, Costs] = {}
    both: tuple[How, How] = ("ours", "plain")
    with interruptible():
        for how in both:
            of[how] = costs(how, away_s, save_s)
            console.print(f"{how}: {of[how]}")
        for chosen in TRACES[: options.traces]:
            seen = replayed(*chosen, hours=options.hours, speedup=options.speedup)
            for how in both:
                notes, begun_t = replay(seen, how, away_s=away_s, save_s=save_s)
                found.append(judged(seen, how, notes, begun_t, of[how], save_s))
                console.print(f"{found[-1]}")
    table = Table(box=None, pad_edge=False)
    for column in ("trace", "how", "goodput", "predicted", "steps", "steps lost", "changes"):
        table.add_column(column, justify="left" if column in ("trace", "how") else "right")
    for one in found:
        shares = f"{100 * one.goodput:.1f} %", f"{100 * one.predicted:.1f} %"
        table.add_row(one.trace, one.how, *shares, f"{one.steps}", f"{one.lost_steps}", f"{one.changes}")
    console.print(table)
    if options.json is not None:
        document = {"costs": {how: asdict(one) for how, one in of.items()}, "replays": [asdict(one) for one in found]}
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    harness.run(main)
