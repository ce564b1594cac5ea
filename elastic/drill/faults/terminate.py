"""SIGTERM to a worker: a notice to leave."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic.drill.faults.base import Fault, Flag, RunningDrill, Scene, Sizes, WorkerFault

if TYPE_CHECKING:
    from elastic.events.event import Event


@dataclass(frozen=True)
class Terminate(WorkerFault):
    """SIGTERM to the worker that has this rank at that moment: a notice to leave."""

    kind = "terminate"
    short = "terminate w{worker}"
    sentence = "SIGTERM to worker {worker}: it is to leave"
    flags = (Flag("leave", "SIGTERM to a worker: a notice to leave, and SIGKILL after --grace"),)
    record_first = False
    leaves = True

    @classmethod
    def remaining(cls, there: int, sizes: Sizes) -> int:
        return there - 1

    def strike(self, scene: Scene) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    def lasts_s(self, grace_s: float) -> float:
        return grace_s

    def end(self, struck: Event, run: RunningDrill, others: Iterable[Fault]) -> None:
        run.kill_overdue(struck)
