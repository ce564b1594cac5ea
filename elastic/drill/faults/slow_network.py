"""A network that is slow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic.drill.faults.base import Aftermath, Flag, RunningDrill, WorkerFault
from elastic.drill.faults.host_fault import HostFault
from elastic.errors import ConfigError

if TYPE_CHECKING:
    from elastic.events.event import Event


@dataclass(frozen=True)
class SlowNetwork(HostFault, WorkerFault):
    """All packets from and to the host of the worker that has this rank at that moment are `delay` seconds later from
    then on; once for a host. Nobody is lost by that."""

    delay: float = 0.05

    kind = "slow_network"
    short = "packets of the host of w{worker} are {delay:g} s late"
    sentence = "packets from and to the host of worker {worker} are {delay:g} s late"
    flags = (Flag("slow-network", "its packets are 50 ms late from then on; W@…,delay=S for others"),)
    facts = ("delay",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.delay <= 1:
            raise ConfigError(f"SlowNetwork: delay is above 0 and up to 1 s; found {self.delay:g}")

    def strike_hosts(self, struck: Event, run: RunningDrill) -> None:
        for host in run.hosts_of(struck, self.ranks):
            run.hosts.delay(host, self.delay)

    def aftermath(self) -> Aftermath:
        return Aftermath.NO_LOSS
