"""Draws a drill of a target from a seed: a plain loop, or a script of another framework, and all that goes wrong.

A pure function, as random_drills.py, with which it shares the kinds of faults and their rarer moments. Six faults of
all kinds strike 2, 3 or 5 workers, over which 8 shares are not always dealt evenly. Running them is run_drills.py's.
"""

from __future__ import annotations

import random

from elastic.drill.plan.draw import draw_faults
from elastic.drill.plan.drill_plan import DrillPlan
from tests.kit.random_drills import STUCK_S, RandomDrill, Script, fitting, sharpened, storage_faults

FAULTS = 6
TARGETS: dict[str, tuple[str, tuple[tuple[str, ...], ...]]] = {
    "plain": ("plain.py", (("--short=21",), ("--batch-size=48", "--short=42", "--micro-batch-size=3"))),
    "accelerate": ("accelerated.py", ((),)),
    "fabric": ("fabricated.py", ((),)),
    "transformers": ("trainer.py", ((), ("--model=bert", "--best"))),
    "lightning": ("fit.py", (("--check=0.5",), ("--schedule=epoch", "--average"), ("--schedule=plateau",))),
}
"""By the target's name: its program, and the options of which one set is drawn."""
_STEPS, _PAUSE_S = 84, 0.05  # --unhurried pauses so long after each step, at least
_WORKERS_MAX = 9  # with those that join


def target_drill(target: str, seed: int) -> RandomDrill:
    """The drill of this target that has this seed."""
    draw = random.Random(f"random drill of {target} {seed}")
    program, variants = TARGETS[target]
    num_workers = draw.choice((0, 1))
    options = Script(
        args=(
            *draw.choice(variants),
            f"--steps={_STEPS}",
            f"--unhurried={_WORKERS_MAX}",
            f"--num-workers={num_workers}",
        ),
        steps=_STEPS,
        pause=_PAUSE_S,
        num_workers=num_workers,
        save_every="3",
        evaluates=target in ("plain", "transformers"),
        habit=None,
    )
    workers = draw.choice((2, 3, 5))
    nodes = draw.choice((1, 1, workers)) if workers < 5 else 1
    resume_workers = draw.choice((2, 3, 5))
    kinds, drawn_from = fitting(options), draw.randrange(1_000_000)
    sizes = {"workers": workers, "nodes": nodes, "resume_workers": resume_workers}
    faults = draw_faults(drawn_from, kinds=kinds, rate=FAULTS / options.steps, steps=options.steps, **sizes)
    plan = DrillPlan(
        workers=workers,
        nodes=nodes,
        resume_workers=resume_workers,
        seed=seed,
        grace_s=draw.choice((3.0, 30.0)),
        storage=storage_faults(draw),
        faults=sharpened(draw, faults, options, **sizes),
    )
    hang_s = STUCK_S if any(fault.kind == "stick_loader" for fault in plan.faults) else None
    return RandomDrill(seed=seed, args=options.args, plan=plan, hang_s=hang_s, program=program)
