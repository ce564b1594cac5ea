"""The agreed, ordered list of workers, with a generation that only rises. Pure.

A rank is a place in one view and means nothing without it. Under plain torchrun a view lives as long
as the processes do: losing one worker restarts all of them, so every process knows one view.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ReplicaPlace:
    """Where a worker stands among the replicas of its view.

    A replica is the workers that hold one copy of the state together. Where each worker holds all of it, a worker is
    one by itself: `index` and `count` are its rank and the view's world size.

    Attributes:
        index: The replica's number in the view, from 0; -1 in a run that was finished.
        count: How many replicas the view has.
        rank: This worker's place in its replica, from 0, which is its rank in `elastic.device_mesh()`, too.
        size: How many workers a replica has.
    """

    index: int
    count: int
    rank: int
    size: int


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
