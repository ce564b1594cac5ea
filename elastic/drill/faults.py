"""Which faults happen, to whom, and at which exact moment? Values only: printed, saved, replayed, shrunk by hand.

A fault names a rank and a moment, never a wall-clock time. `due` decides, purely, which faults of a plan a worker has
reached; injection.py carries them out. Every fault happens once, however often the run recovers or restarts. The rank
is that of the view which the worker is in at that moment: a killed worker's replacement may have another.
"""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

from elastic.drill.moments import (
    BEFORE_STEPS,
    IN_BACKWARD,
    IN_EXCHANGE,
    IN_TRANSFER,
    IN_UPDATE,
    OF_A_SHARE,
    OF_A_STEP,
    OF_A_VIEW,
    OF_THE_SCRIPT,
    PHASES,
    At,
)
from elastic.errors import ConfigError

__all__ = [
    "BEFORE_STEPS",
    "IN_BACKWARD",
    "IN_EXCHANGE",
    "IN_TRANSFER",
    "IN_UPDATE",
    "KINDS",
    "OF_A_SHARE",
    "OF_A_STEP",
    "OF_A_VIEW",
    "OF_THE_SCRIPT",
    "PHASES",
    "At",
    "Disk",
    "Fault",
    "Flip",
    "Hold",
    "Join",
    "Kill",
    "KillAgent",
    "KillAll",
    "KillChild",
    "KillTogether",
    "LeaveNode",
    "OutOfMemory",
    "Plan",
    "Raise",
    "Slow",
    "StickLoader",
    "Stop",
    "Terminate",
    "due",
    "fault_of",
    "lost_to",
]


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


@dataclass(frozen=True)
class Plan:
    """What will go wrong in a drill. `str` says it in one line; JSON carries it to the workers and into the record."""

    faults: tuple[Fault, ...] = ()
    seed: int | None = None

    def __post_init__(self) -> None:
        for fault in self.faults:
            if fault.worker < 0:
                raise ConfigError(f"{type(fault).__name__}: worker is a rank, counted from 0; found {fault.worker}")
            if fault.when.worker is not None and not isinstance(fault, KillAll | Join):
                raise ConfigError(f"{type(fault).__name__}: its own `worker` says whose moment it is; At needs none")
            if isinstance(fault, Raise | OutOfMemory) and fault.when.phase not in OF_THE_SCRIPT:
                raise ConfigError(
                    f"{type(fault).__name__}: the script's code runs at {', '.join(OF_THE_SCRIPT)}; "
                    f"not {fault.when.phase}"
                )
            if isinstance(fault, Disk) and fault.how not in DISKS:
                raise ConfigError(f"Disk: how={fault.how!r}; a disk is {' or '.join(DISKS)}")
            if isinstance(fault, KillChild) and fault.of not in HELPERS:
                raise ConfigError(f"KillChild: of={fault.of!r}; a worker's helpers are {', '.join(HELPERS)}")

    def __str__(self) -> str:
        faults = " | ".join(map(str, self.faults)) or "no faults"
        return faults if self.seed is None else f"seed {self.seed}: {faults}"

    def to_json(self) -> str:
        faults = [{"kind": fault.kind, **asdict(fault)} for fault in self.faults]
        return json.dumps({"seed": self.seed, "faults": faults})

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The plan that to_json wrote. ConfigError names what it does not know."""
        try:
            document = json.loads(text)
            faults = tuple(_fault_from(dict(fault)) for fault in document["faults"])
            return cls(faults, document["seed"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"not a fault plan: {error}") from error

    @classmethod
    def random(
        cls,
        seed: int,
        *,
        steps: int,
        workers: int,
        faults: int = 3,
        kinds: Sequence[type[Fault]] = (Kill, KillAll),
        phases: Sequence[str] = OF_A_STEP,
    ) -> Plan:
        """`faults` faults at distinct steps of the run, in order; a function of its arguments alone.

        kinds  a Raise where the script has no code becomes a Kill; KillTogether hits two
        """
        if faults > steps:
            raise ConfigError(f"Plan.random: {faults} faults at distinct steps do not fit into {steps} steps")
        draw = random.Random(seed)
        chosen: list[Fault] = []
        for step in sorted(draw.sample(range(steps), faults)):
            kind, phase, worker = draw.choice(list(kinds)), draw.choice(list(phases)), draw.randrange(workers)
            chosen.append(fault_of(kind, worker, At(step, phase), workers=workers))
        return cls(tuple(chosen), seed)


def fault_of(kind: type[Fault], worker: int, when: At, *, workers: int) -> Fault:
    """A fault of this kind that this rank sets off at that moment; see Plan.random."""
    if kind is KillAll or kind is Join:
        return kind(replace(when, worker=worker))
    if kind is KillTogether and workers > 1:
        return KillTogether((worker, (worker + 1) % workers), when)
    if kind is KillTogether or (kind in (Raise, OutOfMemory) and when.phase not in OF_THE_SCRIPT):
        return Kill(worker, when)
    if kind is Disk:
        return Disk(worker, when, "full")
    if kind is KillChild:
        return KillChild(worker, when, "writer" if worker == 0 else "warm")
    made: Any = kind
    fault: Fault = made(worker, when)
    return fault


def due(
    plan: Plan,
    phase: str,
    *,
    step: int | None,
    rank: int,
    share: int | None,
    done: Collection[int],
    here: Collection[int] = (),
    world_size: int | None = None,
) -> list[int]:
    """Which faults of the plan, by index, does the worker with this rank set off at this moment?

    step        as At.step counts; ignored before `loaded`
    share       of a phase that comes once per share, this one
    done        indices of the faults that have happened
    here        of these, those that happened in the view that this worker is in
    world_size  of the view that this worker is in
    """
    return [
        index
        for index, fault in enumerate(plan.faults)
        if index not in done
        and fault.when.phase == phase
        and fault.worker == rank
        and fault.when.share in (None, share)
        and fault.when.world_size in (None, world_size)
        and _its_turn(fault, index, step, done, here)
    ]


def _its_turn(fault: Fault, index: int, step: int | None, done: Collection[int], here: Collection[int]) -> bool:
    when = fault.when
    if when.step is None:
        return _waited(fault, index, done, here)
    if when.later:
        return step is not None and step >= when.step and all(before in done for before in range(index))
    return step == when.step


def _waited(fault: Fault, index: int, done: Collection[int], here: Collection[int]) -> bool:
    """Whether a fault without a step has nothing to wait for any more."""
    return all(before in done for before in range(index)) and (
        fault.when.phase in BEFORE_STEPS or index - 1 not in here
    )


def _fault_from(fields: dict[str, Any]) -> Fault:
    kind = fields.pop("kind")
    if kind not in KINDS:
        raise ConfigError(f"unknown kind {kind!r}; known: {', '.join(KINDS)}")
    if isinstance(fields.get("workers"), list):
        fields["workers"] = tuple(fields["workers"])
    made: Any = KINDS[kind]
    fault: Fault = made(**{**fields, "when": At(**fields["when"])})
    return fault
