"""SIGTERM to an agent: all workers of its node are to leave."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

from elastic.drill.faults.base import Flag, Scene, Sizes, WorkerFault


@dataclass(frozen=True)
class LeaveNode(WorkerFault):
    """SIGTERM to the launcher of the node on which this rank runs: all its workers are to leave."""

    kind = "leave_node"
    short = "the node of w{worker} leaves"
    sentence = "SIGTERM to the agent of worker {worker}: its node is to leave"
    flags = (Flag("leave-node", "SIGTERM to the agent of a worker's node: all its workers leave"),)
    takes_node = True
    leaves = True

    @classmethod
    def remaining(cls, there: int, sizes: Sizes) -> int:
        return there - sizes.of_a_node

    def strike(self, scene: Scene) -> None:
        os.kill(os.getppid(), signal.SIGTERM)

    def excuses(self, status: int, *, taken: bool) -> bool:
        """It ends with 1 where a worker of its node did not get to the boundary, because another fault took it."""
        return taken and status == 1
