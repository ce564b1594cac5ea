"""SIGKILL to an agent. Its workers are not hit: each finishes its step, and ends."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

from elastic.drill.faults.base import Flag, Scene, Sizes, WorkerFault


@dataclass(frozen=True)
class KillAgent(WorkerFault):
    """SIGKILL to the launcher of the node on which this rank runs, and to nothing else."""

    kind = "kill_agent"
    short = "kill the agent of w{worker}"
    sentence = "SIGKILL to the agent of worker {worker}"
    flags = (Flag("kill-agent", "SIGKILL to the agent of a worker's node"),)
    takes_node = True
    restarts = "left"
    orphans = True

    @classmethod
    def remaining(cls, there: int, sizes: Sizes) -> int:
        return sizes.resume_workers if sizes.nodes == 1 else max(1, there - sizes.of_a_node)

    def strike(self, scene: Scene) -> None:
        os.kill(os.getppid(), signal.SIGKILL)

    def lost(self) -> None:
        return None

    def lost_max(self, of_a_node: int) -> int:
        return of_a_node

    def excuses(self, status: int, *, taken: bool) -> bool:
        return status == -signal.SIGKILL
