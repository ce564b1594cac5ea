"""What a fault finds where it strikes: in the worker that sets it off, and in the drill, from outside."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from elastic.drill.folder import DrillFolder
    from elastic.drill.hosts.hosts import Hosts
    from elastic.events.event import Event
    from elastic.events.observer import ObservedRun

_LOOK_S = 0.02


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Where a fault strikes: the worker that sets it off.

    run            its run
    drill          the drill's folder
    index          of the fault in the plan
    storage        the run's, where it is a local folder
    applied        steps that this worker has applied in the view that it is in
    joins_await_s  a node that joins is waited for, so long at most
    slow_down      makes this worker slower, by seconds in each of so many shares
    hang_reads     makes each further read of an example in this worker hang
    change_batch   has the next batch reach the script as what that makes of it
    at_next        has something done at this worker's next such moment
    """

    run: ObservedRun
    drill: DrillFolder
    index: int
    storage: Path | None
    applied: int
    joins_await_s: float
    slow_down: Callable[[float, int], None]
    hang_reads: Callable[[], None]
    change_batch: Callable[[Callable[[Any], Any]], None]
    at_next: Callable[[str, Callable[[], None]], None]

    def stand_still(self, within_s: float | None = None) -> bool:
        """Wait until the drill lets this worker go; return False if it has not within so many seconds."""
        let_go, begun_s = self.drill.let_go(self.index), time.monotonic()
        while not let_go.exists():
            if within_s is not None and time.monotonic() - begun_s >= within_s:
                return False
            time.sleep(_LOOK_S)
        return True


class RunningDrill(Protocol):
    """The run of a drill from outside, as far as faults may use it."""

    @property
    def storage(self) -> Path: ...
    @property
    def hosts(self) -> Hosts: ...
    def hosts_of(self, struck: Event, ranks: Iterable[int]) -> list[int]: ...
    def kill_overdue(self, struck: Event) -> None: ...
