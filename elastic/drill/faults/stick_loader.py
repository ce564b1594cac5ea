"""Data that does not come."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

from elastic.drill.faults.base import Flag, Scene, WorkerFault


@dataclass(frozen=True)
class StickLoader(WorkerFault):
    """The next read of an example does not come back, in the worker that has this rank at that moment: its loader
    processes are stopped, or, where it has none, the dataset hangs."""

    kind = "stick_loader"
    short = "the data of w{worker} hangs"
    sentence = "the data of worker {worker} hangs"
    flags = (Flag("stick-loader", "a read that does not come back, until --hang-limit"),)
    loses_workers = True
    fails = True

    def strike(self, scene: Scene) -> None:
        from elastic.drill.machine.processes import loader_processes

        loaders = loader_processes()
        if not loaders:
            scene.hang_reads()
        for pid in loaders:
            os.kill(pid, signal.SIGSTOP)
