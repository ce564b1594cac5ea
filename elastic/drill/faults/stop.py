"""SIGSTOP to a worker: it is there, and silent."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

from elastic.drill.faults.base import Flag, Scene, WorkerFault


@dataclass(frozen=True)
class Stop(WorkerFault):
    """SIGSTOP to the worker that has this rank at that moment; nobody wakes it."""

    kind = "stop"
    flags = (Flag("stop", "SIGSTOP to a worker, which nobody wakes"),)

    def __str__(self) -> str:
        return f"{self.when}: stop w{self.worker}"

    def in_words(self) -> str:
        return f"SIGSTOP to worker {self.worker}"

    def strike(self, scene: Scene) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    def lost(self) -> int:
        return 1
