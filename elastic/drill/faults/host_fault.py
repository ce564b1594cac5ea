"""A fault of a whole host: the drill strikes it, from outside, while the worker that sets it off stands still."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from elastic.drill.faults.base import Aftermath, Fault, RunningDrill, Scene, Sizes
from elastic.errors import ConfigError, ElasticError

if TYPE_CHECKING:
    from elastic.events.event import Event

_LOOK_S = 0.02
_WITHIN_S = 20.0  # less than a hang


class HostFault(Fault):
    """Of the host on which the worker is that has this rank at that moment, where the drill's nodes are hosts."""

    for_command = True
    needs_hosts = True

    def strike(self, scene: Scene) -> None:
        """Stands still until the drill has struck, and is killed by that or goes on. So the moment is exact."""
        deadline = time.monotonic() + _WITHIN_S
        while not scene.let_go.exists():
            if time.monotonic() > deadline:
                raise ElasticError(f"{self}: the drill did not strike within {_WITHIN_S:g} s; are its nodes hosts?")
            time.sleep(_LOOK_S)

    @abstractmethod
    def strike_hosts(self, struck: Event, run: RunningDrill) -> None:
        """What the drill does, from outside.

        struck  the worker's record of the fault
        """


class NetworkFault(HostFault):
    """One of cables, which may cost the run the workers of the host, and is over when they are healed.

    seconds  after which they are; None: not before the next Heal
    """

    if TYPE_CHECKING:  # a field

        @property
        def seconds(self) -> float | None: ...

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.seconds is not None and not self.seconds > 0:
            raise ConfigError(f"{type(self).__name__}: seconds must be above 0; found {self.seconds:g}")

    def until_healed(self) -> Fault:
        facts: dict[str, Any] = {"seconds": None}
        return replace(self, **facts)

    @property
    def so_long(self) -> str:
        return "until the next heal" if self.seconds is None else f"for {self.seconds:g} s"

    @classmethod
    def remaining(cls, there: int, sizes: Sizes) -> int:
        """Whoever comes back is not counted on: it may take longer than the run."""
        return there - sizes.of_a_node

    def aftermath(self) -> Aftermath:
        return Aftermath.PERHAPS_LOSS

    def lost(self) -> int | None:
        return None

    def lost_max(self, of_a_node: int) -> int | None:
        return of_a_node

    def lasts_s(self, grace_s: float) -> float | None:
        return self.seconds

    def end(self, struck: Event, run: RunningDrill, others: Iterable[Fault]) -> None:
        for host in filter(run.hosts.running, run.hosts_of(struck, self.ranks)):  # one without power stays silent
            run.hosts.heal(host)
