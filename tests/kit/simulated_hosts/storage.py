"""The run's storage as the control plane sees it: numbered claims, each created once, and the newest commit.

Answers take time, or do not come. Who may take which claim is the product's rule
(membership/succession/succession.py); here is only what an exclusive create makes of it: whatever is decided is
decided at one instant.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from elastic.membership.succession.succession import may_succeed

Document = dict[str, Any]
Lives = Callable[[], bool]


class Refused(Exception):
    """newest: the claim that others have"""

    def __init__(self, newest: Document) -> None:
        super().__init__(f"claim {newest['claim']} is newer")
        self.newest = newest


class Storage:
    """That all nodes see, or a folder of one of them."""

    def __init__(self, where: str) -> None:
        self._where = where
        self.claims: list[Document] = []
        self.step = 0
        self.lives: Lives = lambda: False  # who holds the newest claim, and renews its heartbeat
        self.liveness = ""  # what answers for it

    @property
    def newest(self) -> int:
        return len(self.claims)

    def begins(self, lives: Lives, *, liveness: str, answers: bool, unanswered: bool, nodes: list[str]) -> Document:
        """For workers that hold no state. Raises Refused where the holder of the newest claim is alive, as far as can
        be told (elastic_checkpoint/runs/own_claim.py, holder.py).

        answers     the newest claim's liveness endpoint does
        unanswered  see messages.NewView: of ours, that says nothing
        """
        ours = self.liveness == liveness
        if self.claims and not (ours and not unanswered) and ((answers and not ours) or self.lives()):
            raise Refused(self.claims[-1])
        return self._create(lives, liveness, nodes)

    def succeeds(self, lives: Lives, to: int, *, liveness: str, nodes: list[str]) -> Document:
        """Raises Refused."""
        if not self.claims:
            return self._create(lives, liveness, nodes)
        newest = self.claims[-1]
        if not may_succeed(to=to, nodes=nodes, newest=newest["claim"], its_nodes=newest["world"]["nodes"]):
            raise Refused(newest)
        return self._create(lives, liveness, nodes)

    def commits(self, lives: Lives, *, claim: int, step: int) -> bool:
        """Whether this claim may (elastic_checkpoint/runs/newer_claim.py)."""
        if claim != self.newest:
            return False
        self.step, self.lives = step, lives
        return True

    def adopted(self, lives: Lives, *, claim: int) -> None:
        """By the coordinator of the next view under it, which renews its heartbeat from then on
        (elastic_checkpoint/runs/own_claim.py: adopt)."""
        if claim == self.newest:
            self.lives = lives

    def moves(self, liveness: str, *, claim: int) -> None:
        """What answers for the run has moved with its hub (elastic_checkpoint/runs/liveness.py)."""
        if claim == self.newest:
            self.liveness = liveness

    def _create(self, lives: Lives, liveness: str, nodes: list[str]) -> Document:
        self.lives, self.liveness = lives, liveness
        self.claims.append(
            {"claim": self.newest + 1, "nonce": liveness, "taken_at": self._where, "world": {"nodes": sorted(nodes)}}
        )
        return self.claims[-1]
