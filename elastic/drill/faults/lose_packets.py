"""A network that loses packets for a while."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic.drill.faults.base import Flag, RunningDrill, WorkerFault
from elastic.drill.faults.host_fault import NetworkFault
from elastic.errors import ConfigError

if TYPE_CHECKING:
    from elastic.events.event import Event


@dataclass(frozen=True)
class LosePackets(NetworkFault, WorkerFault):
    """Of the packets from and to the host of the worker that has this rank at that moment, this share is lost, for
    `seconds`. TCP may cope or not: the host may be lost and come back several times."""

    loss: float = 0.3
    seconds: float | None = 6.0

    kind = "lose_packets"
    flags = (
        Flag("lose-packets", "it loses 3 of 10 packets, for as long as a cut lasts; W@…,loss=P,seconds=S for others"),
    )
    facts = ("loss", "seconds")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.loss < 1:
            raise ConfigError(f"LosePackets: loss is a share, between 0 and 1; found {self.loss:g}")

    def __str__(self) -> str:
        return f"{self.when}: the host of w{self.worker} loses {self.loss:.0%} of all packets {self.so_long}"

    def in_words(self) -> str:
        return f"the host of worker {self.worker} loses {self.loss:.0%} of all packets {self.so_long}"

    def strike_hosts(self, struck: Event, run: RunningDrill) -> None:
        for host in run.hosts_of(struck, self.ranks):
            run.hosts.lose_packets(host, self.loss)

    def lost_max(self, of_a_node: int) -> int | None:
        """Where the hub's host has it, any other may seem silent."""
        return None
