"""What faults of several workers of a view have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from elastic.drill.faults.base import Fault
from elastic.drill.faults.moments import At


@dataclass(frozen=True)
class SeveralWorkers(Fault):
    """workers  ranks; the first one's arrival sets it off"""

    workers: tuple[int, ...]
    when: At

    @property
    def worker(self) -> int:
        return self.workers[0]

    @property
    def ranks(self) -> tuple[int, ...]:
        return self.workers

    @classmethod
    def make(cls, worker: int, when: At, **fields: Any) -> Fault:
        return cls((worker,), when, **fields)
