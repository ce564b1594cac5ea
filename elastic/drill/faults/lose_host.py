"""A host that crashes, or loses its power."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic.drill.faults.base import Flag, RunningDrill, Sizes
from elastic.drill.faults.host_fault import HostFault
from elastic.drill.faults.lose_node import LoseNode
from elastic.errors import ConfigError

if TYPE_CHECKING:
    from elastic.events.event import Event

_WAYS = {"crash": "crashes", "power": "loses its power"}


@dataclass(frozen=True)
class LoseHost(HostFault, LoseNode):
    """All that runs on the host of the worker that has this rank at that moment is killed, for good.

    how  "crash": connections are reset. "power": nobody is told, and only silence tells
    """

    how: str

    kind = "lose_host"
    flags = (
        Flag("crash-host", "all its processes die, and its connections are reset", {"how": "crash"}),
        Flag("power-off", "it falls silent for good: nobody is told", {"how": "power"}),
    )
    fatal = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.how not in _WAYS:
            raise ConfigError(f"LoseHost: how={self.how!r}; it is {' or '.join(_WAYS)}")

    @classmethod
    def remaining(cls, there: int, sizes: Sizes) -> int:
        return there - sizes.of_a_node

    def __str__(self) -> str:
        return f"{self.when}: the host of w{self.worker} {_WAYS[self.how]}"

    def in_words(self) -> str:
        return f"the host of worker {self.worker} {_WAYS[self.how]}"

    def strike_hosts(self, struck: Event, run: RunningDrill) -> None:
        lost = run.hosts_of(struck, self.ranks)
        run.hosts.crash(*lost) if self.how == "crash" else run.hosts.lose_power(*lost)
