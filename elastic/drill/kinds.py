"""The kinds of faults: what each is, whom it hits, and how it is said in a line. Values only.

A fault names a rank and a moment, never a wall-clock time. The rank is that of the view which the worker is in at that
moment: a killed worker's replacement may have another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from elastic.drill.moments import At


@dataclass(frozen=True)
class Kill:
    """SIGKILL to the worker that has this rank at that moment."""

    worker: int
    when: At
    kind: ClassVar[str] = "kill"

    def __str__(self) -> str:
        return f"{self.when}: kill w{self.worker}"


@dataclass(frozen=True)
class KillTogether:
    """SIGKILL to several workers of a view at once; those of them that have not come to that view are spared.

    workers  ranks; the first one's arrival sets it off
    """

    workers: tuple[int, ...]
    when: At
    kind: ClassVar[str] = "kill_together"

    @property
    def worker(self) -> int:
        return self.workers[0]

    def __str__(self) -> str:
        return f"{self.when}: kill {' and '.join(f'w{worker}' for worker in self.workers)}"


@dataclass(frozen=True)
class KillAll:
    """SIGKILL to every process of the drill, launcher and loader processes included, as a power cut would."""

    when: At
    kind: ClassVar[str] = "kill_all"

    @property
    def worker(self) -> int:
        """The rank whose arrival sets it off."""
        return self.when.worker or 0

    def __str__(self) -> str:
        return f"{self.when} of w{self.worker}: kill all"


@dataclass(frozen=True)
class KillAgent:
    """SIGKILL to the launcher of the node on which this rank runs, and to nothing else."""

    worker: int
    when: At
    kind: ClassVar[str] = "kill_agent"

    def __str__(self) -> str:
        return f"{self.when}: kill the agent of w{self.worker}"


@dataclass(frozen=True)
class Stop:
    """SIGSTOP to the worker that has this rank at that moment; nobody wakes it."""

    worker: int
    when: At
    kind: ClassVar[str] = "stop"

    def __str__(self) -> str:
        return f"{self.when}: stop w{self.worker}"


@dataclass(frozen=True)
class Raise:
    """An exception in the training thread of the worker that has this rank at that moment, as of the script's own code.

    Its message names the fault: of two at one moment, equal to the letter, the second hits whoever redoes the step.
    """

    worker: int
    when: At
    kind: ClassVar[str] = "raise"

    def __str__(self) -> str:
        return f"{self.when}: raise in w{self.worker}"


@dataclass(frozen=True)
class Terminate:
    """SIGTERM to the worker that has this rank at that moment: a notice to leave."""

    worker: int
    when: At
    kind: ClassVar[str] = "terminate"

    def __str__(self) -> str:
        return f"{self.when}: terminate w{self.worker}"


@dataclass(frozen=True)
class LeaveNode:
    """SIGTERM to the launcher of the node on which this rank runs: all its workers are to leave."""

    worker: int
    when: At
    kind: ClassVar[str] = "leave_node"

    def __str__(self) -> str:
        return f"{self.when}: the node of w{self.worker} leaves"


@dataclass(frozen=True)
class Join:
    """Another node arrives: the cluster starts one more launcher.

    workers  that it brings; None: as many as every other node has
    """

    when: At
    workers: int | None = None
    kind: ClassVar[str] = "join"

    @property
    def worker(self) -> int:
        """The rank whose arrival sets it off."""
        return self.when.worker or 0

    def __str__(self) -> str:
        brings = "" if self.workers is None else f" with {self.workers} worker{'s' if self.workers > 1 else ''}"
        return f"{self.when} of w{self.worker}: a node joins{brings}"


@dataclass(frozen=True)
class Hold:
    """The worker that has this rank at that moment stands still, and with it all who wait for it, until the cluster
    lets go: for a look at a run from outside. The faults after it in the plan wait as well."""

    worker: int
    when: At
    kind: ClassVar[str] = "hold"

    def __str__(self) -> str:
        return f"{self.when}: hold w{self.worker}"


@dataclass(frozen=True)
class Slow:
    """The worker that has this rank at that moment is slower from then on: it stands still before each of its next
    `shares` shares, for `seconds`."""

    worker: int
    when: At
    seconds: float = 0.1
    shares: int = 30
    kind: ClassVar[str] = "slow"

    def __str__(self) -> str:
        return f"{self.when}: slow w{self.worker} down by {self.seconds} s in each of {self.shares} shares"


@dataclass(frozen=True)
class OutOfMemory:
    """The worker that has this rank at that moment gets no more memory: a real limit of the kernel's (RLIMIT_AS), and a
    tensor that does not fit."""

    worker: int
    when: At
    kind: ClassVar[str] = "oom"

    def __str__(self) -> str:
        return f"{self.when}: w{self.worker} out of memory"


@dataclass(frozen=True)
class StickLoader:
    """The next read of an example does not come back, in the worker that has this rank at that moment: its loader
    processes are stopped, or, where it has none, the dataset hangs."""

    worker: int
    when: At
    kind: ClassVar[str] = "stick_loader"

    def __str__(self) -> str:
        return f"{self.when}: the data of w{self.worker} hangs"


@dataclass(frozen=True)
class KillChild:
    """SIGKILL to a helper of the worker that has this rank at that moment, and to nothing else. The fault waits until
    there is one.

    of  "loader": one of its loader processes; "writer": the process that writes its checkpoints; "warm": the process
        that its agent forks workers from
    """

    worker: int
    when: At
    of: str
    kind: ClassVar[str] = "kill_child"

    def __str__(self) -> str:
        return f"{self.when}: kill the {self.of} process of w{self.worker}"


@dataclass(frozen=True)
class Flip:
    """A bit of the newest checkpoint is changed where it lies, by whoever has this rank at that moment. The fault waits
    until there are two checkpoints; it matters once the run goes back to one. Local folders only."""

    worker: int
    when: At
    kind: ClassVar[str] = "flip"

    def __str__(self) -> str:
        return f"{self.when}: flip a byte of the newest checkpoint, by w{self.worker}"


@dataclass(frozen=True)
class Disk:
    """The disk that holds the run is full, or read-only, from that moment on and for `seconds`. Where there is such a
    disk: `elastic drill` makes one.

    how  "full" or "read_only"
    """

    worker: int
    when: At
    how: str
    seconds: float = 1.0
    kind: ClassVar[str] = "disk"

    def __str__(self) -> str:
        return f"{self.when}: the disk is {self.how.replace('_', ' ')} for {self.seconds} s, by w{self.worker}"


_KINDS = (
    Kill, KillTogether, KillAll, KillAgent, Stop, Raise, Terminate, LeaveNode, Join, Hold, Slow, OutOfMemory,
    StickLoader, KillChild, Flip, Disk,
)  # fmt: skip
Fault = (
    Kill
    | KillTogether
    | KillAll
    | KillAgent
    | Stop
    | Raise
    | Terminate
    | LeaveNode
    | Join
    | Hold
    | Slow
    | OutOfMemory
    | StickLoader
    | KillChild
    | Flip
    | Disk
)
KINDS: dict[str, type[Fault]] = {kind.kind: kind for kind in _KINDS}
HELPERS = ("loader", "writer", "warm")
DISKS = ("full", "read_only")


def lost_to(fault: Fault) -> int | None:
    """How many workers the fault takes from the run against their will, at most; None: all, for a new launch."""
    if isinstance(fault, KillAll | KillAgent):
        return None
    if isinstance(fault, KillTogether):
        return len(fault.workers)
    may_end = isinstance(fault, KillChild) and fault.of == "loader"  # it may, or only start other loader processes
    return int(isinstance(fault, Kill | Stop | Raise | OutOfMemory | StickLoader) or may_end)


def as_failure(fault: Fault) -> str | None:
    """As what a worker's failure counts, of which the run bears one at a step; None: it does not count as one."""
    if isinstance(fault, Raise | OutOfMemory | StickLoader):
        return fault.kind
    return f"{fault.kind}_{fault.of}" if isinstance(fault, KillChild) and fault.of == "loader" else None
