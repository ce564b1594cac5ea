"""SIGKILL to a process that helps a worker."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

from elastic.drill.faults.base import Aftermath, Flag, Scene, WorkerFault
from elastic.errors import ConfigError

_HELPERS = {
    "loader": "a loader process of worker {}",
    "writer": "the checkpoint writer of worker {}",
    "warm": "the warm process beside worker {}",
}


@dataclass(frozen=True)
class KillChild(WorkerFault):
    """SIGKILL to a helper of the worker that has this rank at that moment, and to nothing else. The fault waits until
    there is one.

    of  "loader": one of its loader processes; "writer": the process that writes its checkpoints; "warm": the process
        that its agent forks workers from
    """

    of: str

    kind = "kill_child"
    short = "kill the {of} process of w{worker}"
    flags = (
        Flag("kill-loader", "SIGKILL to one of a worker's loader processes", {"of": "loader"}),
        Flag("kill-warm", "SIGKILL to the warm process that its agent forks workers from", {"of": "warm"}),
        Flag("kill-writer", "SIGKILL to the process that writes checkpoints", {"of": "writer"}, of_worker=False),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.of not in _HELPERS:
            raise ConfigError(f"KillChild: of={self.of!r}; a worker's helpers are {', '.join(_HELPERS)}")

    def in_words(self) -> str:
        return f"SIGKILL to {_HELPERS[self.of].format(self.worker)}"

    def possible(self, scene: Scene) -> bool:
        return bool(self._helpers())

    def strike(self, scene: Scene) -> None:
        for pid in self._helpers()[:1]:
            os.kill(pid, signal.SIGKILL)

    def _helpers(self) -> list[int]:
        """Their pids, seen from the worker that it strikes."""
        from elastic.drill.machine import processes

        if self.of == "loader":
            return processes.loader_processes()
        return processes.writer_processes() if self.of == "writer" else processes.warm_processes()

    def aftermath(self) -> Aftermath:
        """A worker may fail with its loader process, or only start another one."""
        return Aftermath.PERHAPS_LOSS if self.of == "loader" else Aftermath.NO_LOSS

    def lost(self) -> int:
        return int(self.of == "loader")

    def failure(self) -> str | None:
        return f"{self.kind}_{self.of}" if self.of == "loader" else None
