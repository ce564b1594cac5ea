"""A worker stands still for a look at a run from outside."""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass

from elastic.drill.faults.base import Aftermath, Scene, WorkerFault

_LOOK_S = 0.02


@dataclass(frozen=True)
class Hold(WorkerFault):
    """The worker that has this rank at that moment stands still, and with it all who wait for it, until the cluster
    lets go: for a look at a run from outside. The faults after it in the plan wait as well."""

    kind = "hold"
    short = "hold w{worker}"
    sentence = "worker {worker} is held"
    holds = True

    def strike(self, scene: Scene) -> None:
        gc.collect()  # what only waits for that is not held for good
        while not scene.let_go.exists():
            time.sleep(_LOOK_S)
        scene.drill.forget_view(scene.index)

    def aftermath(self) -> Aftermath:
        return Aftermath.NO_LOSS
