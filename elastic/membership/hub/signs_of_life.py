"""Whether anybody gives signs of life in the run's storage, as far as the hub knows.

The coordinator of a view does once all have met in it, and before that who took the claim
(elastic_checkpoint/runs/sign_of_life.py). Workers that hold no state take the next claim, and begin anew, once they
have seen none for a grace of 15 s. So those who are left when the last one who gave them has gone, however that was,
may only go on without another claim if they do so before that time can be over.
"""

from __future__ import annotations

from collections.abc import Collection

from elastic.membership.hub.workers import Workers
from elastic.membership.succession.succession import KnownView

# Of the 15 s of elastic_checkpoint/runs/holder.py: the last sign may have been 5 s old when its giver went
# (elastic_checkpoint/runs/sign_of_life.py), and all have to meet before the next one.
_LAST_S = 3.0


class SignsOfLife:
    """Who gives signs of life in the run's storage, and since when nobody does. Pure but for what it remembers.

    takes_over  from another hub, so that what was before is not known
    """

    def __init__(self, workers: Workers, *, takes_over: bool) -> None:
        self._workers = workers
        self._takes_over = takes_over
        self._giver: str | None = None  # the worker that is known to give them, as long as it lives,
        self._claim: int | None = None  # for this claim
        self._silent_since_s: float | None = None

    def given_by(self, worker: str, claim: int | None) -> None:
        """Note that a worker has taken that claim, and gives signs for it."""
        self._giver, self._claim, self._silent_since_s = worker, claim, None

    def look(self, now_s: float, claim: int | None, view: KnownView | None, *, departed: Collection[str]) -> None:
        """Find out whether signs are given, whenever something was heard, or time goes by.

        claim     the newest of the run, as far as is known: whose signs newcomers look for
        view      the present one, if it is known
        departed  nodes that have said that they go
        """
        workers = self._workers
        if not workers.view:
            return
        coordinator, is_under_it = workers.view[0], view is not None and view.claim == claim
        if view is not None and view.met and is_under_it and coordinator in workers:
            self.given_by(coordinator, claim)
        if self._giver is None:
            is_known = not self._takes_over or (is_under_it and workers.view_nodes[coordinator] in departed)
        else:
            is_known = self._claim == claim
        if is_known and self._giver is not None and self._giver in workers:
            self._silent_since_s = None
        elif self._silent_since_s is None or not is_known:
            self._silent_since_s = now_s if is_known else float("-inf")

    def last(self, now_s: float) -> bool:
        """Return whether nobody can have missed the signs yet."""
        return self._silent_since_s is None or now_s - self._silent_since_s < _LAST_S
