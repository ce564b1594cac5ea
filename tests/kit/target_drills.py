"""Draws a drill of a target from a seed: a plain loop, or a script of another framework, and all that goes wrong.

A pure function, as random_drills.py, with which it shares the kinds of faults and their rarer moments. Six faults of
all kinds strike 2, 3 or 5 workers, over which 8 shares are not always dealt evenly; of a sharded script as many strike
2 or 3 replicas of 2. Running them is run_drills.py's.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from elastic.drill.plan.draw import draw_faults
from elastic.drill.plan.drill_plan import DrillPlan
from tests.kit.random_drills import STUCK_S, RandomDrill, Script, fitting, sharpened, storage_faults

FAULTS = 6
STEPS = 84
_PAUSE_S = 0.05  # --unhurried pauses so long after each step, at least
_WORKERS_MAX = 9  # with those that join


@dataclass(frozen=True)
class Target:
    """A program of tests/kit/programs, and sets of its options, of which a seed draws one; with each, after how many
    steps it ends. num_workers: that it may have; replica_size: so many workers hold one copy of the state together;
    steps: it is told to do so many at most"""

    program: str
    variants: tuple[tuple[tuple[str, ...], int], ...]
    evaluates: bool = False
    num_workers: tuple[int, ...] = (0, 1)
    replica_size: int = 1
    steps: int = STEPS


_SHARDED_STEPS = 48  # each takes longer than the others': a model's parts are gathered in each pass
_SHARDED = ("--virtual-workers=6", "--batch-size=12")  # of 2 replicas of 2, each makes a pass with an idle member

TARGETS = {
    "plain": Target(
        "plain.py",
        ((("--short=21",), STEPS), (("--batch-size=48", "--short=42", "--micro-batch-size=3"), STEPS)),
        evaluates=True,
    ),
    "streams": Target(
        "streamed.py",
        ((("--write", "--virtual-workers=8"), STEPS), (("--write", "--virtual-workers=8", "--plain"), STEPS)),
        num_workers=(0,),
    ),
    "sharded": Target(
        "sharded.py",
        (
            ((*_SHARDED, "--short=7"), _SHARDED_STEPS),
            ((*_SHARDED, "--plain", "--unused"), _SHARDED_STEPS),
            ((*_SHARDED, "--micro-batch-size=1", "--clip=1"), _SHARDED_STEPS),
            ((*_SHARDED, "--plain", "--clip=1"), _SHARDED_STEPS),
        ),
        num_workers=(0,),
        steps=_SHARDED_STEPS,
        replica_size=2,
    ),
    "accelerate": Target("accelerated.py", (((), STEPS),)),
    "fabric": Target("fabricated.py", (((), STEPS),)),
    "transformers": Target(
        "trainer.py",
        (((), STEPS), (("--model=bert", "--best"), STEPS), (("--patience=10",), 66), (("--torn",), STEPS)),
        evaluates=True,
    ),
    "lightning": Target(
        "fit.py",
        (
            (("--check=0.5",), STEPS),
            (("--schedule=epoch", "--average"), STEPS),
            (("--schedule=plateau", "--check=0.25", "--patience=8"), 63),
            (("--torn",), STEPS),
        ),
    ),
}


def target_drill(target: str, seed: int) -> RandomDrill:
    """The drill of this target that has this seed."""
    draw = random.Random(f"random drill of {target} {seed}")
    of_target = TARGETS[target]
    num_workers = draw.choice(of_target.num_workers)
    variant, steps = draw.choice(of_target.variants)
    options = Script(
        args=(*variant, f"--steps={of_target.steps}", f"--unhurried={_WORKERS_MAX}", f"--num-workers={num_workers}"),
        steps=steps,
        pause=_PAUSE_S * STEPS / of_target.steps,
        num_workers=num_workers,
        save_every="3",
        evaluates=of_target.evaluates,
        habit=None,
        streams=target == "streams",
        sharded=of_target.replica_size > 1,
    )
    shares = 4 if "--torn" in variant and target == "lightning" else 8
    workers = draw.choice((2, 3, 5)) if shares == 8 else draw.choice((2, 3))
    nodes = draw.choice((1, 1, workers)) if workers < 5 else 1
    resume_workers = draw.choice((2, 3, 5)) if shares == 8 else draw.choice((2, 3))
    size = of_target.replica_size
    if size > 1:
        workers, resume_workers = size * draw.choice((2, 2, 3)), size * draw.choice((1, 2, 3))
        nodes = draw.choice((1, 1, workers // size))
    kinds, drawn_from = fitting(options), draw.randrange(1_000_000)
    sizes = {"workers": workers, "nodes": nodes, "resume_workers": resume_workers, "replica_size": size}
    faults = draw_faults(drawn_from, kinds=kinds, rate=FAULTS / options.steps, steps=options.steps, **sizes)
    plan = DrillPlan(
        workers=workers,
        nodes=nodes,
        replica_size=size,
        resume_workers=resume_workers,
        seed=seed,
        grace_s=draw.choice((3.0, 30.0)),
        storage=storage_faults(draw),
        faults=sharpened(draw, faults, options, **sizes),
    )
    hang_s = STUCK_S if any(fault.kind == "stick_loader" for fault in plan.faults) else None
    return RandomDrill(seed=seed, args=options.args, plan=plan, hang_s=hang_s, program=of_target.program)
