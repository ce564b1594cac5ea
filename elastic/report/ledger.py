"""Where did every worker's time go? Pure: events in, seconds out, and the parts sum to the whole.

A worker's time runs from its beginning to the end that is known of it: its last record, or its death as its agent saw
it. The parts, and what goodput is of them, are events/account.py's.

Two are estimates: what others waited for the coordinator's save, and how many folded steps count.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from elastic.events.account import BADPUT, IN_STEPS_THAT_COUNT, PARTS, Account
from elastic.events.event import Event
from elastic.events.timing import SAVE


@dataclass(frozen=True)
class Ledger:
    """Holds the account of each worker, by id, in the order in which they began."""

    workers: Mapping[str, Account]

    @property
    def whole(self) -> float:
        """Return the sum of all workers' time, in seconds."""
        return math.fsum(account.end_s - account.begin_s for account in self.workers.values())

    @property
    def parts(self) -> dict[str, float]:
        """Return the sum of all workers' time in each part, in seconds."""
        return {part: math.fsum(a.parts[part] for a in self.workers.values()) for part in PARTS}

    @property
    def goodput(self) -> float:
        """Return the share of the time that went into steps that count, 0 to 1; 0 where there is no time."""
        parts, whole = self.parts, self.whole
        return math.fsum(parts[part] for part in IN_STEPS_THAT_COUNT) / whole if whole > 0 else 0.0

    @property
    def badput(self) -> dict[str, float]:
        """Return the sum of all workers' time by what it is lost to, in seconds, by ml-goodput-measurement's names."""
        lost = [account.badput for account in self.workers.values()]
        return {name: math.fsum(one[name] for one in lost) for name in BADPUT}

    @property
    def computed(self) -> float:
        """Return the share of the time that was productive, without the waits in steps that count; 0 to 1."""
        return self.parts["productive"] / self.whole if self.whole > 0 else 0.0


def ledger(events: Sequence[Event], counting: CountedSteps | None = None) -> Ledger:
    """Return the account of all workers of a run, over all its launches; events: as read_events gives them."""
    counts = counting or CountedSteps(events)
    faults = Faults(events)
    stalls = _stalls(events)
    by_worker: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        by_worker[event["worker"]].append(event)
    accounts = (_account(own, counts, faults, stalls) for own in by_worker.values())
    return Ledger({account.worker: account for account in sorted(accounts, key=lambda a: a.begin_s)})


class CountedSteps:
    """Says which applied steps count.

    Of one step, those in the newest view of the newest launch that the run is of, if they were not taken back.
    """

    def __init__(self, events: Sequence[Event]) -> None:
        begun: dict[int, tuple[int | None, int]] = {}  # claim -> (whose state it went on from, its step)
        for event in events:
            if event["event"] == "loaded" and event.get("from_claim") != (event.get("claim") or 0):
                begun.setdefault(event.get("claim") or 0, (event.get("from_claim"), event["step"]))
        self._begun = sorted(begun)
        self._kept: dict[int, float] = {}  # launch -> steps below this count
        self._newest_view: dict[tuple[int, int], int] = {}  # (launch, step) -> generation
        for event in events:
            if event["event"] in ("step_applied", "passed_over"):
                at = self._launch(event), event["step"]
                self._newest_view[at] = max(self._newest_view.get(at, 0), event.get("generation") or 0)
        launch, limit = max(begun, default=0), math.inf
        self._kept[launch] = limit
        while launch in begun:  # from the newest launch back to those that it goes on from
            source, step = begun[launch]
            before = self._launch({"claim": source})
            if source is None or before >= launch:
                break
            launch, limit = before, min(limit, step)
            self._kept[launch] = limit
        self.passed_over: dict[int, Event] = {}  # step -> the record that says so
        for event in events:
            if event["event"] == "passed_over" and self._survives(event):
                first = event.get("first")
                for step in range(event["step"] if first is None else first, event["step"] + 1):
                    if step not in self.passed_over or event.get("rank") == 0:
                        self.passed_over[step] = event

    def counts(self, applied: Event) -> bool:
        """Return whether an applied step counts: what it did survives, and it was not passed over."""
        return self._survives(applied) and applied["step"] not in self.passed_over

    def may_count(self, of_step: Event) -> bool:
        """Return whether a record's step counts, or may: its own record is folded, or not there yet."""
        known = (self._launch(of_step), of_step["step"]) in self._newest_view
        return self.counts(of_step) if known else of_step["step"] < self._kept_below(self._launch(of_step))

    def _survives(self, done: Event) -> bool:
        """Return whether a step was done in its launch's newest view, and no restart has gone back behind it."""
        launch, step = self._launch(done), done["step"]
        newest = (done.get("generation") or 0) == self._newest_view.get((launch, step), 0)
        return newest and step < self._kept_below(launch)

    def share_that_counts(self, folded: Event) -> float:
        """Return how many of a folded record's steps count, from 0 to 1."""
        first, last = folded["first"], folded["last"]
        if first is None:
            return 1.0
        # as many are redone as lie behind what a restart went back to
        kept = min(max(self._kept_below(self._launch(folded)) - first, 0), last + 1 - first)
        return float(kept / (last + 1 - first))

    def _kept_below(self, launch: int) -> float:
        """Return the step from which on nothing counts of what a launch did."""
        return self._kept.get(launch, 0.0 if self._begun else math.inf)

    def _launch(self, event: Event) -> int:
        """Return the claim that the launch began with: a later coordinator may have taken another one."""
        claim = event.get("claim") or 0
        index = bisect_right(self._begun, claim)
        return self._begun[index - 1] if index else claim


class Faults:
    """Says when workers died, and when what killed them began: they raised, were stopped, or died.

    died, begun  worker -> unix seconds, of those whose end an agent saw
    """

    def __init__(self, events: Sequence[Event]) -> None:
        seen = [event for event in events if event["event"] == "fault_detected" and event.get("died_t") is not None]
        stuck = {event["lost"]: event.get("stuck_s") or 0.0 for event in events if event["event"] == "hang"}
        raised = {event["worker"]: float(event["t"]) for event in events if event["event"] == "error"}
        self.died: dict[str, float] = {event["lost"]: float(event["died_t"]) for event in seen}
        self.begun: dict[str, float] = {}
        for lost, died_s in self.died.items():
            self.begun[lost] = min(died_s - stuck.get(lost, 0.0), raised.get(lost, died_s))
        self._begun_before: dict[tuple[int, str], float] = {}  # (generation, by whom) -> when the first of these began
        for event in events:
            if event["event"] == "fault_detected":
                at, begun_s = (event.get("generation") or 0, event["worker"]), self.begun.get(event["lost"], -math.inf)
                self._begun_before[at] = min(begun_s, self._begun_before.get(at, begun_s))

    def met(self, view: Event | None) -> float | None:
        """Return when the fault began that a worker met before it formed this view, whose first rank tells of it.

        -inf where nobody saw it; None: nothing is told.
        """
        if view is None or not view.get("workers"):
            return None
        return self._begun_before.get((view.get("generation") or 0, view["workers"][0]))


def _stalls(events: Iterable[Event]) -> dict[tuple[int, int], float]:
    """Return (claim, index of the step after a save) -> seconds that the coordinator stood still before it."""
    stalls: dict[tuple[int, int], float] = {}
    for event in events:
        if event["event"] == "step_applied" and SAVE in event:
            stalls[event.get("claim") or 0, event["step"]] = event[SAVE]
    return stalls


def _account(
    own: Sequence[Event], counts: CountedSteps, faults: Faults, stalls: Mapping[tuple[int, int], float]
) -> Account:
    """Return one worker's account, from its own records in order."""
    ages = (float(event["t"]) - event["age_s"] for event in own if event.get("age_s"))  # a drill notes things before
    begin_s = min(float(own[0]["t"]), *ages, math.inf)
    account = Account(own[0]["worker"], begin_s, begin_s)
    for index, event in enumerate(own):
        match event["event"]:
            case "peer_lost":
                after = next((one for one in own[index:] if one["event"] == "view_formed"), None)
                account.hear(event, met_s=faults.met(after))
            case "step_applied" | "passed_over":
                # what others waited for that save is the smaller of their wait in this step and the stall
                stalled_s = stalls.get((event.get("claim") or 0, event["step"]), 0.0)
                account.hear(event, counts=counts.counts(event), stalled_s=stalled_s)
            case "folded":
                account.hear(event, share=counts.share_that_counts(event))
            case _:
                account.hear(event)
    account.died = account.worker in faults.died
    rest = account.unfinished
    if account.died:
        account.take(faults.begun[account.worker], rest=rest)
        account.take(faults.died[account.worker], rest="detecting")
    account.take(float(own[-1]["t"]), rest=rest)
    return account
