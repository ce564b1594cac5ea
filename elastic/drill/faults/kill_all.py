"""SIGKILL to everything, as a power cut would."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

from elastic.drill.faults.base import Flag, RunFault, Scene, Sizes


@dataclass(frozen=True)
class KillAll(RunFault):
    """SIGKILL to every process of the drill, launcher and loader processes included, as a power cut would."""

    kind = "kill_all"
    flags = (
        Flag(
            "lose-all",
            "SIGKILL to everything at once, agents included; the run is then started again",
            of_worker=False,
        ),
    )
    for_command = True
    on_hosts = False
    fatal = True
    restarts = "lost"

    @classmethod
    def remaining(cls, there: int, sizes: Sizes) -> int:
        return sizes.resume_workers

    def __str__(self) -> str:
        return f"{self.when} of w{self.worker}: kill all"

    def in_words(self) -> str:
        return "SIGKILL to everything, agents included"

    def strike(self, scene: Scene) -> None:
        from elastic.drill.machine.processes import kill_marked

        kill_marked(scene.drill.path)
        os.kill(os.getpid(), signal.SIGKILL)

    def lost(self) -> None:
        return None
