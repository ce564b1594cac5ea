"""The network is as it was."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic.drill.faults.base import Aftermath, Flag, RunFault, RunningDrill
from elastic.drill.faults.host_fault import HostFault

if TYPE_CHECKING:
    from elastic.events.event import Event


@dataclass(frozen=True)
class Heal(HostFault, RunFault):
    """The cables of all hosts that run are as they were at first, though it is not yet time; a slow one stays slow."""

    kind = "heal"
    short = "the network is healed"
    sentence = "the network of all hosts is as it was"
    flags = (Flag("heal", "the network of all hosts is as it was; what is slow stays slow", of_worker=False),)

    def strike_hosts(self, struck: Event, run: RunningDrill) -> None:
        run.hosts.heal(*filter(run.hosts.running, run.hosts.numbers))

    def aftermath(self) -> Aftermath:
        return Aftermath.NO_LOSS
