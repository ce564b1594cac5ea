"""Which kinds of faults there are. What a new one takes beside its file and its name here is listed in
CONTRIBUTING.md, "Add a fault to drills".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from elastic.drill.faults.base import Fault, Flag
from elastic.drill.faults.corrupt_batch import CorruptBatch
from elastic.drill.faults.corrupt_gradient import CorruptGradient
from elastic.drill.faults.corrupt_state import CorruptState
from elastic.drill.faults.cut import Cut
from elastic.drill.faults.disk import Disk
from elastic.drill.faults.exception import Raise
from elastic.drill.faults.flip import Flip
from elastic.drill.faults.heal import Heal
from elastic.drill.faults.hold import Hold
from elastic.drill.faults.join import Join
from elastic.drill.faults.kill import Kill, KillTogether
from elastic.drill.faults.kill_agent import KillAgent
from elastic.drill.faults.kill_all import KillAll
from elastic.drill.faults.kill_child import KillChild
from elastic.drill.faults.leave_node import LeaveNode
from elastic.drill.faults.lose_checkpoint import LoseCheckpoint
from elastic.drill.faults.lose_host import LoseHost
from elastic.drill.faults.lose_packets import LosePackets
from elastic.drill.faults.message import Message
from elastic.drill.faults.moments import At
from elastic.drill.faults.other_rate import OtherRate
from elastic.drill.faults.out_of_memory import OutOfMemory
from elastic.drill.faults.out_of_step import OutOfStep
from elastic.drill.faults.partition import Partition
from elastic.drill.faults.slow import Slow
from elastic.drill.faults.slow_network import SlowNetwork
from elastic.drill.faults.stale_state import StaleState
from elastic.drill.faults.stick_loader import StickLoader
from elastic.drill.faults.stop import Stop
from elastic.drill.faults.terminate import Terminate

_KINDS: tuple[type[Fault], ...] = (
    Kill, KillTogether, Stop, Terminate, Join, KillAll, Raise, OutOfMemory, Slow, StickLoader, KillChild, Flip, Disk,
    KillAgent, LeaveNode, Hold, LoseHost, Cut, LosePackets, SlowNetwork, Partition, Heal,
    CorruptState, CorruptGradient, CorruptBatch, StaleState, OtherRate, LoseCheckpoint, Message,
    OutOfStep,
)  # fmt: skip
KINDS = {kind.kind: kind for kind in _KINDS}
"""By the name in a plan's JSON. New kinds go to the end: what a seed draws in the tests' random drills depends
on the order."""


@dataclass(frozen=True)
class NamedKind:
    """A kind of fault under one of its names."""

    kind: type[Fault]
    flag: Flag

    def fault(self, worker: int, when: At, **facts: Any) -> Fault:
        """The fault of that rank at that moment."""
        return self.kind.make(worker if self.flag.of_worker else 0, when, **self.flag.fields, **facts)


NAMED = {flag.name: NamedKind(kind, flag) for kind in _KINDS for flag in kind.flags}
"""By the name on the command line, of those that a seed can draw."""
