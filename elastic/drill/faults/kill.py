"""SIGKILL to a worker, or to several at once."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import Any

from elastic.drill.faults.base import Fault, Flag, Scene, WorkerFault
from elastic.drill.faults.moments import At
from elastic.drill.faults.several_workers import SeveralWorkers


@dataclass(frozen=True)
class Kill(WorkerFault):
    """SIGKILL to the worker that has this rank at that moment."""

    kind = "kill"
    short = "kill w{worker}"
    sentence = "SIGKILL to worker {worker}"
    flags = (Flag("kill", "SIGKILL to a worker; W,W@… kills several at once"),)
    fatal = True
    loses_workers = True

    @classmethod
    def together(cls, workers: tuple[int, ...], when: At, **fields: Any) -> Fault:
        return KillTogether(workers, when, **fields)

    def strike(self, scene: Scene) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class KillTogether(SeveralWorkers):
    """SIGKILL to several workers of a view at once; those of them that have not come to that view are spared."""

    kind = "kill_together"
    name = "kill W,W"
    on_hosts = False
    loses_workers = True

    def __str__(self) -> str:
        return f"{self.when}: kill {' and '.join(f'w{worker}' for worker in self.workers)}"

    def in_words(self) -> str:
        return f"SIGKILL to workers {' and '.join(map(str, self.workers))} at once"

    def strike(self, scene: Scene) -> None:
        for pid in scene.drill.alive_with_ranks(scene.run.generation, self.workers[1:]):
            os.kill(pid, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
