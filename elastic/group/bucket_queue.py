"""Sends a step's buckets, in one order on all ranks, each as soon as its gradients have all arrived.

None leaves before all ranks are known to be about to do the same. With each that leaves, those before it go one stage
on (hierarchical_sum.py), so that several are under way at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from elastic.group.flat_sum import FlatSum
from elastic.group.form import Group
from elastic.group.hierarchical_sum import STAGES, tree_sum
from elastic.group.layout import Bucket, Layout
from elastic.group.tree import Schedule
from elastic.group.warm_memory import WarmMemory

Waiting = Callable[[], AbstractContextManager[None]]


def no_meeting() -> None:
    """Do nothing before the first bucket of a group that need not meet."""


class BucketQueue:
    """The buckets of one set of parameters, on their way.

    totals  one a bucket
    """

    def __init__(self, layout: Layout, group: Group, *, ordered: bool, memory: WarmMemory | None) -> None:
        self._buckets, self._bucket_of = layout.buckets, layout.bucket_of
        self.totals = [
            tree_sum(group, one.numel, one.dtype, one.device, ordered=ordered, memory=memory) for one in layout.buckets
        ]
        self._sent = 0
        self._missing: list[int] = []  # per bucket, in this rank's last pass
        self._meet: Callable[[], None] = no_meeting
        self._waiting: Waiting = nullcontext

    def begin(self, schedule: Schedule, meet: Callable[[], None], waiting: Waiting) -> None:
        """Begin a step; for meet and waiting see GradientSum.begin."""
        self._meet, self._waiting = meet, waiting
        self._sent, self._missing = 0, []
        for total in self.totals:
            total.begin(schedule)

    def begin_last_pass(self) -> None:
        """Expect all gradients, of this rank's last pass."""
        self._missing = [len(bucket.spans) for bucket in self._buckets]

    def completes(self, parameter: int) -> bool:
        """Note that a gradient of the last pass has arrived; return whether its bucket is complete with it."""
        bucket = self._bucket_of[parameter]
        self._missing[bucket] -= 1
        return not self._missing[bucket]

    def send_complete(self, complete: Callable[[Bucket, FlatSum], None]) -> None:
        """Send the buckets whose turn it is and whose gradients have all arrived. Raises PeerLost."""
        while self._sent < len(self._buckets) and self._missing[self._sent] == 0:
            self.send(complete)

    def flush(self, complete: Callable[[Bucket, FlatSum], None]) -> None:
        """Send what has not left yet. Raises PeerLost."""
        while self._sent < len(self._buckets):
            self.send(complete)

    def send(self, complete: Callable[[Bucket, FlatSum], None]) -> None:
        """Send the next bucket; complete: completes this rank's rows of it. Raises PeerLost."""
        if self._sent == 0:
            self._meet()
        bucket, total = self._buckets[self._sent], self.totals[self._sent]
        self._sent += 1
        complete(bucket, total)
        total.start()
        self._advance(self._sent - 1)

    def join(self) -> None:
        """Wait until all sums are there. Raises PeerLost."""
        for later in range(STAGES - 1):
            self._advance(len(self.totals) + later)
        for total in self.totals:
            total.join()

    def release(self, *, in_order: bool) -> None:
        """Let go of who waits; in_order: and of all memory, for nothing is in flight."""
        self._meet = no_meeting
        if in_order:
            for total in self.totals:
                total.release()

    def _advance(self, bucket: int) -> None:
        """Begin the next stage of buckets that left before and still travel, the same on all ranks. Raises PeerLost."""
        for total in self.totals[max(0, bucket - STAGES + 1) : bucket]:
            with nullcontext() if total.arrived else self._waiting():
                total.advance()
