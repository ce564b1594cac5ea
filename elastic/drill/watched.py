"""One run of a drill while it runs: told as it goes, and what has to be done to it in time is done.

Who was told to leave and is still there after his grace is killed; a disk that is broken for a while is healed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path

from rich.console import Console

from elastic.drill.cluster import Cluster
from elastic.drill.faults import Disk, Fault, KillAgent, KillAll, KillTogether, LeaveNode, Terminate, lost_to
from elastic.drill.planning.plan import DrillPlan
from elastic.drill.striking import disk
from elastic.drill.striking.acts import alive_among
from elastic.drill.striking.injection import STRUCK
from elastic.drill.telling.follow import Follow
from elastic.drill.telling.story import Story
from elastic.observe.events import Event


class Watched:
    """One run under the drill's eyes: what it left behind, and who has to be killed after his grace."""

    def __init__(self, cluster: Cluster, console: Console, plan: DrillPlan | None, *, grace_s: float | None) -> None:
        self.cluster = cluster
        self.left: list[str] = []
        self.launches = 0
        self._console = console
        self._faults = plan.faults if plan is not None else ()
        self._grace_s = grace_s
        self._announced: dict[int, Event] = {}  # index of a fault with an end -> its event; it may not have struck yet
        self._leaving: dict[int, float] = {}  # pid -> when its grace is over, on the monotonic clock
        self._healthy_s: float | None = None  # when the disk is to be healed, on the same clock

    @property
    def url(self) -> str:
        return self.cluster.url

    def lost_max(self) -> int | None:
        return self.cluster.lost_max()

    def not_reached(self) -> list[int]:
        return self.cluster.not_reached()

    def told(self, total: int | None) -> Story:
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
        self._heal(inf)
        self.left += ended.left_behind
        return ended.exit_code

    def _heard(self, event: Event) -> None:
        if event["event"] == "fault" and isinstance(self._faults[event["index"]], Terminate | Disk):
            self._announced[event["index"]] = event

    def _set_ends(self) -> None:
        """Of the announced faults that have struck: it can take a while to record one where storage is slow."""
        struck = self.cluster.folder / STRUCK
        for index in [index for index in self._announced if (struck / str(index)).exists()]:
            fault, event = self._faults[index], self._announced.pop(index)
            if isinstance(fault, Disk):
                self._healthy_s = time.monotonic() + fault.seconds
            else:
                assert self._grace_s is not None
                self._leaving[int(event["worker"].rsplit("-", 2)[1])] = time.monotonic() + self._grace_s

    def _heal(self, now_s: float) -> None:
        if self._healthy_s is not None and now_s >= self._healthy_s:
            self._healthy_s = None
            disk.heal(Path(self.url))

    def _end_grace(self) -> None:
        over = [pid for pid, until_s in self._leaving.items() if time.monotonic() > until_s]
        for pid in alive_among(over, self.cluster.folder) if over else []:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in over:
            del self._leaving[pid]


def goes_on(launched: Sequence[Event], plan: DrillPlan) -> str | None:
    """Why a launch that has ended must be followed by another one: "lost" everything, or an agent was lost or all
    workers "left"; None: it is over."""
    if any(event["event"] == "finished" for event in launched):
        return None
    if struck_in(launched, plan, KillAll):
        return "lost"
    return "left" if struck_in(launched, plan, KillAgent, LeaveNode, Terminate) else None


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
