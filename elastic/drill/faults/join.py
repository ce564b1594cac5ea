"""Another node arrives. inject/joining_nodes.py starts it; the worker that sets the fault off may wait for it."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, replace

from elastic.drill.faults.base import Aftermath, Fault, Flag, RunFault
from elastic.drill.faults.moments import OF_A_SHARE
from elastic.drill.faults.scene import Scene
from elastic.events.drill_schema import Awaited
from elastic.events.words import counted


@dataclass(frozen=True)
class Join(RunFault):
    """Another node arrives: the cluster starts one more launcher.

    workers  that it brings; None: as many as every other node has
    """

    workers: int | None = None

    kind = "join"
    flags = (Flag("join", "another node arrives, with one worker, or one replica", {"workers": 1}, of_worker=False),)
    usual_phase = "forward"
    drawn_early = True
    for_command = True
    outcome = Aftermath.GROWTH

    def in_words(self) -> str:
        return "another node arrives" + (f", with {counted(self.workers, 'worker')}" if self.workers else "")

    def strike(self, scene: Scene) -> None:
        """Stand still until the node is there, so that a short run meets it as a long one would."""
        if not scene.joins_await_s:
            return
        begun_s = time.monotonic()
        computes = self.when.phase in OF_A_SHARE  # then nobody is to take this worker for hung
        with scene.run.long_section(2 * scene.joins_await_s) if computes else contextlib.nullcontext():
            there = scene.stand_still(scene.joins_await_s)
        scene.run.events.emit(Awaited(index=scene.index, seconds=time.monotonic() - begun_s, there=there))

    def in_replicas(self, size: int) -> Fault:
        return replace(self, workers=self.workers * size) if self.workers is not None else self

    def joining(self, of_a_node: int) -> int:
        return self.workers or of_a_node
