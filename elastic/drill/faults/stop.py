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
    short = "stop w{worker}"
    sentence = "SIGSTOP to worker {worker}"
    flags = (Flag("stop", "SIGSTOP to a worker, which nobody wakes"),)
    loses_workers = True

    def strike(self, scene: Scene) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)
