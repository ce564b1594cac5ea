"""Where did every worker's time go? Pure: events in, seconds out, and the parts sum to the whole.

A worker's time runs from its beginning to the end that is known of it: its last record, or its death as its
agent saw it. Each record of its own that ends a stretch (`_ENDS`) accounts for the time since the one before:

    starting       from its agent's asking for it (elsewhere: its process's start) to its entry into its Run:
                   interpreter, imports, the script's set-up
    idle           below the minimum of nodes: waiting, with everybody else, for nodes
    forming        waiting for a view, and forming its group; of a newcomer, waiting for a place
    loading        claiming the storage, reading the state or committing the first one, handing it to all ranks
    transferring   state goes from peers to those without it: to them, or from this worker
    productive     computing steps that count, and the script's own code between steps (evaluation, too)
    data_wait      of such steps: waiting for the loader
    exchange_wait  of such steps: in collectives, because others were slower, or the network was
    save_stall     training stood still for a save: on the coordinator, and on all who waited for it
    redone         spent on what does not count: a step in flight that was lost with a peer or with this worker, steps
                   that nobody survived who had applied them, steps after the save that a restart went back to, steps
                   that were passed over as bad, or taken back with one
    detecting      from a peer's fault (its death, its exception, its last sign of life) to this worker's knowing of
                   it, and of a stuck worker until it is killed. Where no agent saw a fault (a host that was cut off):
                   all since what this worker did last; under torchrun, the wait in the exchange that failed
    unknown        records that were removed to bound the log (compaction.py) and are not of steps alone

    goodput  = (productive + data_wait + exchange_wait) / whole: the share of the time that went into steps that count
    computed = productive / whole

Two are estimates. What others waited for the coordinator's save is the smaller of their wait in the next step and its
stall. Of steps that were folded, as many count as redone as lie behind what a restart went back to.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from elastic.events.event import Event
from elastic.events.timing import DATA, SAVE, WAIT

PARTS = (
    "productive",
    "data_wait",
    "exchange_wait",
    "save_stall",
    "redone",
    "detecting",
    "forming",
    "transferring",
    "loading",
    "idle",
    "starting",
    "unknown",
)
IN_STEPS_THAT_COUNT = ("productive", "data_wait", "exchange_wait")
_STEPS = ("step_applied", "passed_over", "folded")
_ENDS = frozenset({"run_started", "view_formed", "loaded", "transfer", "peer_lost", "left", "finished", *_STEPS})
_FORMING = ("run_started", "view_formed", "peer_lost")


@dataclass
class Account:
    """One worker's time.

    begin_s, end_s  unix seconds
    parts           seconds by part; they sum to end_s - begin_s
    stretches       [begin, end, part] in order, neighbours of one part as one; waits inside steps are not told apart,
                    and are "productive" here
    died            its end is a death
    """

    worker: str
    begin_s: float
    end_s: float
    parts: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    stretches: list[tuple[float, float, str]] = field(default_factory=list)
    died: bool = False

    def take(self, until_s: float, *split: tuple[str, float], rest: str, shown: str | None = None) -> None:
        """The time from end_s to until_s: so much of each part of `split`, as far as it goes, and the rest."""
        rest_s = until_s - self.end_s
        if rest_s <= 0.0:
            return
        for part, seconds in split:
            took = min(rest_s, max(0.0, seconds))
            self.parts[part] += took
            rest_s -= took
        self.parts[rest] += rest_s
        shown = shown or rest
        if self.stretches and self.stretches[-1][2] == shown:
            self.stretches[-1] = (self.stretches[-1][0], until_s, shown)
        else:
            self.stretches.append((self.end_s, until_s, shown))
        self.end_s = until_s


@dataclass(frozen=True)
class Ledger:
    """workers: by id, in the order in which they began"""

    workers: Mapping[str, Account]

    @property
    def whole(self) -> float:
        """Worker-seconds."""
        return math.fsum(account.end_s - account.begin_s for account in self.workers.values())

    @property
    def parts(self) -> dict[str, float]:
        """Worker-seconds by part."""
        return {part: math.fsum(a.parts[part] for a in self.workers.values()) for part in PARTS}

    @property
    def goodput(self) -> float:
        """0 to 1; 0 where there is no time."""
        parts, whole = self.parts, self.whole
        return math.fsum(parts[part] for part in IN_STEPS_THAT_COUNT) / whole if whole > 0 else 0.0

    @property
    def computed(self) -> float:
        return self.parts["productive"] / self.whole if self.whole > 0 else 0.0


def ledger(events: Sequence[Event], counting: Counting | None = None) -> Ledger:
    """The account of all workers of a run, over all its launches. events: as read_events gives them."""
    counts = counting or Counting(events)
    faults = Faults(events)
    stalls = _stalls(events)
    by_worker: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        by_worker[event["worker"]].append(event)
    accounts = (_account(own, counts, faults, stalls) for own in by_worker.values())
    return Ledger({account.worker: account for account in sorted(accounts, key=lambda a: a.begin_s)})


class Counting:
    """Which applied steps count: of one step, those in the newest view of the newest launch that the run is of, if they
    were not taken back."""

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
        while launch in begun:
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
        return self._survives(applied) and applied["step"] not in self.passed_over

    def may_count(self, of_step: Event) -> bool:
        """Of a record that belongs to an applied step: also where that step's own is folded, or not there yet."""
        known = (self._launch(of_step), of_step["step"]) in self._newest_view
        return self.counts(of_step) if known else of_step["step"] < self._kept_below(self._launch(of_step))

    def _survives(self, done: Event) -> bool:
        launch, step = self._launch(done), done["step"]
        newest = (done.get("generation") or 0) == self._newest_view.get((launch, step), 0)
        return newest and step < self._kept_below(launch)

    def share_that_counts(self, folded: Event) -> float:
        """Of a folded record's steps."""
        first, last = folded["first"], folded["last"]
        if first is None:
            return 1.0
        kept = min(max(self._kept_below(self._launch(folded)) - first, 0), last + 1 - first)
        return float(kept / (last + 1 - first))

    def _kept_below(self, launch: int) -> float:
        return self._kept.get(launch, 0.0 if self._begun else math.inf)

    def _launch(self, event: Event) -> int:
        """The claim that the launch began with: a later coordinator may have taken another one."""
        claim = event.get("claim") or 0
        index = bisect_right(self._begun, claim)
        return self._begun[index - 1] if index else claim


class Faults:
    """When workers died, and when what killed them began: they raised, were stopped, or died.

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
        """When the fault began that a worker met before it formed this view, whose first rank tells of it: -inf where
        nobody saw it. None: nothing is told."""
        if view is None or not view.get("workers"):
            return None
        return self._begun_before.get((view.get("generation") or 0, view["workers"][0]))


def _stalls(events: Iterable[Event]) -> dict[tuple[int, int], float]:
    """(claim, index of the step after a save) -> seconds that the coordinator stood still before it."""
    stalls: dict[tuple[int, int], float] = {}
    for event in events:
        if event["event"] == "step_applied" and SAVE in event:
            stalls[event.get("claim") or 0, event["step"]] = event[SAVE]
    return stalls


def _account(
    own: Sequence[Event], counts: Counting, faults: Faults, stalls: Mapping[tuple[int, int], float]
) -> Account:
    ages = (float(event["t"]) - event["age_s"] for event in own if event.get("age_s"))  # a drill notes things before
    begin_s = min(float(own[0]["t"]), *ages, math.inf)
    account = Account(own[0]["worker"], begin_s, begin_s)
    before: Event | None = None
    for index, event in enumerate(own):
        t = float(event["t"])
        if event["event"] not in _ENDS:
            continue
        match event["event"]:
            case "run_started":
                account.take(t, rest="starting")
            case "view_formed":
                account.take(t, ("idle", event.get("idle_s", 0.0)), rest="forming")
            case "loaded":
                taken = before is not None and before["event"] == "transfer"
                account.take(t, rest="transferring" if taken else "loading")
            case "transfer":
                account.take(t, rest="transferring")
            case "peer_lost":
                after = next((one for one in own[index:] if one["event"] == "view_formed"), None)
                _lose(account, event, t, before, faults.met(after))
            case "step_applied" | "passed_over":
                _step(account, event, t, counts.counts(event), stalls)
            case "folded":
                _folded(account, event, t, counts.share_that_counts(event))
            case _:
                ending = event.get(SAVE, 0.0) + (event.get(WAIT, 0.0) if event["event"] == "finished" else 0.0)
                forming = event.get(WAIT, 0.0) if event["event"] == "left" else 0.0
                account.take(t, ("save_stall", ending), ("forming", forming), rest="productive")
        before = event
    account.died = account.worker in faults.died
    rest = "starting" if before is None else "forming" if before["event"] in _FORMING else "redone"
    if account.died:
        account.take(faults.begun[account.worker], rest=rest)
        account.take(faults.died[account.worker], rest="detecting")
    account.take(float(own[-1]["t"]), rest=rest)
    return account


def _lose(account: Account, lost: Event, t: float, before: Event | None, begun_s: float | None) -> None:
    in_vain = "forming" if before is not None and before["event"] in _FORMING else "redone"
    if begun_s is None:
        account.take(t, ("detecting", lost.get(WAIT, 0.0)), rest=in_vain)
    else:
        begun_s = max(begun_s, account.end_s + lost.get(SAVE, 0.0))
        account.take(min(begun_s, t), ("save_stall", lost.get(SAVE, 0.0)), rest=in_vain)
        account.take(t, rest="detecting")


def _step(account: Account, applied: Event, t: float, counts: bool, stalls: Mapping[tuple[int, int], float]) -> None:
    saving, waiting = applied.get(SAVE, 0.0), applied.get(WAIT, 0.0)
    if not counts:
        account.take(t, ("save_stall", saving), rest="redone")
        return
    of_others = max(0.0, stalls.get((applied.get("claim") or 0, applied["step"]), 0.0) - saving)
    for_save = min(waiting, of_others)
    split = (
        ("save_stall", saving + for_save),
        ("exchange_wait", waiting - for_save),
        ("data_wait", applied.get(DATA, 0.0)),
    )
    account.take(t, *split, rest="productive")


def _folded(account: Account, folded: Event, t: float, share: float) -> None:
    """The share of it that counts comes first: a restart takes back the newest."""
    if folded.get("unknown"):
        account.take(t, rest="unknown")
        return
    until_s = account.end_s + share * max(0.0, t - account.end_s)
    split = ("save_stall", SAVE), ("exchange_wait", WAIT), ("data_wait", DATA)
    account.take(until_s, *((part, share * folded.get(spent, 0.0)) for part, spent in split), rest="productive")
    account.take(t, ("save_stall", (1 - share) * folded.get(SAVE, 0.0)), rest="redone")
