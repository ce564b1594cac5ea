"""Which faults strike, when and whom? Drawn from a seed: a pure function of its arguments, whatever the timing.

A drawn fault strikes a worker that is there for sure by then: workers that left are missed, those that join are not
counted on, and after the loss of all there are as many as the run is resumed with.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from elastic.drill.faults import (
    OF_A_STEP,
    OF_THE_SCRIPT,
    At,
    Disk,
    Fault,
    Flip,
    Join,
    Kill,
    KillAgent,
    KillAll,
    KillChild,
    LeaveNode,
    OutOfMemory,
    Raise,
    Slow,
    StickLoader,
    Stop,
    Terminate,
)

OF_A_SCRIPT_S_STEP = tuple(phase for phase in OF_A_STEP if phase in OF_THE_SCRIPT)
SPARED = 0.12  # of the steps, the last: a fault there might find the run finished

_Make = Callable[[int, At], Fault]
MAKES: dict[str, _Make] = {
    "kill": Kill,
    "stop": Stop,
    "leave": Terminate,
    "join": lambda worker, when: Join(At(when.step, "forward", worker=0, later=when.later), workers=1),
    "lose-all": lambda worker, when: KillAll(At(when.step, when.phase, worker=0, later=when.later)),
    "exception": Raise,
    "oom": OutOfMemory,
    "slow": Slow,
    "stick-loader": StickLoader,
    "kill-loader": lambda worker, when: KillChild(worker, when, "loader"),
    "kill-warm": lambda worker, when: KillChild(worker, when, "warm"),
    "kill-writer": lambda worker, when: KillChild(0, when, "writer"),
    "flip-bytes": lambda worker, when: Flip(0, when),
    "disk-full": lambda worker, when: Disk(0, when, "full"),
    "read-only": lambda worker, when: Disk(0, when, "read_only"),
    "kill-agent": KillAgent,
    "leave-node": LeaveNode,
}
"""By its name on the command line, makes the fault of that rank at that moment."""


def drawn(
    seed: int, *, kinds: Sequence[str], rate: float, steps: int, workers: int, nodes: int, resume_workers: int
) -> tuple[Fault, ...]:
    """rate × steps faults, at least one, at distinct steps, in order.

    kinds  keys of MAKES, each in turn as often as the others; where the last worker or node would leave, it is killed
    """
    draw = random.Random(f"elastic drill {seed}")
    last = max(1, steps - max(1, round(SPARED * steps)))
    count = min(max(1, round(rate * steps)), last)
    dealt: list[str] = []
    while len(dealt) < count:
        dealt += draw.sample(list(kinds), len(kinds))
    dealt = dealt[:count]
    late = [at for at in range(count // 2, count) if dealt[at] == "join"]
    for at, early in zip(late, [at for at in range(count // 2) if dealt[at] != "join"], strict=False):
        dealt[at], dealt[early] = dealt[early], dealt[at]  # a node needs seconds to come
    found: list[Fault] = []
    there, of_a_node = workers, workers // nodes
    for step, kind in zip(sorted(draw.sample(range(last), count)), dealt, strict=False):
        if (kind == "leave" and there < 2) or (kind == "leave-node" and there <= of_a_node):
            kind = "kill"
        of_script = kind in ("exception", "oom")
        phase = draw.choice(OF_A_SCRIPT_S_STEP if of_script or there < 2 else OF_A_STEP)
        worker = draw.randrange(there)
        found.append(MAKES[kind](worker, At(step, phase, later=True)))
        if kind == "lose-all" or (kind == "kill-agent" and nodes == 1):
            there = resume_workers
        elif kind in ("kill-agent", "leave-node"):
            there = max(1, there - of_a_node)
        elif kind == "leave":
            there -= 1
    return tuple(found)
