"""What the faults have in common of which no process dies: something is wrong in one worker, and the run is to find it.

It may end the run, or only the worker: then the drill judges what the same command makes of it, or what the others do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from elastic.drill.faults.base import Aftermath, Scene, WorkerFault


@dataclass(frozen=True)
class SilentFault(WorkerFault):
    """The fault waits until there is another worker to compare with.

    found_as  names of the errors that say that it was found
    """

    found_as: ClassVar[tuple[str, ...]] = ("ComputesWrongly", "NotLetIn", "CollectiveMismatch", "StepError")

    for_command = True
    restarts = "found"
    misleads = True

    @classmethod
    def finds(cls, error: str) -> bool:
        return error.startswith(cls.found_as)

    def possible(self, scene: Scene) -> bool:
        return scene.run.world_size > 1

    def aftermath(self) -> Aftermath:
        return Aftermath.PERHAPS_LOSS

    def lost(self) -> int:
        return 1

    def lost_max(self, of_a_node: int) -> int | None:
        """All of a view, where what they hold may come from this worker: they begin again from the newest save."""
        return None
