"""A soak's plan, drawn from a seed: each fault when all workers are back, or while they recover from the one before."""

from __future__ import annotations

import random

from elastic.drill.faults import (
    IN_TRANSFER,
    OF_A_STEP,
    At,
    Fault,
    Hold,
    Join,
    Kill,
    KillTogether,
    LeaveNode,
    Plan,
    Raise,
    Stop,
)
from elastic.drill.plan.draw import OF_A_SCRIPT_S_STEP


def soak(seed: int, faults: int, workers: int = 4) -> Plan:
    """Each fault comes when all are back, or, one in five, while they recover from the one before.

    The run is held after the first third, and at its end. In between the coordinator is spared: it is the survivor of
    all, whose descriptors and threads are counted. For two nodes of two workers each.
    """
    draw = random.Random(seed)
    plan: list[Fault] = []
    while len(plan) < faults:
        first = len(plan) < faults // 3
        worker = draw.randrange(0 if first else 1, workers)
        kind = draw.choice(["kill"] * 5 + ["together", "together", "stop", "raise", "raise", "leave"])
        when = At(None, draw.choice(OF_A_STEP), world_size=workers)
        if plan and isinstance(plan[-1], Kill | Raise | Stop) and draw.random() < 0.25:
            plan.append(Kill(1, At(None, draw.choice(("form", "formed", "transfer", IN_TRANSFER)))))
        elif kind == "kill":
            plan.append(Kill(worker, when))
        elif kind == "together":
            plan.append(KillTogether((worker, {0: 2, 1: 3, 2: 1, 3: 2}[worker]), when))  # the first node keeps one
        elif kind == "stop":
            plan.append(Stop(worker, when))
        elif kind == "raise":
            plan.append(Raise(worker, At(None, draw.choice(OF_A_SCRIPT_S_STEP), world_size=workers)))
        else:
            plan += [LeaveNode(workers - 1, when), Join(At(None, "forward", worker=0, world_size=workers // 2))]
    held = Hold(0, At(None, "data", world_size=workers))
    alone = [at for at, fault in enumerate(plan) if at >= faults // 3 and fault.when.world_size == workers]
    third = alone[0] if alone else len(plan)  # not between a fault and the one that strikes its recovery
    return Plan((*plan[:third], held, *plan[third:], held), seed)
