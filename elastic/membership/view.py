"""The agreed, ordered list of workers, with a generation that only rises. Pure.

A rank is a place in one view and means nothing without it. Under plain torchrun a view lives as long
as the processes do: losing one worker restarts all of them, so every process knows one view.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class View:
    """The agreed list of workers under one generation.

    workers       worker ids; a worker's rank is its index here, and rank 0 is the coordinator
    replica_size  so many workers hold one copy of the state together: rank r is of replica r // replica_size
    """

    generation: int
    workers: tuple[str, ...]
    replica_size: int = 1

    @property
    def world_size(self) -> int:
        return len(self.workers)

    def rank_of(self, worker_id: str) -> int:
        return self.workers.index(worker_id)
