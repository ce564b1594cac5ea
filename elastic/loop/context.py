"""What all parts of the loop share. Nothing here is replaced while the run lasts."""

from __future__ import annotations

from dataclasses import dataclass

from elastic.config import Config
from elastic.events.log import EventLog
from elastic.events.observer import ObservedRun, Observer
from elastic.events.timing import Stopwatch
from elastic.membership.environment import Launch
from elastic.membership.progress import Progress
from elastic.membership.worker.live import Live
from elastic.status.console import Console


@dataclass(frozen=True, kw_only=True, eq=False)
class Context:
    """What the parts of the loop share.

    config     what the run was given
    launch     who started this worker
    worker_id  its name in views and events
    live       the way to the agent of `elastic run`; None under any other launcher
    observer   who looks on, and `observed`, what it may look at
    events     the log
    console    what is said to people
    progress   what the agent reads of where this worker is
    stopwatch  where its time goes
    """

    config: Config
    launch: Launch
    worker_id: str
    live: Live | None
    observer: Observer
    observed: ObservedRun
    events: EventLog
    console: Console
    progress: Progress
    stopwatch: Stopwatch

    def moment(self, name: str, share: int | None = None) -> None:
        """Call the observer at `name`, one of observer.MOMENTS; it may not return."""
        self.observer.at(name, self.observed, share)
