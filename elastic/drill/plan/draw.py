"""Which faults strike, when and whom? Drawn from a seed: a pure function of its arguments, whatever the timing.

A drawn fault strikes a worker that is there for sure by then: workers that left are missed, those that join are not
counted on, and after the loss of all there are as many as the run is resumed with. Orphans still train for a step or
two: they are not struck again, since a stopped one has no agent left that would end it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from elastic.drill.faults.base import Fault, Sizes
from elastic.drill.faults.moments import OF_A_STEP, OF_THE_SCRIPT, At
from elastic.drill.faults.registry import NAMED

OF_A_SCRIPT_S_STEP = tuple(phase for phase in OF_A_STEP if phase in OF_THE_SCRIPT)
FIRST = 0.5  # of the faults of hosts strike the first one's: it has the hub, and where the nodes meet
SPARED = 0.12  # of the steps, the last: a fault there might find the run finished


def draw_faults(
    seed: int,
    *,
    kinds: Sequence[str],
    rate: float,
    steps: int,
    workers: int,
    nodes: int,
    resume_workers: int,
    replica_size: int = 1,
) -> tuple[Fault, ...]:
    """Return rate × steps faults, at least one, at distinct steps, in order.

    kinds  names in NAMED, each in turn as often as the others; where the last worker or node would leave, it is killed
    """
    draw = random.Random(f"elastic drill {seed}")
    last = max(1, steps - max(1, round(SPARED * steps)))
    count = min(max(1, round(rate * steps)), last)
    dealt = _dealt(draw, kinds, count)
    found: list[Fault] = []
    there, sizes = workers, Sizes(nodes, workers // nodes, resume_workers, replica_size)
    earliest = 0
    for drawn, name in zip(sorted(draw.sample(range(last), count)), dealt, strict=False):
        if (step := max(drawn, earliest)) >= steps:
            break
        kind = NAMED[name].kind
        chosen = NAMED[name if kind.remaining(there, sizes) > 0 and there >= kind.workers_min else "kill"]
        kind = chosen.kind
        phase = draw.choice(OF_A_SCRIPT_S_STEP if kind.in_script or there < 2 else OF_A_STEP)
        worker = 0 if kind.needs_hosts and draw.random() < FIRST else draw.randrange(there)
        found.append(chosen.fault(worker, At(step, kind.usual_phase or phase, later=True)).in_replicas(replica_size))
        there = kind.remaining(there, sizes)
        earliest = step + kind.settles
    return tuple(found)


def _dealt(draw: random.Random, kinds: Sequence[str], count: int) -> list[str]:
    """Return `count` kinds in order, each as often as the others; what takes time to show is in the first half."""
    dealt: list[str] = []
    while len(dealt) < count:
        dealt += draw.sample(list(kinds), len(kinds))
    dealt = dealt[:count]
    late = [at for at in range(count // 2, count) if NAMED[dealt[at]].kind.drawn_early]
    early = [at for at in range(count // 2) if not NAMED[dealt[at]].kind.drawn_early]
    for one, other in zip(late, early, strict=False):
        dealt[one], dealt[other] = dealt[other], dealt[one]
    return dealt
