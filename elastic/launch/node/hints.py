"""A cloud's hints: each makes the run save once, and nobody leaves.

Those workers of the node are told who are in the run when it comes; where there are none, the first that comes to be.
One of them is enough, for the request rides on the next exchange of all (loop/between_steps/boundary.py).
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from elastic.launch.workers.node_worker import NodeWorker
from elastic.membership.messages.messages import Hint
from elastic.preemption.notice import Notice

_Known = tuple[str, str]  # a notice by its source and its id


class Hints:
    """The hints to one node that are in force."""

    def __init__(self) -> None:
        self._in_force: dict[_Known, Notice] = {}
        self._sent_to: dict[_Known, set[str]] = {}  # who was, by token

    def came(self, hint: Notice, workers: Iterable[NodeWorker]) -> None:
        """Keep a hint, and tell the workers that are in the run."""
        self._in_force[_known_as(hint)] = hint
        for worker in workers:
            if worker.ready:
                self._tell(hint, worker)

    def withdrawn(self, hint: Notice) -> None:
        """Forget a hint that holds no more."""
        self._in_force.pop(_known_as(hint), None)
        self._sent_to.pop(_known_as(hint), None)

    def is_ready(self, worker: NodeWorker, workers: Iterable[NodeWorker]) -> None:
        """Tell a worker that has come to the run the hints that nobody here was told; workers: all of the node."""
        here = {one.token for one in workers}
        for known, hint in self._in_force.items():
            if here.isdisjoint(self._sent_to.get(known, ())):  # else somebody here has seen, or sees, to the save
                self._tell(hint, worker)

    def _tell(self, hint: Notice, worker: NodeWorker) -> None:
        self._sent_to.setdefault(_known_as(hint), set()).add(worker.token)
        worker.tell(Hint(why=hint.why, left_s=hint.left_s(time.monotonic())))


def _known_as(notice: Notice) -> _Known:
    return notice.source, notice.id
