"""Another node arrives. inject/joining_nodes.py starts it; the worker that sets the fault off may wait for it."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass

from elastic.drill.faults.base import Aftermath, Flag, RunFault, Scene
from elastic.drill.faults.moments import OF_A_SHARE
from elastic.events.drill_schema import Awaited
from elastic.events.words import counted

_LOOK_S = 0.02


@dataclass(frozen=True)
class Join(RunFault):
    """Another node arrives: the cluster starts one more launcher.

    workers  that it brings; None: as many as every other node has
    """

    workers: int | None = None

    kind = "join"
    flags = (Flag("join", "another node arrives, with one worker", {"workers": 1}, of_worker=False),)
    usual_phase = "forward"
    drawn_early = True
    for_command = True

    def __str__(self) -> str:
        brings = "" if self.workers is None else f" with {counted(self.workers, 'worker')}"
        return f"{self.when} of w{self.worker}: a node joins{brings}"

    def in_words(self) -> str:
        return "another node arrives" + (f", with {counted(self.workers, 'worker')}" if self.workers else "")

    def strike(self, scene: Scene) -> None:
        """Stands still until the node is there, as a run that is long enough would meet it. Nobody takes this worker
        for hung meanwhile."""
        if not scene.joins_await_s:
            return
        begun_s = time.monotonic()
        computes = self.when.phase in OF_A_SHARE
        with scene.run.long_section(2 * scene.joins_await_s) if computes else contextlib.nullcontext():
            while not scene.let_go.exists() and time.monotonic() - begun_s < scene.joins_await_s:
                time.sleep(_LOOK_S)
        waited_s, there = time.monotonic() - begun_s, scene.let_go.exists()
        scene.run.events.emit(Awaited(index=scene.index, seconds=waited_s, there=there))

    def aftermath(self) -> Aftermath:
        return Aftermath.GROWTH

    def joining(self, of_a_node: int) -> int:
        return self.workers or of_a_node
