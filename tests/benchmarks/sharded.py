"""What does it cost that several workers share a model? python -m tests.benchmarks.sharded [--cycles 8] [--faults 6]

Two workers in one replica, a GPT of 10.6 M parameters: processor time of Run's steps beside those of a plain loop whose
passes are the same, and whose reduce-scatter is torch's own; a step's votes and its last word; the exact norm. Then two
replicas of two with 10 M parameters: members that get a SIGKILL at random moments, to the next step of the others, and
the join of the replica that comes instead.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from elastic.drill.machine.processes import MARK, kill_marked
from tests.benchmarks import harness
from tests.benchmarks.harness import interruptible, progress
from tests.benchmarks.recovery_events import Cost
from tests.benchmarks.recovery_runs import ELASTIC, ROOT, kill, running

MEMBERS, REPLICAS = 2, 2
MODEL = ["--sharded", "--width=2150", "--batch-size=64"]
PASSES = 8 // (MEMBERS * REPLICAS)  # of a step
SETTLED_STEPS, CALM_STEPS = 8, 12
AIMS = {"of torch's": 1.1, "votes and word": 1e-3, "norm": 0.02, "recovery": 0.05, "join": 0.1}
WITHIN_S = 600.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=8)
    parser.add_argument("--faults", type=int, default=6)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    found: dict[str, float] = {}
    with interruptible():
        if options.cycles:
            found |= steps(options.cycles)
        if options.faults:
            found |= faults(options.faults, random.Random(options.seed))
    for name, value in found.items():
        print(f"{name}: {value:.4g}, the aim is {AIMS[name]:g}")
    return int(any(value > AIMS[name] for name, value in found.items()))


def steps(cycles: int) -> dict[str, float]:
    """What steps cost that nothing disturbs."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        torchrun = ["torch.distributed.run", "--standalone", f"--nproc-per-node={MEMBERS}", "-m"]
        command = [sys.executable, "-m", *torchrun, "tests.benchmarks.sharded_steps", str(cycles), str(result)]
        env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "TMPDIR": folder, MARK: folder}
        try:
            subprocess.run(command, check=True, cwd=ROOT, env=env, timeout=WITHIN_S)
        finally:
            kill_marked(Path(folder))
        of: dict[str, Any] = json.loads(result.read_text())
    spent, small, passes = of["seconds"], of["small"], of["passes"]
    step_s, theirs_s = (statistics.median(cpu for _, cpu in spent[name]) for name in ("run", "torch"))
    ratio = statistics.median(ours[1] / its[1] for ours, its in zip(spent["run"], spent["torch"], strict=True))
    votes = passes + 2  # before each pass, before the exchange, and behind it
    in_all_s = votes * small["a vote"][0] + small["the word that comes last"][0]
    took = f"{step_s * 1e3:.0f} ms of processor time, with torch's own sums {theirs_s * 1e3:.0f}"
    print(f"{MEMBERS} members, {passes} passes a step: {took}")
    for name, (wall_s, cpu_s) in small.items():
        print(f"{name}: {wall_s * 1e3:.3f} ms, {cpu_s * 1e3:.3f} of processor time")
    print(f"{votes} votes and the word: {in_all_s * 1e3:.3f} ms")
    vote_and_word_s = small["a vote"][0] + small["the word that comes last"][0]
    norm = small["the exact norm"][1] / step_s
    return {"of torch's": ratio, "votes and word": vote_and_word_s, "norm": norm}


def faults(count: int, draw: random.Random) -> dict[str, float]:
    """What a member's end costs the other replica, and the join of the one that comes instead."""
    alone_s, costs = undisturbed(MEMBERS), list[Cost]()
    workers = MEMBERS * REPLICAS
    launcher = [*ELASTIC, "--standalone", f"--nproc-per-node={workers}", f"--replica-size={MEMBERS}"]
    with running(launcher, MODEL, observed=True) as run:
        for _ in progress("members killed", range(count)):
            before = run.settled(workers, steps=SETTLED_STEPS)
            step_s = run.events.median_step(before)
            time.sleep(draw.uniform(0.0, 2 * step_s))
            at, ended = kill(draw.choice(sorted(before.workers)))
            after = run.settled(workers, steps=SETTLED_STEPS, later_than=before)
            survivors = before.workers & after.workers
            costs.append(run.events.cost(at, step_s, before, survivors, after, ended=ended))
    beyond = [cost.total - alone_s - cost.step / PASSES for cost in costs]
    joins = [cost.join for cost in costs if cost.join is not None]
    step_s = statistics.median(cost.step for cost in costs)
    print(
        f"{REPLICAS} replicas of {MEMBERS}, a step {step_s * 1e3:.0f} ms, of one replica {alone_s * 1e3:.0f}; "
        f"to the next step {listed([cost.total for cost in costs])} ms, beyond that step and the pass in hand "
        f"{listed(beyond)}; a join, beyond a step, {listed(joins)}"
    )
    for moment in ("peer_lost", "form", "formed", "data"):
        print(f"from the signal to {moment!r}: {listed([cost.moments[moment] for cost in costs if cost.moments])} ms")
    pauses = [cost.pauses for cost in costs if cost.pauses is not None]
    print(f"at a join, until the others compute again: {listed([pause for pause, _ in pauses])} ms")
    return {"recovery": statistics.median(beyond), "join": statistics.median(joins)}


def undisturbed(workers: int) -> float:
    """The median step of one replica alone, in seconds."""
    with running([*ELASTIC, "--standalone", f"--nproc-per-node={workers}", f"--replica-size={workers}"], MODEL) as run:
        return run.events.median_step(run.settled(workers, steps=CALM_STEPS))


def listed(values: list[float]) -> str:
    return ", ".join(f"{value * 1e3:.0f}" for value in sorted(values))


if __name__ == "__main__":
    harness.run(main)
