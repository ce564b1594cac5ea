"""What faults have in common that take all workers of a node, and its agent."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from elastic.drill.faults.base import WorkerFault


@dataclass(frozen=True)
class LoseNode(WorkerFault):
    """Of the node on which this rank runs."""

    takes_node = True

    def lost(self) -> None:
        return None

    def lost_max(self, of_a_node: int) -> int:
        return of_a_node

    def excuses(self, status: int, *, taken: bool) -> bool:
        return status == -signal.SIGKILL
