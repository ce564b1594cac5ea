"""What goes wrong in the script's own code and its data: an exception, no memory, data that does not come, a lag."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from elastic.drill.faults.base import Aftermath, Flag, WorkerFault
from elastic.drill.faults.scene import Scene

_SPARE_BYTES = 256 << 20  # what may still be had under the limit, for whoever clears up


class OnPurpose(Exception):
    """An exception that a plan made the script raise."""


@dataclass(frozen=True)
class Raise(WorkerFault):
    """An exception in the training thread of the worker that has this rank at that moment, as of the script's own code.

    Its message names the fault: of two at one moment, equal to the letter, the second hits whoever redoes the step.
    """

    kind = "raise"
    sentence = "an exception in worker {worker}"
    flags = (Flag("exception", "an exception in the script's code"),)
    in_script = True
    takes = "workers"
    fails = True

    def strike(self, scene: Scene) -> None:
        raise OnPurpose(str(self))

    @classmethod
    def raised(cls, name: str, error: str) -> bool:
        return name == OnPurpose.__name__


@dataclass(frozen=True)
class OutOfMemory(WorkerFault):
    """The worker that has this rank at that moment gets no more memory.

    It meets a real limit of the kernel's (RLIMIT_AS), with a tensor that does not fit.
    """

    kind = "oom"
    sentence = "no more memory for worker {worker}"
    flags = (Flag("oom", "no more memory, by a limit of the kernel's"),)
    in_script = True
    takes = "workers"
    fails = True

    def strike(self, scene: Scene) -> None:
        """Raise what torch raises for a tensor that the kernel has no memory for."""
        import resource

        import torch

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + _SPARE_BYTES
        before = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
        try:
            torch.empty(2 * _SPARE_BYTES, dtype=torch.uint8)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)

    @classmethod
    def raised(cls, name: str, error: str) -> bool:
        return name == "MemoryError" or "memory" in error


@dataclass(frozen=True)
class StickLoader(WorkerFault):
    """The next read of an example does not come back, in the worker that has this rank at that moment.

    Its loader processes are stopped or, where it has none, the dataset hangs.
    """

    kind = "stick_loader"
    sentence = "the data of worker {worker} hangs"
    flags = (Flag("stick-loader", "a read that does not come back, until --hang-limit"),)
    takes = "workers"
    fails = True

    def strike(self, scene: Scene) -> None:
        from elastic.drill.machine.processes import loader_processes

        loaders = loader_processes()
        if not loaders:
            scene.hang_reads()
        for pid in loaders:
            os.kill(pid, signal.SIGSTOP)


@dataclass(frozen=True)
class Slow(WorkerFault):
    """The worker that has this rank at that moment is slower from then on.

    It stands still before each of its next `shares` shares, for `seconds`.
    """

    seconds: float = 0.1
    shares: int = 30

    kind = "slow"
    sentence = "worker {worker} lags by {seconds:g} s in each of {shares} shares"
    flags = (Flag("slow", "a worker that lags: 0.1 s in each of 30 shares; W@…,seconds=S,shares=N for others"),)
    facts = ("seconds", "shares")
    outcome = Aftermath.NO_LOSS

    def strike(self, scene: Scene) -> None:
        scene.slow_down(self.seconds, self.shares)
