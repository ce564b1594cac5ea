"""A recorded fleet as the faults of a drill: who goes and who comes, at the steps where a run sped up would be. Pure.

    a machine goes   kill-agent, of the node that stands for it
    a machine comes  join
    all go at once   lose-all, and that is the end of the replay: the run goes on as after any loss of all

It begins where the fleet first has as many machines as the drill has nodes. The first node hosts what later ones meet
at (inject/node_starter.py), so it takes the part of another one when the machine goes whose part it had.
"""

from __future__ import annotations

from dataclasses import dataclass

from elastic.drill.faults.base import Fault
from elastic.drill.faults.join import Join
from elastic.drill.faults.moments import At
from elastic.drill.faults.signals import KillAgent, KillAll
from elastic.drill.plan.draw import SPARED
from elastic.errors import ConfigError
from elastic.plan.trace import Trace

_APART = 2  # steps


@dataclass(frozen=True)
class Replay:
    """A recorded fleet that a run is to meet, faster than it was.

    speedup  so many seconds of the trace pass in a second of the run; None: as many as bring its end to the run's
    """

    trace: Trace
    speedup: float | None

    def faults(self, *, nodes: int, of_a_node: int, steps: int, step_s: float) -> tuple[Fault, ...]:
        """Return the faults in order, at least _APART steps from one to the next, without those too late for the run.

        step_s  seconds of a step of the run without faults
        Raises ConfigError where the fleet never has so many.
        """
        seen = from_first(self.trace, nodes)
        last = max(1, steps - max(1, round(SPARED * steps)))
        speedup = self.speedup or seen.length_s / (last * step_s)
        there = list(seen.changes[0].come)
        found: list[Fault] = []
        step = 0

        def moment(t_s: float, phase: str) -> At:
            nonlocal step
            step = max(round(t_s / speedup / step_s), step + _APART)
            return At(step, phase, later=True)

        for change in seen.changes[1:]:
            if set(there) <= set(change.gone):
                found.append(KillAll.make(0, moment(change.t_s, "backward")))
                break
            for node in change.gone:
                at = there.index(node)
                if at == 0:
                    there[0], there[1], at = there[1], there[0], 1
                del there[at]
                found.append(KillAgent(at * of_a_node, moment(change.t_s, "backward")))
            for node in change.come:
                there.append(node)
                found.append(Join.make(0, moment(change.t_s, Join.usual_phase), workers=of_a_node))
        return tuple(fault for fault in found if (fault.when.step or 0) < last)


def from_first(trace: Trace, nodes: int) -> Trace:
    """Return what a run with room for so many nodes sees of a trace, once it has them all. Raises ConfigError."""
    seen = trace.limited(nodes)
    t_s = 0.0
    for seconds, there in seen.stretches():
        if len(there) == nodes:
            return seen.window(t_s, seen.length_s)
        t_s += seconds
    raise ConfigError(
        f"{trace.name}: it never has {nodes} machines at once, but {seen.most} at most; use fewer --nodes"
    )
