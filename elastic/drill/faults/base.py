"""What a fault is, and all that a kind of fault answers about itself. A kind is one class; most of it is a few facts.

A fault names a rank and a moment, never a wall-clock time. The rank is that of the view which the worker is in at that
moment: a killed worker's replacement may have another. As a value it is light: what it needs in order to strike, it
imports when it does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from elastic.drill.faults.moments import OF_THE_SCRIPT, At
from elastic.drill.faults.scene import RunningDrill, Scene
from elastic.errors import ConfigError

if TYPE_CHECKING:
    from elastic.drill.folder import DrillFolder
    from elastic.events.event import Event


@dataclass(frozen=True)
class Flag:
    """A name under which faults of a kind are drawn from a seed, and written on the command line.

    what       it does, for --help
    fields     of the kind that the name decides
    said       what the kind's sentences say of this one, as {said}
    of_worker  False: it strikes no single worker, so none stands before its moment, and rank 0 sets it off
    """

    name: str
    what: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    said: str = ""
    of_worker: bool = True


@dataclass(frozen=True)
class Sizes:
    """The sizes of a drill: its nodes, the workers of a node and of a replica, and all after everything was lost."""

    nodes: int
    of_a_node: int
    resume_workers: int
    of_a_replica: int = 1


class Aftermath(Enum):
    """The change of the view that a fault brings about."""

    NO_LOSS = auto()  # nobody is lost: whatever view follows is another fault's
    PERHAPS_LOSS = auto()  # the worker may be lost, or get over it
    LOSS = auto()  # a view without somebody
    GROWTH = auto()  # a view with somebody more


@dataclass(frozen=True)
class Fault(ABC):
    """One fault on purpose: what happens, to whom and when. Its class answers the rest."""

    if TYPE_CHECKING:  # a field, or a property: whichever the kind has

        @property
        def worker(self) -> int:
            """Return the rank whose arrival at the moment sets it off."""

        @property
        def when(self) -> At: ...

    # what it is called

    kind: ClassVar[str]  # in a plan's JSON
    flags: ClassVar[tuple[Flag, ...]] = ()  # on the command line; a kind without any is neither drawn nor written there
    facts: ClassVar[tuple[str, ...]] = ()  # fields with a default that may stand there, such as seconds=2
    sentence: ClassVar[str]  # what happens to whom; {fields} and properties stand in braces

    # where it can strike

    usual_phase: ClassVar[str | None] = None  # where none is asked for; None: people mean a backward pass; any is drawn
    in_script: ClassVar[bool] = False  # only where the script's own code runs
    drawn_early: ClassVar[bool] = False  # it takes time to show
    workers_min: ClassVar[int] = 1  # fewer cannot show it
    settles: ClassVar[int] = 1  # a drawn one has so many steps before the next one strikes
    in_folder: ClassVar[bool] = False  # the run must live in a folder of this machine
    for_command: ClassVar[bool] = False  # only `elastic drill` does what it takes: a launch, a node or a disk more
    needs_hosts: ClassVar[bool] = False  # the drill's nodes must be hosts
    on_hosts: ClassVar[bool] = True  # they may be; not for what one process does to several others, or to a disk

    # how it strikes

    record_first: ClassVar[bool] = True  # its event is on record before, as the worker may not live to do so afterwards
    fatal: ClassVar[bool] = False  # the judge may take it that its worker did nothing after its event
    holds: ClassVar[bool] = False  # the worker stands still until the cluster lets it go

    # what comes of it

    outcome: ClassVar[Aftermath] = Aftermath.LOSS
    takes: ClassVar[Literal["workers", "node"] | None] = None  # from the run, against their will
    gone: ClassVar[Literal["worker", "node"] | None] = None  # for good: nobody takes the place
    takes_node: ClassVar[bool] = False  # of several, the one it strikes is gone
    leaves: ClassVar[bool] = False  # it asks workers to leave
    orphans: ClassVar[bool] = False  # its workers outlive their agent for a while
    fails: ClassVar[bool] = False  # it is a failure of the worker; of a kind the run bears one at a step
    misleads: ClassVar[bool] = False  # what its worker computes is wrong, until the run finds it
    checks_shares: ClassVar[bool] = False  # only a second pass of all shares shows it for sure: the drill asks for that
    restarts: ClassVar[Literal["lost", "left", "found"] | None] = None
    """Why a launch that it ends is followed by another one: everything is "lost", an agent "left", or the run has
    "found" what it did (`finds`)."""

    def __post_init__(self) -> None:
        """Raise ConfigError if its ranks, its moment or one of its fields make no sense."""
        name = type(self).__name__
        if (lowest := min(self.ranks, default=-1)) < 0:
            raise ConfigError(f"{name}: worker is a rank, counted from 0; found {lowest}")
        if self.when.worker is not None and not isinstance(self, RunFault):
            raise ConfigError(f"{name}: its own `worker` says whose moment it is; At needs none")
        if self.in_script and self.when.phase not in OF_THE_SCRIPT:
            raise ConfigError(f"{name}: the script's code runs at {', '.join(OF_THE_SCRIPT)}; not {self.when.phase}")
        for way in {way for flag in self.flags for way, value in flag.fields.items() if isinstance(value, str)}:
            known = [flag.fields[way] for flag in self.flags]
            if getattr(self, way) not in known:
                raise ConfigError(f"{name}: {way}={getattr(self, way)!r}; it is {' or '.join(known)}")

    @property
    def ranks(self) -> tuple[int, ...]:
        """Return the ranks that it strikes."""
        return (self.worker,)

    @classmethod
    @abstractmethod
    def make(cls, worker: int, when: At, **fields: Any) -> Fault:
        """Return the fault that this rank sets off at that moment."""

    @classmethod
    def together(cls, workers: tuple[int, ...], when: At, **fields: Any) -> Fault:
        """Return the fault that strikes several workers at once. Raise ConfigError if the kind has none."""
        raise ConfigError("only --kill and --partition take several workers at once")

    @classmethod
    def remaining(cls, there: int, sizes: Sizes) -> int:
        """Return how many of `there` workers are left for sure once it has struck and its loss is made up for.

        Below 1 it cannot be drawn, as nobody would be left.
        """
        of_a_place = {"node": sizes.of_a_node, "worker": sizes.of_a_replica}
        return there - (of_a_place[cls.gone] if cls.gone is not None else 0)

    @classmethod  # noqa: B027  # most kinds strike anywhere
    def check_machine(cls) -> None:
        """Raise ConfigError if it cannot strike on this machine."""

    @property
    def flag(self) -> Flag | None:
        """Return what it is called on the command line; None: it cannot be named there."""
        decided = (one for one in self.flags if all(getattr(self, name) == it for name, it in one.fields.items()))
        return next(decided, None)

    @property
    def name(self) -> str:
        """Return its name on the command line or, if it has none there, in a plan's JSON."""
        return self.flag.name if self.flag is not None else self.kind

    @property
    def said(self) -> str:
        """Return what its sentence says of it, by its name on the command line."""
        return self.flag.said if self.flag is not None else ""

    def __str__(self) -> str:
        return f"{self.when}: {self.in_words()}"

    def in_words(self) -> str:
        """Return its sentence, filled in: what happens to whom."""
        return self.sentence.format_map(_Facts(self))

    def possible(self, scene: Scene) -> bool:
        """Return whether this worker has, at this moment, what the fault would hit."""
        return True

    @abstractmethod
    def strike(self, scene: Scene) -> None:
        """Strike here and now, in the process of the worker that sets it off. May not return, and may raise."""

    @classmethod  # noqa: B027  # most need nothing
    def prepare(cls, storage: Path, *, like: Path) -> None:
        """Make ready for a run in `storage` that such a fault strikes. Raises ConfigError if that cannot be done.

        like  where the run without faults lived
        """

    def lasts_s(self, grace_s: float) -> float | None:
        """Return after how long the drill calls `end`; None: there is nothing to end.

        grace_s  that a worker has to leave
        """
        return None

    def end(self, struck: Event, run: RunningDrill, others: Iterable[Fault]) -> None:
        """End the fault, from outside.

        struck  the worker's record of the fault
        others  faults that have not come to their end
        """
        raise NotImplementedError

    @classmethod  # noqa: B027  # most leave nothing
    def clear_away(cls, storage: Path, *, keep: bool) -> None:
        """Remove what such a fault may have left of itself; `keep`: what is in `storage` stays."""

    def aftermath(self) -> Aftermath:
        """Return which change of the view it brings about."""
        return self.outcome

    def joining(self, of_a_node: int) -> int:
        """Return how many workers join by it, where each node has `of_a_node`."""
        return 0

    def lost(self) -> int | None:
        """Return how many workers it takes from the run, at most; None: those of an agent, or all."""
        return None if self.takes == "node" else len(self.ranks) * (self.takes == "workers")

    def lost_max(self, sizes: Sizes) -> int | None:
        """Return how many of the lost workers a view misses, at most; None: nobody knows.

        Whoever is lost with all others is missed by none.
        """
        if self.takes == "node":
            return len(self.ranks) * sizes.of_a_node
        return (self.lost() or 0) * sizes.of_a_replica  # which is lost whole

    def in_replicas(self, size: int) -> Fault:
        """Return this fault for a run in which so many workers are a replica: who joins are replicas."""
        return self

    def failure(self) -> str | None:
        """Return the kind of failure that its worker's counts as; None: it does not count as one."""
        return self.kind if self.fails else None

    @classmethod
    def raised(cls, name: str, error: str) -> bool:
        """Return whether an exception of that name, in full as recorded, may be such a fault's work."""
        return False

    @classmethod
    def finds(cls, error: str) -> bool:
        """Return whether an error that ended a worker, in full as recorded, may say what such a fault did."""
        return False

    def excuses(self, status: int, *, taken: bool) -> bool:
        """Return whether the agent that it struck, or whose worker it struck, may end with this status.

        taken  a fault has taken a worker of that agent
        """
        return False

    @classmethod
    def spoilt(cls, drill: DrillFolder) -> set[str]:
        """Return the names of the checkpoints that such faults have damaged, which need not be whole."""
        return set()


class _Facts(dict[str, Any]):
    """The fields and properties of a fault, by name."""

    def __init__(self, fault: Fault) -> None:
        self._fault = fault

    def __missing__(self, name: str) -> Any:
        return getattr(self._fault, name)


@dataclass(frozen=True)
class WorkerFault(Fault):
    """A fault of the worker that has this rank at that moment, or of what is around it."""

    worker: int
    when: At

    @classmethod
    def make(cls, worker: int, when: At, **fields: Any) -> Fault:
        return cls(worker, when, **fields)


@dataclass(frozen=True)
class SeveralWorkers(Fault):
    """A fault of several workers of a view, by their ranks; the first one's arrival sets it off."""

    workers: tuple[int, ...]
    when: At

    @property
    def worker(self) -> int:
        return self.workers[0]

    @property
    def ranks(self) -> tuple[int, ...]:
        return self.workers

    @classmethod
    def make(cls, worker: int, when: At, **fields: Any) -> Fault:
        return cls((worker,), when, **fields)


@dataclass(frozen=True)
class RunFault(Fault):
    """A fault that strikes no single worker: its moment says whose arrival sets it off."""

    when: At

    @property
    def worker(self) -> int:
        return self.when.worker or 0

    @classmethod
    def make(cls, worker: int, when: At, **fields: Any) -> Fault:
        return cls(replace(when, worker=worker), **fields)
