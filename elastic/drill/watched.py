"""One run of a drill while it runs: told as it goes, and what has to be done to it in time is done.

Who was told to leave and is still there after its grace is killed; a disk that is broken for a while is healed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from math import inf
from pathlib import Path

from rich.console import Console

from elastic.drill.cluster import Cluster
from elastic.drill.faults import Disk, Fault, KillAgent, KillAll, KillTogether, LeaveNode, Terminate, lost_to
from elastic.drill.inject.acts import alive_among
from elastic.drill.inject.injector import STRUCK
from elastic.drill.machine import disk
from elastic.drill.plan.drill_plan import DrillPlan
from elastic.drill.report.follow import Follow
from elastic.drill.report.story import Story
from elastic.events.event import Event


class Watched:
    """One run under the drill's eyes: what it left behind, and who has to be killed after its grace."""

    def __init__(self, cluster: Cluster, console: Console, plan: DrillPlan | None, *, grace_s: float | None) -> None:
        self.cluster = cluster
        self.left: list[str] = []
        self.launches = 0
        self._console = console
        self._faults = plan.faults if plan is not None else ()
        self._grace_s = grace_s
        self.overdue: set[str] = set()  # workers that were still there after their grace, and were killed
        self._announced: dict[int, Event] = {}  # index of a fault with an end -> its event; it may not have struck yet
        self._leaving: list[tuple[Event, float]] = []  # who is told to; when the grace is over, on the monotonic clock
        self._healthy_s: float | None = None  # when the disk is to be healed, on the same clock

    @property
    def url(self) -> str:
        return self.cluster.url

    def lost_max(self) -> int:
        return (self.cluster.lost_max() or 0) + len(self.overdue)

    def not_reached(self) -> list[int]:
        return self.cluster.not_reached()

    def story(self, total: int | None) -> Story:
        follow = Follow(self.cluster.evidence)
        return Story(self._console, follow, faults=self._faults, total=total, heard=self._heard)

    def wait(self, story: Story, *, within_s: float) -> int:
        self.launches += 1

        def watching() -> None:
            story.watching()
            self._set_ends()
            self._end_grace()
            self._heal(time.monotonic())

        ended = self.cluster.wait(within_s=within_s, watching=watching)
        story.watching()
        self._set_ends()
        self._heal(inf)
        self.left += ended.left_behind
        return ended.exit_code

    def _heard(self, event: Event) -> None:
        if event["event"] == "fault" and isinstance(self._faults[event["index"]], Terminate | Disk):
            self._announced[event["index"]] = event

    def _set_ends(self) -> None:
        """Of the announced faults that have struck, or whose worker was killed as it struck."""
        announced = [index for index in self._announced if self._has_struck(index)]
        for index in announced:
            fault, event = self._faults[index], self._announced.pop(index)
            if isinstance(fault, Disk):
                self._healthy_s = max(self._healthy_s or 0.0, time.monotonic() + fault.seconds)
            else:
                assert self._grace_s is not None
                self._leaving.append((event, time.monotonic() + self._grace_s))

    def _has_struck(self, index: int) -> bool:
        striker = _pid(self._announced[index]["worker"])
        return (self.cluster.folder / STRUCK / str(index)).exists() or not alive_among([striker], self.cluster.folder)

    def _heal(self, now_s: float) -> None:
        if self._healthy_s is not None and now_s >= self._healthy_s:
            self._healthy_s = None
            disk.heal(Path(self.url))

    def _end_grace(self) -> None:
        over = {_pid(event["worker"]): event for event, until_s in self._leaving if time.monotonic() > until_s}
        self._leaving = [(event, until_s) for event, until_s in self._leaving if _pid(event["worker"]) not in over]
        for pid in alive_among(over, self.cluster.folder) if over else []:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self.overdue.add(over[pid]["worker"])
                words = f"worker {over[pid]['rank']} has not left within {self._grace_s:g} s: SIGKILL"
                self._console.print(f"            {words}", highlight=False)


def _pid(worker: str) -> int:
    return int(worker.rsplit("-", 2)[1])


def goes_on(launched: Sequence[Event], plan: DrillPlan, code: int = 0, overdue: Container[str] = ()) -> str | None:
    """Why a launch that has ended must be followed by another one: "lost" everything, or an agent was lost or all
    workers "left"; None: it is over, as it should be or not.

    code     of a launcher that had no reason to end so
    overdue  workers that were killed because they had not left in time
    """
    if any(event["event"] == "finished" for event in launched):
        return None
    if struck_in(launched, plan, KillAll):
        return "lost"
    if struck_in(launched, plan, KillAgent):
        return "left"
    last: Sequence[str] = next(
        (event["workers"] for event in reversed(launched) if event["event"] == "view_formed"), ()
    )
    taken = (event for event in launched if event["event"] == "fault" and _takes(plan.faults[event["index"]]))
    gone = {event["worker"] for event in launched if event["event"] == "left"} | {event["worker"] for event in taken}
    left = any(worker in gone or worker in overdue for worker in last)
    return "left" if left and not code and struck_in(launched, plan, LeaveNode, Terminate) else None


def _takes(fault: Fault) -> bool:
    """Whether the worker that it strikes may be gone by it."""
    return lost_to(fault) != 0 or isinstance(fault, Terminate | LeaveNode)


def failed(codes: Mapping[int, int | None], launched: Sequence[Event], plan: DrillPlan) -> int:
    """The exit status of a launcher that had no reason to end so; 0: there is none.

    One that is killed has the signal's. One that is told to leave ends with 1 if a worker of its node does not get to
    the boundary, because another fault has taken it.

    codes  of the launchers, by pid
    """
    agents = {event["worker"]: event["agent"] for event in launched if event["event"] == "placed"}
    hit: dict[int, list[Fault]] = defaultdict(list)
    together = False
    for event in launched:
        if event["event"] == "fault":
            fault = plan.faults[event["index"]]
            hit[agents.get(event["worker"], 0)].append(fault)
            together |= isinstance(fault, KillTogether)
    for pid, code in codes.items():
        killed = any(isinstance(fault, KillAgent) for fault in hit[pid])
        leaves = any(isinstance(fault, LeaveNode) for fault in hit[pid])
        taken = together or any(lost_to(fault) != 0 for fault in hit[pid])
        if code and not (killed and code == -signal.SIGKILL) and not (leaves and taken and code == 1):
            return code
    return 0


def struck_in(launched: Sequence[Event], plan: DrillPlan, *kinds: type[Fault]) -> bool:
    """Whether a fault of these kinds is among the events of a launch."""
    faults = [plan.faults[event["index"]] for event in launched if event["event"] == "fault"]
    return any(isinstance(fault, kinds) for fault in faults)
