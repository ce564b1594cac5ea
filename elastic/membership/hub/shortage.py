"""Are there nodes enough for a view, and how long does the run wait for more?"""

from __future__ import annotations

from collections.abc import Iterable

from elastic.membership.hub.orders import Outbox
from elastic.membership.hub.run_end import RunEnd
from elastic.membership.hub.workers import Worker

_SHORT_S = 1.0  # a node whose workers are being replaced is back by then


class Shortage:
    """
    needed  nodes: below it no view is formed
    wait_s  how long the run waits for them, before it ends
    """

    def __init__(self, end: RunEnd, out: Outbox, *, needed: int, wait_s: float) -> None:
        self._end = end
        self._out = out
        self._needed = needed
        self._wait_s = wait_s
        self._since_s: float | None = None
        self._said = False

    def is_short(self, there: Iterable[Worker]) -> bool:
        return len({worker.node for worker in there}) < self._needed

    def enough(self, there: Iterable[Worker]) -> bool:
        """For a view; a run that is finished needs none but those who are left."""
        return self._end.finished or not self.is_short(there)

    def waits(self, now_s: float, there: Iterable[Worker]) -> bool:
        """For others than these. Whether it was just said: it may be long."""
        nodes = sorted({worker.node for worker in there})
        if self._since_s is None:
            self._since_s, self._said = now_s, False
        elif now_s - self._since_s > _SHORT_S and not self._said:
            self._said = True
            have = f"{len(nodes)} of at least {self._needed} nodes are here ({', '.join(nodes)})"
            self._out.tell_people(f"{have}; waiting for the others")
            return True
        elif now_s - self._since_s > self._wait_s:
            self._end.begins(
                now_s,
                f"{len(nodes)} of at least {self._needed} nodes were here for {self._wait_s:.0f} s\n"
                f"  found  {', '.join(nodes)}",
                remedy="start the missing nodes with the same command, allow fewer with --nnodes=MIN:MAX, or wait "
                "longer\n         with --wait-for-nodes=SECONDS",
            )
        return False

    def is_over(self, now_s: float) -> float:
        """For how many seconds the run was short of nodes."""
        short_s = now_s - self._since_s if self._since_s is not None else 0.0
        self._since_s = None
        return short_s
