"""What the hub knows of one worker."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from elastic.membership.leaving import Holder
from elastic.membership.messages import Failed, Leaving, ViewIsOver
from elastic.membership.rules import Candidate


class WorkerStatus(Enum):
    """STARTING       its process runs, and has said nothing yet
    DIFFERENT      it was told that the run has another identity than its own
    READY          it waits to join
    MEMBER         it is in the present view, and trains
    BETWEEN_VIEWS  it has left the present view, and waits for the next one
    LEAVING        it waits to be released
    FINISHED       it has seen the run's end
    """

    STARTING, DIFFERENT, READY, MEMBER, BETWEEN_VIEWS, LEAVING, FINISHED = (auto() for _ in range(7))


@dataclass
class Worker:
    id: str
    node: str
    local_rank: int
    status: WorkerStatus = WorkerStatus.STARTING
    since_s: float = 0.0
    started_s: float = 0.0
    shares: int = 0
    identity: Any = None
    accepted: bool = False
    step: int = -1
    at: str | None = None
    whole: bool = True
    torn: bool = False
    joins: bool = True
    was_member: bool = False
    failed: Failed | None = None
    told_broken: int | None = None  # the generation of the newest view that it was told is broken
    asked_to_save: tuple[int, bool] | None = None  # after which view, and whether for a wait, it was asked to save
    released: bool = False
    safe: bool = False  # released, and what it holds is not lost with it
    within: int = 0  # the generation of the view that it was told of last

    @property
    def has_a_step(self) -> bool:
        """Not one whose view broke before it had received the state."""
        return self.step >= 0

    def stands(self, said: ViewIsOver | Leaving) -> None:
        self.step, self.whole, self.torn = said.step, said.whole, said.torn

    def holder(self) -> Holder:
        return Holder(worker=self.id, step=self.step, whole=self.whole, torn=self.torn, joins=self.joins)

    def candidate(self) -> Candidate:
        at = self.at if self.status == WorkerStatus.BETWEEN_VIEWS else None
        return Candidate(worker=self.id, node=self.node, shares=self.shares, at=at)
