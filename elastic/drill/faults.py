"""Which faults happen, to whom, and at which exact moment? Values only: printed, saved, replayed, shrunk by hand.

A fault names a rank and a moment, never a wall-clock time. `due` decides, purely, which faults of a plan a worker has
reached; injection.py carries them out. Every fault happens once, however often the run restarts.
"""

from __future__ import annotations

import difflib
import json
import random
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from elastic.errors import ConfigError
from elastic.observe.observer import MOMENTS

IN_BACKWARD = "in_backward"  # inside autograd, when half of the parameters have their gradient
IN_EXCHANGE = "in_exchange"  # a collective of the step's exchange is under way; not reached by a worker on its own
IN_UPDATE = "in_update"  # inside an optimizer's step, when a part of the parameters has been written
PHASES = (*MOMENTS, IN_BACKWARD, IN_EXCHANGE, IN_UPDATE)
BEFORE_STEPS = MOMENTS[: MOMENTS.index("loaded")]  # they come at every start of a process, so they have no step
OF_A_SHARE = ("data", "forward", "backward", IN_BACKWARD)
OF_A_STEP = (
    *OF_A_SHARE,
    "exchange",
    IN_EXCHANGE,
    "update",
    IN_UPDATE,
    "applied",
)  # every rank that has a share passes all of these


@dataclass(frozen=True)
class At:
    """A moment that one worker passes.

    step    index of the step in flight or, from `applied` on, of the step applied last (-1: none). At `loaded`, of the
            step that comes next. None before `loaded`: these moments come at every start, and such a fault waits until
            all faults before it in the plan have happened, so that a restart can be hit too.
    phase   one of PHASES
    share   of the phases that come once per share, the share; None: the rank's first
    worker  for KillAll, the rank whose arrival sets it off
    """

    step: int | None
    phase: str
    share: int | None = None
    worker: int | None = None

    def __post_init__(self) -> None:
        if self.phase not in PHASES:
            near = difflib.get_close_matches(self.phase, PHASES, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(PHASES)}"
            raise ConfigError(f"At: unknown phase {self.phase!r}; {hint}")
        if (self.step is None) != (self.phase in BEFORE_STEPS):
            raise ConfigError(
                f"At: phase {self.phase!r} comes at every start, so it takes step=None, not {self.step}"
                if self.step is not None
                else f"At: phase {self.phase!r} belongs to a step; give its index, counting from 0"
            )
        if self.share is not None and self.phase not in OF_A_SHARE:
            raise ConfigError(
                f"At: phase {self.phase!r} comes once per step; only {', '.join(OF_A_SHARE)} have a share"
            )

    def __str__(self) -> str:
        step = "" if self.step is None else f"step {self.step} "
        share = "" if self.share is None else f" of share {self.share}"
        return f"{step}{self.phase}{share}"


@dataclass(frozen=True)
class Kill:
    """SIGKILL to the worker that has this rank at that moment."""

    worker: int
    when: At
    kind: ClassVar[str] = "kill"

    def __str__(self) -> str:
        return f"{self.when}: kill w{self.worker}"


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
class Terminate:
    """SIGTERM to the worker that has this rank at that moment: a notice to leave."""

    worker: int
    when: At
    kind: ClassVar[str] = "terminate"

    def __str__(self) -> str:
        return f"{self.when}: terminate w{self.worker}"


Fault = Kill | KillAll | Terminate


@dataclass(frozen=True)
class Plan:
    """What will go wrong in a drill. `str` says it in one line; JSON carries it to the workers and into the record."""

    faults: tuple[Fault, ...] = ()
    seed: int | None = None

    def __post_init__(self) -> None:
        for fault in self.faults:
            if fault.worker < 0:
                raise ConfigError(f"{type(fault).__name__}: worker is a rank, counted from 0; found {fault.worker}")
            if fault.when.worker is not None and not isinstance(fault, KillAll):
                raise ConfigError(f"{type(fault).__name__}: its own `worker` says whose moment it is; At needs none")

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
        kinds: Sequence[type[Kill] | type[KillAll] | type[Terminate]] = (Kill, KillAll),
        phases: Sequence[str] = OF_A_STEP,
    ) -> Plan:
        """`faults` faults at distinct steps of the run, in order; a function of its arguments alone."""
        if faults > steps:
            raise ConfigError(f"Plan.random: {faults} faults at distinct steps do not fit into {steps} steps")
        draw = random.Random(seed)
        chosen: list[Fault] = []
        for step in sorted(draw.sample(range(steps), faults)):
            kind, phase, worker = draw.choice(list(kinds)), draw.choice(list(phases)), draw.randrange(workers)
            if kind is KillAll:
                chosen.append(KillAll(At(step, phase, worker=worker)))
            else:
                chosen.append((Terminate if kind is Terminate else Kill)(worker, At(step, phase)))
        return cls(tuple(chosen), seed)


def due(plan: Plan, phase: str, *, step: int | None, rank: int, share: int | None, done: Collection[int]) -> list[int]:
    """Which faults of the plan, by index, does the worker with this rank set off at this moment?

    step   as At.step counts; ignored before `loaded`
    share  of a phase that comes once per share, this one
    done   indices of the faults that have happened
    """
    return [
        index
        for index, fault in enumerate(plan.faults)
        if index not in done
        and fault.when.phase == phase
        and fault.worker == rank
        and fault.when.share in (None, share)
        and (all(before in done for before in range(index)) if fault.when.step is None else fault.when.step == step)
    ]


def _fault_from(fields: dict[str, Any]) -> Fault:
    kinds: dict[str, Any] = {kind.kind: kind for kind in (Kill, KillAll, Terminate)}
    kind = fields.pop("kind")
    if kind not in kinds:
        raise ConfigError(f"unknown kind {kind!r}; known: {', '.join(kinds)}")
    fault: Fault = kinds[kind](**{**fields, "when": At(**fields["when"])})
    return fault
