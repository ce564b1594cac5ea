"""Where did one worker's time go? Seconds by part, from its own events; the parts sum to the whole.

Each event that ends a stretch (`_ENDS`) accounts for the time since the one before:

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
    detecting      from a peer's fault (its death, its exception, its last heartbeat) to this worker's knowing of
                   it, and of a stuck worker until it is killed. Where no agent saw a fault (a host that was cut off):
                   all since what this worker did last; under torchrun, the wait in the exchange that failed
    unknown        records that were removed to bound the log (compaction.py) and are not of steps alone

    goodput  = (productive + data_wait + exchange_wait) / whole: the share of the time that went into steps that count
    computed = productive / whole
    badput   = the other parts, and data_wait, by the names that ml-goodput-measurement has for them (its BadputType,
               0.2.4); what a change of the view takes is told apart by what changed

Which steps count in the end, and when a fault began, a worker's own events do not tell. Who reads a run as a whole
knows (report/ledger.py); live, a step that is applied counts, and a fault began when this worker began to wait in the
exchange that failed.
"""

from __future__ import annotations

from collections.abc import Iterable
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
_START, _GROWS, _SHRINKS = "training_prep", "elastic_scale_up", "elastic_slice_down"
_OF_CHANGES = ("detecting", "forming", "transferring")  # their time is badput of the change of the view that took it
_BADPUT = {
    "program_startup": "starting",
    "data_loading_sync": "data_wait",
    "unproductive_checkpoint_save_time": "save_stall",
    "unproductive_checkpoint_restore_time": "loading",
    "wasted_progress_from_disruption": "redone",
    "infrastructure_recovery_from_disruption": "idle",
    "other": "unknown",
}
BADPUT = (*_BADPUT, _START, _GROWS, _SHRINKS)


@dataclass
class Account:
    """One worker's time, by part.

    begin_s, end_s  unix seconds
    parts           seconds by part; they sum to end_s - begin_s
    stretches       [begin, end, part] in order, neighbours of one part as one; waits inside steps are not told apart,
                    and are "productive" here
    died            its end is a death
    changes         seconds of starts, and of views that grew and shrank: by badput's names
    """

    worker: str
    begin_s: float
    end_s: float
    parts: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    stretches: list[tuple[float, float, str]] = field(default_factory=list)
    died: bool = False
    changes: dict[str, float] = field(default_factory=lambda: dict.fromkeys((_START, _GROWS, _SHRINKS), 0.0))
    _before: str | None = None
    _change: str = _START
    _members: frozenset[str] | None = None
    _has_grown: bool = False

    @property
    def badput(self) -> dict[str, float]:
        """Return seconds by what they are lost to. A wait for data is lost, too."""
        return {**{name: self.parts[part] for name, part in _BADPUT.items()}, **self.changes}

    def take(self, until_s: float, *split: tuple[str, float], rest: str, shown: str | None = None) -> None:
        """Account for the time up to until_s: so much of each part of `split`, as far as it goes, and then `rest`."""
        rest_s = until_s - self.end_s
        if rest_s <= 0.0:
            return
        # As far as the time goes: parts sum to it, whatever a worker's own counts say.
        for part, seconds in split:
            took = min(rest_s, max(0.0, seconds))
            self._add(part, took)
            rest_s -= took
        self._add(rest, rest_s)
        shown = shown or rest
        if self.stretches and self.stretches[-1][2] == shown:
            self.stretches[-1] = (self.stretches[-1][0], until_s, shown)
        else:
            self.stretches.append((self.end_s, until_s, shown))
        self.end_s = until_s

    def hear(
        self,
        event: Event,
        *,
        counts: bool = True,
        met_s: float | None = None,
        stalled_s: float = 0.0,
        share: float = 1.0,
    ) -> None:
        """Account for the time before an event of its own; they come in their order.

        counts     of a step: it does, in the end
        met_s      of a lost peer: when the fault began, -inf where nobody saw it; None: nothing is told
        stalled_s  of a step: the coordinator's stall before it
        share      of folded steps: of them, those that count
        """
        if event["event"] not in _ENDS:
            return
        t = float(event["t"])
        match event["event"]:
            case "run_started":
                self.take(t, rest="starting")
            case "view_formed":
                self._enter(event.get("workers") or (), is_first=(event.get("generation") or 0) <= 1)
                self.take(t, ("idle", event.get("idle_s", 0.0)), rest="forming")
                if self._has_grown:  # whatever it came of: state goes to newcomers
                    self._change = _GROWS
            case "loaded":
                taken = self._before == "transfer"
                self.take(t, rest="transferring" if taken else "loading")
            case "transfer":
                self.take(t, rest="transferring")
            case "peer_lost":
                if self._members is not None:
                    self._change = _SHRINKS
                self._lose(event, t, met_s)
            case "step_applied" | "passed_over":
                self._step(event, t, counts and event["event"] == "step_applied", stalled_s)
            case "folded":
                self._folded(event, t, share)
            case _:
                ending = event.get(SAVE, 0.0) + (event.get(WAIT, 0.0) if event["event"] == "finished" else 0.0)
                forming = event.get(WAIT, 0.0) if event["event"] == "left" else 0.0
                self._change = _SHRINKS
                self.take(t, ("save_stall", ending), ("forming", forming), rest="productive")
        self._before = event["event"]

    def _add(self, part: str, seconds: float) -> None:
        self.parts[part] += seconds
        if part in _OF_CHANGES:
            self.changes[self._change] += seconds

    def _enter(self, workers: Iterable[str], *, is_first: bool) -> None:
        """Note which change the view comes of that this worker was waiting for, and who is in it."""
        before, self._members = self._members, frozenset(workers)
        self._has_grown = bool(before and self._members - before)
        if before is None:
            self._change = _START if is_first else _GROWS
        elif self._before != "peer_lost":
            self._change = _GROWS if self._has_grown else _SHRINKS

    @property
    def unfinished(self) -> str:
        """Return the part that the time since the last event counts as, should nothing come of it."""
        if self._before is None:
            return "starting"
        return "forming" if self._before in _FORMING else "redone"

    def _lose(self, lost: Event, t: float, begun_s: float | None) -> None:
        """Account for the time before a lost peer was known: up to its fault, and from then on."""
        in_vain = "forming" if self._before in _FORMING else "redone"
        if begun_s is None:
            self.take(t, ("detecting", lost.get(WAIT, 0.0)), rest=in_vain)
        else:
            # Where nobody saw the fault (-inf): all since what this worker did last.
            begun_s = max(begun_s, self.end_s + lost.get(SAVE, 0.0))
            self.take(min(begun_s, t), ("save_stall", lost.get(SAVE, 0.0)), rest=in_vain)
            self.take(t, rest="detecting")

    def _step(self, applied: Event, t: float, counts: bool, stalled_s: float) -> None:
        """Account for a step: as redone where it does not count, else by what its time went into."""
        saving, waiting = applied.get(SAVE, 0.0), applied.get(WAIT, 0.0)
        if not counts:
            self.take(t, ("save_stall", saving), rest="redone")
            return
        # Its own stall is counted already.
        of_others = max(0.0, stalled_s - saving)
        # While the coordinator stands still for a save, the others wait in the exchange.
        for_save = min(waiting, of_others)
        split = (
            ("save_stall", saving + for_save),
            ("exchange_wait", waiting - for_save),
            ("data_wait", applied.get(DATA, 0.0)),
        )
        self.take(t, *split, rest="productive")

    def _folded(self, folded: Event, t: float, share: float) -> None:
        """Account for folded steps. The share of them that counts comes first: a restart takes back the newest."""
        if folded.get("unknown"):
            self.take(t, rest="unknown")
            return
        until_s = self.end_s + share * max(0.0, t - self.end_s)
        split = ("save_stall", SAVE), ("exchange_wait", WAIT), ("data_wait", DATA)
        self.take(until_s, *((part, share * folded.get(spent, 0.0)) for part, spent in split), rest="productive")
        self.take(t, ("save_stall", (1 - share) * folded.get(SAVE, 0.0)), rest="redone")
