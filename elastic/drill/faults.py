"""Which faults happen, to whom, and at which exact moment? Values only: printed, saved, replayed, shrunk by hand.

`due` decides, purely, which faults of a plan a worker has reached; injector.py carries them out. Every fault happens
once, however often the run recovers or restarts. Which kinds there are is kinds.py's.
"""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from elastic.drill.kinds import (
    DISKS,
    HELPERS,
    KINDS,
    Disk,
    Fault,
    Flip,
    Hold,
    Join,
    Kill,
    KillAgent,
    KillAll,
    KillChild,
    KillTogether,
    LeaveNode,
    OutOfMemory,
    Raise,
    Slow,
    StickLoader,
    Stop,
    Terminate,
    as_failure,
    lost_to,
)
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
    "as_failure",
    "due",
    "fault_of",
    "lost_to",
]


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
