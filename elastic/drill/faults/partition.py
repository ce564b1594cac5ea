"""A network that falls apart for a while."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from elastic.drill.faults.base import Fault, Flag, RunningDrill
from elastic.drill.faults.host_fault import NetworkFault
from elastic.drill.faults.moments import At
from elastic.drill.faults.several_workers import SeveralWorkers

if TYPE_CHECKING:
    from elastic.events.event import Event


@dataclass(frozen=True)
class Partition(NetworkFault, SeveralWorkers):
    """For `seconds`, the hosts of the workers that have these ranks at that moment reach each other and nobody else, as
    do all others. One side goes on, and the other one comes back as newcomers."""

    seconds: float | None = 6.0

    kind = "partition"
    flags = (
        Flag(
            "partition",
            "W,W@…: the network falls apart, for as long as a cut lasts: the hosts of these workers reach each "
            "other alone, and so do all others",
        ),
    )
    facts = ("seconds",)

    @classmethod
    def together(cls, workers: tuple[int, ...], when: At, **fields: Any) -> Fault:
        return cls(workers, when, **fields)

    def __str__(self) -> str:
        return f"{self.when}: a partition {self.so_long}: {', '.join(f'w{one}' for one in self.workers)} alone"

    def in_words(self) -> str:
        several = len(self.workers) > 1
        side = (
            f"hosts of workers {' and '.join(map(str, self.workers))} are"
            if several
            else f"host of worker {self.worker} is"
        )
        return f"the network falls apart {self.so_long}: the {side} one side"

    def strike_hosts(self, struck: Event, run: RunningDrill) -> None:
        side = run.hosts_of(struck, self.ranks)
        run.hosts.partition([host for host in run.hosts.numbers if host not in side], side)

    def lost_max(self, of_a_node: int) -> int:
        return len(self.workers) * of_a_node
