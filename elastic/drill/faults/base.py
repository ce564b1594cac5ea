"""What a fault is, and all that a kind of fault answers about itself: a kind is one class, in one file of this folder.

A fault names a rank and a moment, never a wall-clock time. The rank is that of the view which the worker is in at that
moment: a killed worker's replacement may have another. As a value it is light: what it needs in order to strike, it
imports when it does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from elastic.drill.faults.moments import OF_THE_SCRIPT, At
from elastic.errors import ConfigError

if TYPE_CHECKING:
    from elastic.drill.folder import DrillFolder
    from elastic.drill.hosts.hosts import Hosts
    from elastic.events.event import Event
    from elastic.events.observer import ObservedRun


@dataclass(frozen=True)
class Flag:
    """A name under which faults of a kind are drawn from a seed, and written on the command line.

    what       it does, for --help
    fields     of the kind that the name decides
    of_worker  False: it strikes no single worker, so none stands before its moment, and rank 0 sets it off
    """

    name: str
    what: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    of_worker: bool = True


@dataclass(frozen=True)
class Sizes:
    """of_a_node: workers of each node   resume_workers: in all, after everything was lost"""

    nodes: int
    of_a_node: int
    resume_workers: int


class Aftermath(Enum):
    """What comes of a fault in the run."""

    NO_LOSS = auto()  # nobody is lost: whatever view follows is another fault's
    PERHAPS_LOSS = auto()  # the worker may be lost, or get over it
    LOSS = auto()  # a view without somebody
    GROWTH = auto()  # a view with somebody more


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Where a fault strikes: the worker that sets it off.

    run            its run
    drill          the drill's folder
    index          of the fault in the plan
    storage        the run's, where it is a local folder
    joins_await_s  a node that joins is waited for, so long at most
    slow_down      this worker, by seconds in each of so many shares
    hang_reads     of this worker: no read of an example comes back any more
    change_batch   of this worker: the next batch reaches the script as what that makes of it
    at_next        has something done at this worker's next such moment
    """

    run: ObservedRun
    drill: DrillFolder
    index: int
    storage: Path | None
    joins_await_s: float
    slow_down: Callable[[float, int], None]
    hang_reads: Callable[[], None]
    change_batch: Callable[[Callable[[Any], Any]], None]
    at_next: Callable[[str, Callable[[], None]], None]

    @property
    def let_go(self) -> Path:
        """The file that says that whoever stands still at this fault is to go on."""
        return self.drill.let_go(self.index)


class RunningDrill(Protocol):
    """What faults may use of the run from outside."""

    @property
    def storage(self) -> Path: ...
    @property
    def hosts(self) -> Hosts: ...
    def hosts_of(self, struck: Event, ranks: Iterable[int]) -> list[int]: ...
    def kill_overdue(self, struck: Event) -> None: ...


@dataclass(frozen=True)
class Fault(ABC):
    """One fault on purpose: what happens, to whom and when. Its class answers the rest.

    kind         its name in a plan's JSON
    flags        its names on the command line; a kind without any is neither drawn nor written there
    facts        fields with a default that may be written there beside the moment, such as seconds=2
    usual_phase  of its moment, where none is asked for; None: any is drawn, and a backward pass is what people mean
    in_script    it strikes where the script's own code runs
    drawn_early  it takes time to show
    in_folder    the run must live in a folder of this machine
    for_command  it takes what only `elastic drill` does: another launch, another node, a disk, a checkpoint to spoil
    takes_node   of several, the one it strikes is gone
    needs_hosts  the drill's nodes must be hosts (host_fault.py)
    on_hosts     it can strike a run on hosts; not what one process does to several others, or to a disk
    """

    kind: ClassVar[str]
    flags: ClassVar[tuple[Flag, ...]] = ()
    facts: ClassVar[tuple[str, ...]] = ()
    usual_phase: ClassVar[str | None] = None
    in_script: ClassVar[bool] = False
    drawn_early: ClassVar[bool] = False
    in_folder: ClassVar[bool] = False
    for_command: ClassVar[bool] = False
    takes_node: ClassVar[bool] = False
    needs_hosts: ClassVar[bool] = False
    on_hosts: ClassVar[bool] = True

    if TYPE_CHECKING:  # a field, or a property: whichever the kind has

        @property
        def worker(self) -> int:
            """The rank whose arrival at the moment sets it off."""

        @property
        def when(self) -> At: ...

    def __post_init__(self) -> None:
        """Raises ConfigError for what makes no sense."""
        name = type(self).__name__
        if (lowest := min(self.ranks, default=-1)) < 0:
            raise ConfigError(f"{name}: worker is a rank, counted from 0; found {lowest}")
        if self.when.worker is not None and not isinstance(self, RunFault):
            raise ConfigError(f"{name}: its own `worker` says whose moment it is; At needs none")
        if self.in_script and self.when.phase not in OF_THE_SCRIPT:
            raise ConfigError(f"{name}: the script's code runs at {', '.join(OF_THE_SCRIPT)}; not {self.when.phase}")

    @property
    def ranks(self) -> tuple[int, ...]:
        """Whom it strikes."""
        return (self.worker,)

    # how it is made

    @classmethod
    @abstractmethod
    def make(cls, worker: int, when: At, **fields: Any) -> Fault:
        """The fault that this rank sets off at that moment."""

    @classmethod
    def together(cls, workers: tuple[int, ...], when: At, **fields: Any) -> Fault:
        """The fault that strikes several workers at once. Raises ConfigError."""
        raise ConfigError("only --kill and --partition take several workers at once")

    @classmethod
    def remaining(cls, there: int, sizes: Sizes) -> int:
        """Of so many workers, how many are there for sure once it has struck and its loss is made up for; below 1:
        it cannot be drawn, as nobody would be left."""
        return there

    @classmethod  # noqa: B027  # most kinds strike anywhere
    def check_machine(cls) -> None:
        """Raises ConfigError where it cannot strike on this machine."""

    # how it is described

    @property
    def name(self) -> str:
        """As on the command line."""
        said = (one.name for one in self.flags if all(getattr(self, name) == it for name, it in one.fields.items()))
        return next(said, self.kind)

    short: ClassVar[str]
    sentence: ClassVar[str]
    """What happens to whom, in a plan's one line and in what people read. {fields} of the fault stand in braces."""

    def __str__(self) -> str:
        return f"{self.when}: {self.short.format(**vars(self))}"

    def in_words(self) -> str:
        return self.sentence.format(**vars(self))

    # how it strikes

    record_first: ClassVar[bool] = True
    """Its event is on record before it strikes, as the worker may not live to do so afterwards."""

    fatal: ClassVar[bool] = False
    """The judge may take it that the worker which sets it off did nothing after its event."""

    holds: ClassVar[bool] = False
    """The worker stands still until the cluster lets it go."""

    def possible(self, scene: Scene) -> bool:
        """Whether there is, in this worker at this moment, what it would hit."""
        return True

    @abstractmethod
    def strike(self, scene: Scene) -> None:
        """Here and now, in the process of the worker that sets it off. May not return, and may raise."""

    @classmethod  # noqa: B027  # most need nothing
    def prepare(cls, storage: Path, *, like: Path) -> None:
        """Before a run that such a fault strikes begins in `storage`; `like` is where the run without faults lived.
        Raises ConfigError."""

    def lasts_s(self, grace_s: float) -> float | None:
        """After which the drill calls `end`; None: there is nothing to end.

        grace_s  that a worker has to leave
        """
        return None

    def end(self, struck: Event, run: RunningDrill, others: Iterable[Fault]) -> None:
        """What the drill does then, from outside.

        struck  the worker's record of the fault
        others  faults that have not come to their end
        """
        raise NotImplementedError

    @classmethod  # noqa: B027  # most leave nothing
    def clear_away(cls, storage: Path, *, keep: bool) -> None:
        """After a run that such a fault may have struck. keep: what is in `storage` stays"""

    # what comes of it

    restarts: ClassVar[Literal["lost", "left", "found"] | None] = None
    """Why a launch that it ends is followed by another one: everything is "lost", an agent "left", or the run has
    "found" what it did (`finds`)."""

    misleads: ClassVar[bool] = False
    """What its worker computes from then on is wrong, and what the others make of that: until the run finds it."""

    checks_shares: ClassVar[bool] = False
    """Only a second pass of all shares shows it for sure, so the drill has the run make them."""

    loses_workers: ClassVar[bool] = False
    """It takes whom it strikes from the run, against their will."""

    fails: ClassVar[bool] = False
    """It counts as a failure of the worker, of which the run bears one of a kind at a step."""

    leaves: ClassVar[bool] = False
    """It asks workers to leave."""

    orphans: ClassVar[bool] = False
    """Its workers outlive their agent for a while."""

    def aftermath(self) -> Aftermath:
        return Aftermath.LOSS

    def joining(self, of_a_node: int) -> int:
        """How many workers it brings."""
        return 0

    def lost(self) -> int | None:
        """How many workers it takes from the run against their will, at most; None: those of an agent, or all."""
        return len(self.ranks) if self.loses_workers else 0

    def lost_max(self, of_a_node: int) -> int | None:
        """How many of those are missed by a view, at most; whoever is lost with all others is missed by none. None:
        nobody knows."""
        return self.lost() or 0

    def failure(self) -> str | None:
        """As what its worker's failure counts; None: it does not count as one."""
        return self.kind if self.fails else None

    @classmethod
    def raised(cls, name: str, error: str) -> bool:
        """Whether an exception of that name, in full as recorded, may be such a fault's work."""
        return False

    @classmethod
    def finds(cls, error: str) -> bool:
        """Whether an error that ended a worker, in full as recorded, may say what such a fault did."""
        return False

    def excuses(self, status: int, *, taken: bool) -> bool:
        """Whether the agent that it struck, or whose worker it struck, may end with this status.

        taken  a fault has taken a worker of that agent
        """
        return False

    @classmethod
    def spoilt(cls, drill: DrillFolder) -> set[str]:
        """The names of the checkpoints that such faults have damaged, which need not be whole."""
        return set()


@dataclass(frozen=True)
class WorkerFault(Fault):
    """A fault of the worker that has this rank at that moment, or of what is around it."""

    worker: int
    when: At

    @classmethod
    def make(cls, worker: int, when: At, **fields: Any) -> Fault:
        return cls(worker, when, **fields)


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
