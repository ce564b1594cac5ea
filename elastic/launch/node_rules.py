"""What an agent was told of its node, once, when it began."""

from __future__ import annotations

import signal
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class NodeRules:
    """node     this node's name, unlike any other's
    address  the IPv4 address that workers listen on; None: theirs to find
    job      --rdzv-id, where it tells jobs apart
    hang_s   how long a step may take without a sign, unless experience says otherwise
    leave_s  how long workers may take to leave, or to come to an end when the run is over
    leave_on signals that make this node leave, beside those that always do
    leave_status  the exit status, where it leaves before the run is finished
    grace_s  from such a signal to SIGKILL, as far as somebody has said
    several_nodes  the run may have some
    status   show the run's status on stderr, which is a terminal
    """

    node: str
    address: str | None
    workers: int
    job: str | None
    hang_s: float
    leave_s: float
    leave_on: tuple[signal.Signals, ...]
    leave_status: int = 0
    grace_s: float | None = None
    status: bool = False
    several_nodes: bool = False
