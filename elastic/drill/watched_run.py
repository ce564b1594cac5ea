"""One run of a drill while it runs: shown as it goes, and what goes on for a while is brought to its end.

A worker that has not left when its grace is over is killed; a disk that is broken for a while is healed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from math import inf
from pathlib import Path

from rich.console import Console

from elastic.drill.cluster import Cluster
from elastic.drill.plan.drill_plan import DrillPlan
from elastic.drill.report.follow import Follow
from elastic.drill.report.story import Story
from elastic.events.event import Event


class WatchedRun:
    """One run under the drill's eyes.

    left     what it left behind, in words
    overdue  workers that were killed because they had not left within their grace
    """

    def __init__(self, cluster: Cluster, console: Console, plan: DrillPlan | None) -> None:
        self.cluster = cluster
        self.left: list[str] = []
        self.launches = 0
        self.overdue: set[str] = set()
        self._console = console
        self._faults = plan.faults if plan is not None else ()
        self._grace_s = plan.grace_s if plan is not None else inf
        self._announced: dict[int, Event] = {}  # index of a fault with an end -> its event; it may not have struck yet
        self._ends_s: dict[int, tuple[Event, float]] = {}  # of one that has struck -> when, on the monotonic clock

    @property
    def url(self) -> str:
        return self.cluster.url

    @property
    def storage(self) -> Path:
        return Path(self.url)

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
            self._end_faults(time.monotonic())

        ended = self.cluster.wait(within_s=within_s, watching=watching)
        story.watching()
        self._end_faults(inf)
        self.left += ended.left_behind
        return ended.exit_code

    def kill_overdue(self, struck: Event) -> None:
        """The worker that this fault asked to leave, if it is still there."""
        for pid in self.cluster.drill.alive([_pid(struck["worker"])]):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self.overdue.add(struck["worker"])
                words = f"worker {struck['rank']} has not left within {self._grace_s:g} s: SIGKILL"
                self._console.print(f"            {words}", highlight=False)

    def _heard(self, event: Event) -> None:
        if event["event"] == "fault" and self._faults[event["index"]].lasts_s(self._grace_s) is not None:
            self._announced[event["index"]] = event

    def _end_faults(self, now_s: float) -> None:
        """Of those that have struck, or whose worker was killed as it struck."""
        for index in [index for index in self._announced if self._has_struck(index)]:
            lasts_s = self._faults[index].lasts_s(self._grace_s)
            assert lasts_s is not None
            self._ends_s[index] = self._announced.pop(index), time.monotonic() + lasts_s
        over = [index for index, (_, ends_s) in self._ends_s.items() if now_s >= ends_s]
        ended = [(index, self._ends_s.pop(index)[0]) for index in over]
        for index, struck in ended:
            self._faults[index].end(struck, self, [self._faults[other] for other in self._ends_s])

    def _has_struck(self, index: int) -> bool:
        drill = self.cluster.drill
        return drill.struck(index).exists() or not drill.alive([_pid(self._announced[index]["worker"])])


def _pid(worker: str) -> int:
    return int(worker.rsplit("-", 2)[1])
