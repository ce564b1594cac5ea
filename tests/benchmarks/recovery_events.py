"""What one fault cost, computed from the events that the workers left. Pure, but for reading the files.

Every time is of survivors, and of the last of them where there are several: from the signal (or what else began it) to
the first step that they applied in a view after it.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from elastic.events.event import Event
from tests.benchmarks.recovery_moments import computing

ViewKey = tuple[int, int]  # claim and generation: one of them is higher after each recovery
_MEDIAN_OF = 40
_TAKES = "takes"  # the role in a transfer of who receives it
_MOMENTS = ("form", "formed", "transfer", "data", "exchange", "update", "applied")


@dataclass(frozen=True)
class Applied:
    """One step on one worker. t: when it was applied"""

    t: float
    key: ViewKey
    redone: bool


@dataclass(frozen=True, kw_only=True)
class View:
    """The newest, as far as workers have applied a step in it."""

    key: ViewKey
    workers: frozenset[str]
    steps: int


@dataclass(frozen=True, kw_only=True)
class During:
    """Of survivors, whose steps were under way while others received the state.

    step       median seconds of a step just before
    whole      of the step in which others joined, the pause and all waiting included, in such steps
    computing  of that step, in those of the steps just before; recovery_moments.py says what is counted
    steps      how many of a survivor's steps the transfer was under way in
    """

    step: float
    whole: float
    computing: float
    steps: int


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Of one fault, in seconds.

    step      median step of the view before it
    total     to the survivors' next applied step
    noticed   to the first survivor's noticing; None where nobody lost a peer
    longest   the survivors' longest step until they went on
    redone    steps that were begun again, per survivor
    back      to the first step of the worker that came instead; None where none came
    join      the survivors' step at the boundary where that one joined, beyond the median step
    ended     to the end of the victim's process, where that was watched
    moments   to the survivors' passing of each moment, where they were noted
    pauses    see Events.pauses, where moments were noted
    """

    step: float
    total: float
    longest: float
    noticed: float | None = None
    redone: float = 0.0
    back: float | None = None
    join: float | None = None
    ended: float | None = None
    moments: dict[str, float] = field(default_factory=dict)
    pauses: tuple[float, float] | None = None


class Events:
    """The events of a run under way, as far as they are written."""

    def __init__(self, url: Path) -> None:
        self._folder = url / "events"
        self._offsets: dict[Path, int] = {}
        self.applied: dict[str, list[Applied]] = defaultdict(list)
        self.others: list[Event] = []

    def read(self) -> None:
        for path in self._folder.glob("*.jsonl"):
            offset = self._offsets.get(path, 0)
            if path.stat().st_size == offset:
                continue
            with path.open("rb") as file:
                file.seek(offset)
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._offsets[path] = offset + len(whole)
            for line in whole.splitlines():
                event = json.loads(line)
                if event["event"] == "step_applied":
                    key = event["claim"], event["generation"]
                    self.applied[event["worker"]].append(Applied(event["t"], key, event["redone"]))
                else:
                    self.others.append(event)

    def newest_view(self) -> View:
        key = max((steps[-1].key for steps in self.applied.values()), default=(0, 0))
        of_view = {worker: self._in(worker, key) for worker, steps in self.applied.items() if steps[-1].key == key}
        fewest = min((len(steps) for steps in of_view.values()), default=0)
        return View(key=key, workers=frozenset(of_view), steps=fewest)

    def median_step(self, view: View) -> float:
        """Seconds; the first step of the view, which had to be begun by somebody, is not among them."""
        gaps = []
        for worker in view.workers:
            times = [applied.t for applied in self._in(worker, view.key)]
            gaps += [later - earlier for earlier, later in pairwise(times)]
        return statistics.median(gaps)

    def went_on(self, worker: str, before: View) -> Applied | None:
        """The first step that it applied in a later view."""
        later = None
        for applied in reversed(self.applied[worker]):
            if applied.key <= before.key:
                break
            later = applied
        return later

    def first(self, event: str, since: float, worker: str | None = None) -> Event | None:
        found = None
        for one in reversed(self.others):
            if one["t"] < since - 60:
                break
            if one["event"] == event and one["t"] >= since and worker in (None, one["worker"]):
                found = one
        return found

    def cost(
        self,
        at: float,
        step: float,
        before: View,
        survivors: frozenset[str],
        after: View | None = None,
        *,
        ended: float | None = None,
    ) -> Cost:
        """at: the fault's time   after: the view in which all are back; None where nobody came back."""
        firsts = {worker: self.went_on(worker, before) for worker in survivors}
        until = max(first.t for first in firsts.values() if first is not None)
        losses = [e["t"] - at for w in survivors if (e := self.first("peer_lost", at, w)) is not None]
        newcomers = after.workers - survivors if after is not None else frozenset()
        back = [self._in(worker, after.key)[0].t - at for worker in newcomers] if after is not None else []
        again = sum(a.redone and a.t >= at for worker in survivors for a in self.applied[worker][-_MEDIAN_OF:])
        return Cost(
            step=step,
            total=until - at,
            longest=max(self._longest(worker, at, until) for worker in survivors),
            noticed=min(losses, default=None),
            redone=again / len(survivors),
            back=max(back, default=None),
            join=self.join(after, survivors) if after is not None and newcomers else None,
            ended=ended,
            moments=self._moments(at, survivors),
            pauses=self.pauses(after, survivors) if after is not None and newcomers else None,
        )

    def join(self, after: View, survivors: frozenset[str]) -> float:
        """What the boundary at which others joined cost the survivors beyond a step."""
        longest = 0.0
        for worker in survivors:
            joined = self._in(worker, after.key)[0]
            earlier = max(applied.t for applied in self.applied[worker] if applied.t < joined.t)
            longest = max(longest, joined.t - earlier)
        return longest - self.median_step(after)

    def pauses(self, after: View, survivors: frozenset[str]) -> tuple[float, float] | None:
        """(at the boundary at which others joined, the survivors' longest time until they computed again; how much
        longer they then waited for those others in the exchange). None: the run is not observed."""
        newcomers = after.workers - survivors
        if not any(event["event"] == "moments" for event in self.others):
            return None
        first = {worker: self._first_step(worker, after.key) for worker in after.workers}
        boundaries = []
        for worker in survivors:
            passed, joined = first[worker], self._in(worker, after.key)[0]
            earlier = max(applied.t for applied in self.applied[worker] if applied.t < joined.t)
            boundaries.append(passed["data"] - earlier)
        exchanges = [max(first[worker]["exchange"] for worker in group) for group in (survivors, newcomers)]
        return max(boundaries), max(0.0, exchanges[1] - exchanges[0])

    def during(self, at: float, step: float, after: View, survivors: frozenset[str]) -> During:
        """Medians of the survivors'.

        at     what is later than that is not just before: those who join have begun
        step   see During
        after  the view in which others joined
        """
        whole, factors, steps = [], [], []
        took = next(event for event in reversed(self.others) if event.get("role") == _TAKES)
        for worker in survivors:
            joined = self._in(worker, after.key)[0].t
            times = [applied.t for applied in self.applied[worker]]
            whole.append(joined - max(t for t in times if t < joined))
            event = self._first_event(worker, after.key)
            before = [seconds for t, seconds in event["computed"] if t <= at]
            seconds = computing(event["passed"])
            assert seconds is not None
            factors.append(seconds / statistics.median(before))
            begun_t = took["t"] - took["seconds"]
            steps.append(sum(later > begun_t and earlier < took["t"] for earlier, later in pairwise(times)))
        return During(
            step=step,
            whole=statistics.median(whole) / step,
            computing=statistics.median(factors),
            steps=max(steps),
        )

    def _first_step(self, worker: str, key: ViewKey) -> dict[str, float]:
        """When it first passed each moment, from the forming of this view on."""
        event = self._first_event(worker, key)
        formed = max(t for moment, t in event["passed"] if moment == "form")
        passed: dict[str, float] = {}
        for moment, t in event["passed"]:
            if t >= formed:
                passed.setdefault(moment, t)
        return passed

    def _first_event(self, worker: str, key: ViewKey) -> Event:
        """What it noted of the first step that it applied in this view."""
        applied = self._in(worker, key)[0]
        told = [one for one in self.others if one["event"] == "moments" and one["worker"] == worker]
        return min((one for one in told if one["t"] >= applied.t), key=lambda one: float(one["t"]))

    def _moments(self, at: float, survivors: frozenset[str]) -> dict[str, float]:
        """The last survivor's first passing of each, on the way to its first step after `at`."""
        noted: dict[str, list[float]] = defaultdict(list)
        for worker in survivors:
            if (lost := self.first("peer_lost", at, worker)) is not None:
                noted["peer_lost"].append(lost["t"] - at)
            if (event := self.first("moments", at, worker)) is not None:
                since = lost["t"] if lost is not None else at
                for name in _MOMENTS:
                    passed = [t for moment, t in event["passed"] if moment == name and t >= since]
                    if passed:
                        noted[name].append(passed[0] - at)
        return {name: max(times) for name, times in noted.items()} if "applied" in noted else {}

    def _longest(self, worker: str, since: float, until: float) -> float:
        times = [applied.t for applied in self.applied[worker] if applied.t <= until]
        return max((later - earlier for earlier, later in pairwise(times) if later >= since), default=0.0)

    def _in(self, worker: str, key: ViewKey) -> list[Applied]:
        """Its last steps, as far as they are of that view."""
        return [applied for applied in self.applied[worker][-_MEDIAN_OF:] if applied.key == key]
