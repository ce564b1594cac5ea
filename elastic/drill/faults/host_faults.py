"""What befalls whole hosts and the cables between them: the drill strikes from outside, where its nodes are hosts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from elastic.drill.faults.base import Aftermath, Fault, Flag, RunFault, SeveralWorkers, Sizes, WorkerFault
from elastic.drill.faults.moments import At
from elastic.drill.faults.scene import RunningDrill, Scene
from elastic.drill.faults.signals import LoseNode
from elastic.errors import ConfigError, ElasticError

if TYPE_CHECKING:
    from elastic.events.event import Event

_WITHIN_S = 20.0  # less than a hang


class HostFault(Fault):
    """A fault of the host on which the worker is that has this rank at that moment."""

    for_command = True
    needs_hosts = True

    def strike(self, scene: Scene) -> None:
        """Stand still until the drill has struck, and be killed by that or go on: so the moment is exact."""
        if not scene.stand_still(_WITHIN_S):
            raise ElasticError(f"{self}: the drill did not strike within {_WITHIN_S:g} s; are its nodes hosts?")

    @abstractmethod
    def strike_hosts(self, struck: Event, run: RunningDrill) -> None:
        """Strike the worker's host from outside, in the drill's own process.

        struck  the worker's record of the fault
        """


@dataclass(frozen=True)
class LoseHost(HostFault, LoseNode):
    """All that runs on the host of the worker that has this rank at that moment is killed, for good.

    how  "crash": connections are reset. "power": nobody is told, and only silence tells
    """

    how: str

    kind = "lose_host"
    sentence = "the host of worker {worker} {said}"
    flags = (
        Flag("crash-host", "all its processes die, and its connections are reset", {"how": "crash"}, "crashes"),
        Flag("power-off", "it falls silent for good: nobody is told", {"how": "power"}, "loses its power"),
    )
    fatal = True
    gone = "node"

    def strike_hosts(self, struck: Event, run: RunningDrill) -> None:
        lost = run.hosts_of(struck, self.ranks)
        run.hosts.crash(*lost) if self.how == "crash" else run.hosts.lose_power(*lost)


@dataclass(frozen=True)
class SlowNetwork(HostFault, WorkerFault):
    """All packets from and to the host of the worker that has this rank at that moment are late from then on.

    delay  in seconds; once for a host. Nobody is lost by that
    """

    delay: float = 0.05

    kind = "slow_network"
    sentence = "packets from and to the host of worker {worker} are {delay:g} s late"
    flags = (Flag("slow-network", "its packets are 50 ms late from then on; W@…,delay=S for others"),)
    facts = ("delay",)
    outcome = Aftermath.NO_LOSS

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.delay <= 1:
            raise ConfigError(f"SlowNetwork: delay is above 0 and up to 1 s; found {self.delay:g}")

    def strike_hosts(self, struck: Event, run: RunningDrill) -> None:
        for host in run.hosts_of(struck, self.ranks):
            run.hosts.delay(host, self.delay)


@dataclass(frozen=True)
class Heal(HostFault, RunFault):
    """The cables of all hosts that run are as they were at first, though it is not yet time; a slow one stays slow."""

    kind = "heal"
    sentence = "the network of all hosts is as it was"
    flags = (Flag("heal", "the network of all hosts is as it was; what is slow stays slow", of_worker=False),)
    outcome = Aftermath.NO_LOSS

    def strike_hosts(self, struck: Event, run: RunningDrill) -> None:
        run.hosts.heal(*filter(run.hosts.running, run.hosts.numbers))


class NetworkFault(HostFault):
    """A fault of cables, which may cost the run the workers of the host, and is over when they are healed.

    seconds  after which they are; None: not before the next Heal
    """

    facts: ClassVar[tuple[str, ...]] = ("seconds",)
    outcome = Aftermath.PERHAPS_LOSS
    takes = "node"
    gone = "node"  # whoever comes back is not counted on: it may take longer than the run

    if TYPE_CHECKING:  # a field

        @property
        def seconds(self) -> float | None: ...

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.seconds is not None and not self.seconds > 0:
            raise ConfigError(f"{type(self).__name__}: seconds must be above 0; found {self.seconds:g}")

    def until_healed(self) -> Fault:
        """Return the same fault without an end of its own: it lasts until the next Heal."""
        facts: dict[str, Any] = {"seconds": None}
        return replace(self, **facts)

    @property
    def so_long(self) -> str:
        """Return how long it lasts, in words."""
        return "until the next heal" if self.seconds is None else f"for {self.seconds:g} s"

    def lasts_s(self, grace_s: float) -> float | None:
        return self.seconds

    def end(self, struck: Event, run: RunningDrill, others: Iterable[Fault]) -> None:
        for host in filter(run.hosts.running, run.hosts_of(struck, self.ranks)):  # one without power stays silent
            run.hosts.heal(host)


@dataclass(frozen=True)
class Cut(NetworkFault, WorkerFault):
    """The cable of the host of the worker that has this rank at that moment is cut for `seconds`, and nobody is told.

    The host comes back as a newcomer, unless that was shorter than the lease.

    way  "both", or one: "in", "out"
    """

    way: str
    seconds: float | None = 6.0

    kind = "cut"
    sentence = "the host of worker {worker} {said} {so_long}"
    flags = (
        Flag("cut", "it is cut off, and nobody is told: until the next --heal, or without one for 6 s; "
             "W@…,seconds=S for others", {"way": "both"}, "is cut off"),
        Flag("cut-in", "likewise, in one direction: it hears nothing", {"way": "in"}, "hears nothing"),
        Flag("cut-out", "likewise: it is not heard", {"way": "out"}, "is not heard"),
    )  # fmt: skip

    def strike_hosts(self, struck: Event, run: RunningDrill) -> None:
        for host in run.hosts_of(struck, self.ranks):
            if self.way == "both":
                run.hosts.cut(host)
            else:
                run.hosts.cut_one_way(host, cast(Literal["in", "out"], self.way))


@dataclass(frozen=True)
class LosePackets(NetworkFault, WorkerFault):
    """The host of the worker that has this rank at that moment loses a share of all its packets, for `seconds`.

    TCP may cope or not: the host may be lost and come back several times.
    """

    loss: float = 0.3
    seconds: float | None = 6.0

    kind = "lose_packets"
    sentence = "the host of worker {worker} loses {loss:.0%} of all packets {so_long}"
    flags = (
        Flag("lose-packets", "it loses 3 of 10 packets, for as long as a cut lasts; W@…,loss=P,seconds=S for others"),
    )
    facts = ("loss", "seconds")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.loss < 1:
            raise ConfigError(f"LosePackets: loss is a share, between 0 and 1; found {self.loss:g}")

    def strike_hosts(self, struck: Event, run: RunningDrill) -> None:
        for host in run.hosts_of(struck, self.ranks):
            run.hosts.lose_packets(host, self.loss)

    def lost_max(self, sizes: Sizes) -> int | None:
        """Return None: where the hub's host has it, any other may seem silent."""
        return None


@dataclass(frozen=True)
class Partition(NetworkFault, SeveralWorkers):
    """The network falls apart for `seconds`: the hosts of these workers reach each other alone, and so do all others.

    They are those that have these ranks at that moment. One side goes on, and the other one comes back as newcomers.
    """

    seconds: float | None = 6.0

    kind = "partition"
    sentence = "the network falls apart {so_long}: the {side} one side"
    flags = (
        Flag("partition", "W,W@…: the network falls apart, for as long as a cut lasts: the hosts of these workers "
             "reach each other alone, and so do all others"),
    )  # fmt: skip

    @classmethod
    def together(cls, workers: tuple[int, ...], when: At, **fields: Any) -> Fault:
        return cls(workers, when, **fields)

    @property
    def side(self) -> str:
        """Return which hosts are one side, in words."""
        if len(self.workers) > 1:
            return f"hosts of workers {' and '.join(map(str, self.workers))} are"
        return f"host of worker {self.worker} is"

    def strike_hosts(self, struck: Event, run: RunningDrill) -> None:
        side = run.hosts_of(struck, self.ranks)
        run.hosts.partition([host for host in run.hosts.numbers if host not in side], side)
