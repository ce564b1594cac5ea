"""What an agent knows of its own node from the beginning: what it was told to do there, and as whom others know it."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class NodeRules:
    """What a node's agent was told to do, from the beginning.

    node     this node's name, unlike any other's
    address  the IPv4 address that workers listen on; None: theirs to find
    replica_size  so many of its workers are one replica
    job      --rdzv-id, where it tells jobs apart
    role     torchrun's name for its workers; restarts_max: and how often they may start again
    hang_s   how long a step may take without a sign, unless experience says otherwise
    leave_s  how long workers may take to leave, or to come to an end when the run is over
    leave_on signals that make this node leave, beside those that always do
    leave_status  the exit status, where it leaves before the run is finished
    grace_s  from such a signal to SIGKILL, as far as somebody has said
    several_nodes  the run may have some
    status   show the run's status on stderr, which is a terminal
    train_job  and tell the operator of a Kubeflow TrainJob (node/kubeflow.py)
    metrics  workers tell what its metrics show
    """

    node: str
    address: str | None
    workers: int
    replica_size: int = 1
    job: str | None
    role: str = "default"
    restarts_max: int = 0
    hang_s: float
    leave_s: float
    leave_on: tuple[signal.Signals, ...]
    leave_status: int = 0
    grace_s: float | None = None
    status: bool = False
    train_job: tuple[str, str, str] | None = None
    metrics: bool = False
    several_nodes: bool = False

    def replica_of(self, local_rank: int) -> range:
        """Return the slots of the replica that this one belongs to."""
        first = local_rank - local_rank % self.replica_size
        return range(first, first + self.replica_size)


@dataclass(frozen=True, kw_only=True)
class ThisNode:
    """A node as the agents of other nodes know it.

    node     its name
    address  under which others find it
    run      what agents of this run know
    group_port  see Hello
    replica_size  see NodeRules
    secret   what only they know, for TLS between them; None: what they say goes in the clear
    """

    node: str
    address: str | None
    run: str
    group_port: int | None = None
    replica_size: int = 1
    secret: str | None = field(default=None, repr=False)
