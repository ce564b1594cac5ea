"""The status with which an agent ends, by what has become of the run on this node, as far as it is known here.

0                     the run is finished
0, or --leave-status  the workers of a node that leaves have left in order
1                     the run has failed, its hub is lost, or what a worker held may be lost with it
75                    the run had its most nodes, and no place came free
130                   likewise, on Ctrl-C, unless --leave-status is given; or somebody has interrupted it twice
"""

from __future__ import annotations

import signal
from collections.abc import Callable

from elastic.membership.exit_statuses import AGAIN, INTERRUPTED
from elastic.membership.messages.messages import RunIsOver

FAILED = 1


def left_status(departed: str, leave_status: int) -> int:
    """Return the status of a node that has left in order: 130 on Ctrl-C unless --leave-status is given, else that."""
    # On 0 a shell would go on with half a result; a scheduler's notice keeps its status.
    return INTERRUPTED if departed == signal.SIGINT.name and not leave_status else leave_status


class NodeEnd:
    """What is known of the end of the run on this node.

    run           the hub's word that the run is over
    hub_gone      and there is no other
    not_admitted  the run had its most nodes, and this node was not let in
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
