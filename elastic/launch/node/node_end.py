"""How a node ends: until when its workers may take if it is told to leave, and with which status its agent does.

A node that is told to leave may have been told until when its machine is there. Its workers have the time that they are
granted, or that time, whichever is longer; whoever has not ended by then is killed.
What its workers are told, and when the agent ends, is agent.py's.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from elastic.events import words
from elastic.membership.exit_statuses import AGAIN, INTERRUPTED
from elastic.membership.messages.messages import Leave, RunIsOver

FAILED = 1


def left_status(departed: str, leave_status: int) -> int:
    """Return the status of a node that has left in order: 130 on Ctrl-C unless --leave-status is given, else that."""
    # On 0 a shell would go on with half a result; a scheduler's notice keeps its status.
    return INTERRUPTED if departed == signal.SIGINT.name and not leave_status else leave_status


class NodeEnd:
    """What is known of the end of the run on this node.

    run           the hub's word that the run is over
    hub_gone      and there is no other
    not_admitted  this node has no part in the run: it had its most nodes, or is not found
    finished      a worker of it has come to the run's end
    killed        everything was ended at once
    """

    def __init__(self) -> None:
        self.run: RunIsOver | None = None
        self.hub_gone = self.not_admitted = self.finished = self.killed = False
        self._disorder = False
        self._taken = False  # a worker that was told to leave, by a kill from outside

    @property
    def has_come(self) -> bool:
        """Return whether the run is over for this node, whatever its workers do."""
        return self.run is not None or self.hub_gone or self.not_admitted

    def ended_otherwise(self, *, taken: bool) -> None:
        """Note that a worker that was told to end ended otherwise; taken: by a kill from outside."""
        self._taken |= taken
        self._disorder |= not taken

    def status(self, departed: str | None, leave_status: int, *, say: Callable[[str], None]) -> int:
        """Return the agent's exit status, and say why; departed: why the node has left, None: it has not."""
        if self.killed:
            return INTERRUPTED
        if self.run is not None and self.run.failed:
            say(f"the run failed: {self.run.why}")
            return FAILED
        if self.not_admitted and self.run is None:
            return AGAIN
        if self.run is not None and self.run.why:
            say(self.run.why)
        unsafe = self._taken and self.run is None  # else the hub says that what it held is not lost
        if self.hub_gone or self._disorder or unsafe:
            return FAILED
        if departed is not None and not self.finished:
            leave_status = left_status(departed, leave_status)
            say(f"this node has left ({departed}); the same command goes on with the run (status {leave_status})")
            return leave_status
        return 0


class NodeDeparture:
    """Whether one node leaves, and how long its workers may take.

    within_s  how long its workers may take to end
    why       "" while it stays
    by_s      the node is gone then, by time.monotonic(); None: nobody says
    """

    def __init__(self, within_s: float) -> None:
        self._within_s = within_s
        self.why = ""
        self.begun = False
        self.by_s: float | None = None
        self._deadline_s: float | None = None  # for the workers' end

    def begins(self, why: str) -> None:
        self.begun, self.why = True, why

    def is_sooner(self, by_s: float | None) -> bool:
        """Return whether the node is gone sooner than was known; then that counts."""
        sooner = by_s is not None and (self.by_s is None or by_s < self.by_s)
        self.by_s = by_s if sooner else self.by_s
        if self._deadline_s is not None and self.by_s is not None:
            self._deadline_s = max(self._deadline_s, self.by_s)
        return sooner

    def message(self) -> Leave:
        return Leave(why=self.why, left_s=None if self.by_s is None else max(0.0, self.by_s - time.monotonic()))

    def sentence(self, workers: int, by_s: float | None) -> str:
        """Return what people are told; by_s: as whoever makes the node leave says."""
        within = "" if by_s is None else f", in {words.seconds(max(0.0, by_s - time.monotonic()))}"
        who = "worker of this node leaves" if workers == 1 else f"{workers} workers of this node leave"
        return f"{self.why}{within}: the {who}"

    def workers_end(self) -> None:
        """Count the workers' time from now on, whether the node leaves or the run is over."""
        if self._deadline_s is None:  # as long as the machine is there, if that is known to be longer
            self._deadline_s = max(time.monotonic() + self._within_s, self.by_s or 0.0)

    def are_late(self, now_s: float, *, again_s: float) -> bool:
        """Return whether workers should have ended by now; those still there `again_s` later are late again."""
        late = self._deadline_s is not None and now_s > self._deadline_s
        if late:
            self._deadline_s = now_s + again_s
        return late

    @property
    def within(self) -> str:
        """Return in words how long the workers had."""
        known = "" if self.by_s is None else ", nor while this node was said to be there"
        return f"within {self._within_s:.0f} s (--shutdown-timeout){known}"
