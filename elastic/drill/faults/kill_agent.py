"""SIGKILL to an agent. Its workers are not hit: each finishes its step, and ends."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

from elastic.drill.faults.base import Flag, Scene, Sizes
from elastic.drill.faults.lose_node import LoseNode


@dataclass(frozen=True)
class KillAgent(LoseNode):
    """SIGKILL to the launcher of the node on which this rank runs, and to nothing else."""

    kind = "kill_agent"
    short = "kill the agent of w{worker}"
    sentence = "SIGKILL to the agent of worker {worker}"
    flags = (Flag("kill-agent", "SIGKILL to the agent of a worker's node"),)
    restarts = "left"
    orphans = True

    @classmethod
    def remaining(cls, there: int, sizes: Sizes) -> int:
        return sizes.resume_workers if sizes.nodes == 1 else max(1, there - sizes.of_a_node)

    def strike(self, scene: Scene) -> None:
        os.kill(os.getppid(), signal.SIGKILL)
