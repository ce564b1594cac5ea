"""Whether there are nodes enough for a view, and how long the run waits for more."""

from __future__ import annotations

from collections.abc import Iterable

from elastic.membership.hub.orders import Outbox
from elastic.membership.hub.run_end import RunEnd
from elastic.membership.hub.workers import Worker

_SHORT_S = 1.0  # a node whose workers are being replaced is back by then


class Shortage:
    """The wait of a run for nodes that it needs for a view.

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
        """Return whether these workers are on fewer nodes than a view needs."""
        return len({worker.node for worker in there}) < self._needed

    def enough(self, there: Iterable[Worker]) -> bool:
        """Return whether a view can be formed; a run that is finished needs none but those who are left."""
        return self._end.finished or not self.is_short(there)

    def waits(self, now_s: float, there: Iterable[Worker]) -> bool:
        """Wait for more nodes, and end the run where that takes too long; return whether people were just told."""
        nodes = sorted({worker.node for worker in there})
        if self._since_s is None:
            self._since_s, self._said = now_s, False
        elif now_s - self._since_s > _SHORT_S and not self._said:
            self._said = True  # the wait may be long
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
        """End the wait; return for how many seconds the run was short of nodes."""
        short_s = now_s - self._since_s if self._since_s is not None else 0.0
        self._since_s = None
        return short_s
