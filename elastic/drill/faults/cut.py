"""A host that is cut off from the others for a while."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

from elastic.drill.faults.base import Flag, RunningDrill, WorkerFault
from elastic.drill.faults.host_fault import NetworkFault
from elastic.errors import ConfigError

if TYPE_CHECKING:
    from elastic.events.event import Event

_WAYS = {"both": "is cut off", "in": "hears nothing", "out": "is not heard"}


@dataclass(frozen=True)
class Cut(NetworkFault, WorkerFault):
    """The cable of the host of the worker that has this rank at that moment is cut for `seconds`, and nobody is told.
    It comes back as a newcomer, unless that was shorter than the lease.

    way  "both", or one: "in", "out"
    """

    way: str
    seconds: float | None = 6.0

    kind = "cut"
    flags = (
        Flag("cut", "it is cut off, and nobody is told: until the next --heal, or without one for 6 s; "
             "W@…,seconds=S for others", {"way": "both"}),
        Flag("cut-in", "likewise, in one direction: it hears nothing", {"way": "in"}),
        Flag("cut-out", "likewise: it is not heard", {"way": "out"}),
    )  # fmt: skip
    facts = ("seconds",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.way not in _WAYS:
            raise ConfigError(f"Cut: way={self.way!r}; it is {', '.join(_WAYS)}")

    def __str__(self) -> str:
        return f"{self.when}: the host of w{self.worker} {_WAYS[self.way]} {self.so_long}"

    def in_words(self) -> str:
        return f"the host of worker {self.worker} {_WAYS[self.way]} {self.so_long}"

    def strike_hosts(self, struck: Event, run: RunningDrill) -> None:
        for host in run.hosts_of(struck, self.ranks):
            if self.way == "both":
                run.hosts.cut(host)
            else:
                run.hosts.cut_one_way(host, cast(Literal["in", "out"], self.way))
