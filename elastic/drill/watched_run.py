"""One run of a drill while it runs: shown as it goes, hosts are struck, and what goes on for a while comes to its end.

A worker that has not left when its grace is over is killed; a disk that is broken for a while, or a cable, is healed. A
host that was cut off when the run ended looks for it in vain, and is switched off.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from math import inf
from pathlib import Path

from rich.console import Console

from elastic.drill.cluster import Cluster
from elastic.drill.faults.host_faults import HostFault, NetworkFault
from elastic.drill.hosts.hosts import Hosts
from elastic.drill.hosts.network import host_of, name
from elastic.drill.hosts.on_hosts import OnHosts
from elastic.drill.plan.drill_plan import DrillPlan
from elastic.drill.report.follow import Follow
from elastic.drill.report.story import Story
from elastic.events.event import Event

_STRANDED_S = 10.0  # so long after the run's end who takes part in it has ended, too


class WatchedRun:
    """One run of a drill while it runs, with all that the drill does to it from outside.

    left_behind  what it left on the machine, in words
    overdue      workers that were killed because they had not left within their grace
    """

    def __init__(
        self, cluster: Cluster, console: Console, plan: DrillPlan | None, hosting: OnHosts | None = None
    ) -> None:
        self.cluster = cluster
        self.left_behind: list[str] = []
        self.launches = 0
        self.overdue: set[str] = set()
        self._console = console
        self._hosting = hosting
        self._views: dict[int, list[str]] = {}  # generation -> workers, where nodes are hosts
        self._fell_apart = False
        self._finished_s = inf
        self._last: set[int] = set()  # hosts of the view that finished
        self._faults = plan.faults if plan is not None else ()
        self._grace_s = plan.grace_s if plan is not None else inf
        self._of_a_replica = plan.replica_size if plan is not None else 1
        self._announced: dict[int, Event] = {}  # index of a fault with an end -> its event; it may not have struck yet
        self._ends_s: dict[int, tuple[Event, float]] = {}  # of one that has struck -> when, on the monotonic clock

    @property
    def url(self) -> str:
        return self.cluster.url

    @property
    def storage(self) -> Path:
        return Path(self.url)

    @property
    def hosts(self) -> Hosts:
        assert self._hosting is not None, "faults of hosts come with --hosts"
        return self._hosting.hosts

    def hosts_of(self, struck: Event, ranks: Iterable[int]) -> list[int]:
        """Return the hosts of these ranks in the view of a fault's record; without a view, where that was made."""
        workers = self._views.get(struck.get("generation") or 0, [struck["worker"]])
        return sorted({host_of(workers[rank]) for rank in ranks if rank < len(workers)} or {host_of(struck["worker"])})

    def lost_max(self) -> int | None:
        """Return how many workers views may miss: those that faults took, or that were overdue; None: nobody knows."""
        taken = self.cluster.lost_max()
        return None if taken is None else taken + len(self.overdue) * self._of_a_replica

    def story(self, total: int | None) -> Story:
        """Return what shows this run's events on the console as they come. total: steps, if known."""
        follow = Follow(self.cluster.evidence)
        return Story(self._console, follow, faults=self._faults, total=total, heard=self.hear)

    def wait(self, story: Story, *, within_s: float) -> int:
        """Wait for the launch to end; meanwhile show it, and end faults in time. Return its exit code."""
        self.launches += 1

        def watching() -> None:
            story.watching()
            self._end_faults(time.monotonic())
            self._switch_off(time.monotonic())

        ended = self.cluster.wait(within_s=within_s, watching=watching)
        story.watching()
        self._end_faults(inf)
        self.left_behind += ended.left_behind
        return ended.exit_code

    def kill_overdue(self, struck: Event) -> None:
        """Kill the worker that this fault asked to leave, if it is still there."""
        if pid := self.cluster.pid(struck["worker"]):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self.overdue.add(struck["worker"])
                words = f"worker {struck['rank']} has not left within {self._grace_s:g} s: SIGKILL"
                self._console.print(f"            {words}", highlight=False)

    def hear(self, event: Event) -> None:
        """Note one of the run's events, which come in order, and strike a host if it is a fault of one."""
        if event["event"] == "view_formed":
            self._views[event.get("generation") or 0] = event["workers"]
        elif event["event"] == "finished":
            self._finished_s = min(self._finished_s, time.monotonic())
            workers = self._views.get(event.get("generation") or 0, [])
            self._last = set(map(host_of, workers)) if self._hosting is not None else set()
        elif event["event"] == "fault":
            fault = self._faults[event["index"]]
            if isinstance(fault, HostFault):
                self._strike(fault, event)
            if fault.lasts_s(self._grace_s) is not None:
                self._announced[event["index"]] = event

    def _strike(self, fault: HostFault, struck: Event) -> None:
        """Strike hosts, and let the worker go on that has set the fault off and stands still."""
        fault.strike_hosts(struck, self)
        self._fell_apart |= isinstance(fault, NetworkFault)
        self.cluster.drill.let_go(struck["index"]).touch()

    def _end_faults(self, now_s: float) -> None:
        """Start the time of faults that have struck by now, and end those whose time is over at `now_s`."""
        for index in [index for index in self._announced if self._has_struck(index)]:
            lasts_s = self._faults[index].lasts_s(self._grace_s)
            assert lasts_s is not None
            self._ends_s[index] = self._announced.pop(index), time.monotonic() + lasts_s
        over = [index for index, (_, ends_s) in self._ends_s.items() if now_s >= ends_s]
        ended = [(index, self._ends_s.pop(index)[0]) for index in over]
        for index, struck in ended:
            self._faults[index].end(struck, self, [self._faults[other] for other in self._ends_s])

    def _has_struck(self, index: int) -> bool:
        """Return whether this fault has struck, or its worker was killed as it struck."""
        drill = self.cluster.drill
        return drill.struck(index).exists() or not self.cluster.pid(self._announced[index]["worker"])

    def _switch_off(self, now_s: float) -> None:
        """Switch off the hosts that the run has gone on without, some time after it is over."""
        if self._hosting is None or not self._fell_apart or now_s < self._finished_s + _STRANDED_S:
            return
        for host, machine in self._hosting.machines.items():
            if host not in self._last and machine.poll() is None and self.cluster.abandon(machine):
                words = f"{name(host)} looks for a run that is over: it is switched off"
                self._console.print(f"            {words}", highlight=False)
