"""How a run's view changed, and what each change cost: starts, restarts, losses, leaves and joins. Pure.

There is one for each view that at least one of its workers formed (views.py). It cost the time from its cause to the
first step applied in it:

    loss      from the first fault of a worker that was lost, as its agent saw it. Where nobody saw it, from the last
              that the survivors did in the view: a silent loss is noticed late, and nothing was trained meanwhile
    restart   from the end of the launch before; where that lost a peer, from the last that it did
    others    from the last step applied before
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from elastic.events.event import Event
from elastic.report.ledger import Faults
from elastic.report.views import ViewSeen, views

AGENT_LOST = "its elastic run was killed or failed"


class ChangeKind(str, Enum):
    """Says what made a view another one.

    START    the first view
    RESTART  that of a new launch
    LOSS     with or without newcomers
    BROKEN   a collective failed, and nobody was lost
    LEAVE    with or without newcomers
    JOIN     nobody left
    """

    START, RESTART, LOSS, BROKEN, LEAVE, JOIN = "start", "restart", "loss", "broken", "leave", "join"

    __str__ = str.__str__


@dataclass(frozen=True, kw_only=True)
class ViewChange:
    """Holds what a change of the view was, and what it cost.

    begun_t      unix seconds: its cause
    formed_t     when the first worker had formed the view
    trained_t    when the first step was applied in it; None: none was
    detected_s   of a loss, or a restart after one: from begun_t to the last survivor's knowing; None: nobody says
    came_back    those of `lost` that lived on, and ended when they were told that the run had gone on without them
    transfer_s   the longest that a worker gave or took state, and how much state that was
    transfer_bytes
    step         steps applied when it formed; None: unknown
    replica_size  so many workers are a replica; 1 where each is one by itself
    lost         worker id -> cause; "" where nobody saw it. Others know of a killed agent only that they reach its node
                 no longer; its workers live on, and say what it was
    lost_of      worker id -> its replica's number in the view before, where replicas have several workers
    redone       steps that came round again
    left_on      what those who left were signal_of, of each word one
    """

    launch: int
    generation: int
    kind: ChangeKind
    begun_t: float
    formed_t: float
    trained_t: float | None
    world_size: int
    step: int | None
    replica_size: int
    lost: dict[str, str]
    lost_of: dict[str, int]
    joined: int
    left: int
    detected_s: float | None = None
    came_back: tuple[str, ...] = ()
    transfer_s: float = 0.0
    transfer_bytes: int = 0
    redone: int = 0
    left_on: tuple[str, ...] = ()

    @property
    def cost_s(self) -> float | None:
        """Return the seconds from its cause to the next step; None if no step followed."""
        return None if self.trained_t is None else max(0.0, self.trained_t - self.begun_t)

    @property
    def unnoticed_s(self) -> float | None:
        """Return how much of that passed before all knew of the loss."""
        cost_s = self.cost_s
        return None if cost_s is None or self.detected_s is None else min(self.detected_s, cost_s)


@dataclass(frozen=True)
class Recovery:
    """Spans from the first fault to the next step, over several losses where others were lost before that step."""

    losses: tuple[ViewChange, ...]
    trained_t: float

    @property
    def begun_t(self) -> float:
        return self.losses[0].begun_t

    @property
    def cost_s(self) -> float:
        return max(0.0, self.trained_t - self.begun_t)


def recoveries(changes: Sequence[ViewChange]) -> list[Recovery]:
    """Return the recoveries in order, without losses after which their launch applied no step any more."""
    found: list[Recovery] = []
    losses: list[ViewChange] = []
    for change in changes:
        if change.kind in (ChangeKind.START, ChangeKind.RESTART):
            losses = []
        elif change.kind == ChangeKind.LOSS:
            losses.append(change)
        if losses and change.trained_t is not None:
            found.append(Recovery(tuple(losses), change.trained_t))
            losses = []
    return found


_PROGRESS = frozenset({"view_formed", "loaded", "transfer", "step_applied", "passed_over", "folded"})


class _ViewRecords:
    """Gathers what the events say that belong to one view."""

    def __init__(self, view: ViewSeen) -> None:
        self.view = view
        self.trained_t: float | None = None
        self.last_step: Event | None = None
        self.last_t = float(view.record["t"])
        self.noticed: list[tuple[str, float]] = []  # that a peer was lost: who, when
        self.progress: dict[str, float] = {}  # worker -> when it was last known to get on
        self.applied: dict[str, float] = {}  # worker -> when it last applied a step
        self.came_back: list[str] = []
        self.faults: dict[str, str] = {}
        self.loaded_step: int | None = None
        self.transfer_s = 0.0
        self.transfer_bytes = 0
        self.redone: set[int] = set()

    def noticed_t(self, lost: Collection[str]) -> list[float]:
        """Return when the others knew that a peer was gone; one that was cut off may know it much later."""
        return [t for worker, t in self.noticed if worker not in lost] or [t for _, t in self.noticed]

    def stood_still_t(self, lost: Collection[str]) -> float:
        """Return when the others were last known to get on."""
        return _latest(self.progress, lost, default=self.last_t)

    def fault_t(self, worker: str, lost: Collection[str], faults: Faults) -> float:
        """Return when what took this worker began."""
        if worker not in faults.begun:
            return self.stood_still_t(lost)
        # It comes after the last step that survivors applied, since all workers of a view take part in a step: so the
        # clock of another host decides no more than the time since then.
        return max(faults.begun[worker], _latest(self.applied, lost, default=-math.inf))

    def take(self, event: Event) -> None:
        """Take in what a worker of the view has recorded."""
        t = float(event["t"])
        self.last_t = max(self.last_t, t)
        if event["event"] in _PROGRESS:
            self.progress[event["worker"]] = t
        match event["event"]:
            case "step_applied" | "passed_over":
                self.applied[event["worker"]] = t
                self.trained_t = t if self.trained_t is None else self.trained_t
                if self.last_step is None or event["step"] >= self.last_step["step"]:
                    self.last_step = event
            case "folded" if event["last"] is not None:
                self.trained_t = float(event["since"]) if self.trained_t is None else self.trained_t
                self.last_step = {**event, "step": event["last"]}
            case "peer_lost":
                self.noticed.append((event["worker"], t))
            case "moved_on":
                self.came_back.append(event["worker"])
            case "fault_detected":
                self.faults[event["lost"]] = event["cause"]
            case "hang" if event["lost"] in self.faults:
                what = "no heartbeat" if event.get("stuck_s") is None else f"no sign for {event['stuck_s']:.1f} s"
                self.faults[event["lost"]] = f"{what}, then {self.faults[event['lost']]}"
            case "loaded":
                self.loaded_step = event["step"]
            case "transfer":
                self.transfer_s = max(self.transfer_s, event["seconds"])
                self.transfer_bytes = max(self.transfer_bytes, event["bytes"])
            case "redo":
                self.redone.add(event["step"])


def view_changes(events: Sequence[Event]) -> list[ViewChange]:
    """Return the changes of a run's view, in order."""
    seen = views(events)
    faults = Faults(events)
    signal_of = {event["worker"]: event["signal"] for event in events if event["event"] == "notice" and event["signal"]}
    signal_of |= {event["worker"]: AGENT_LOST for event in events if event["event"] == "agent_lost"}
    gathered = [_ViewRecords(view) for view in seen]
    at: dict[tuple[str, int], _ViewRecords] = {}  # (worker, generation) -> its view
    in_view: dict[tuple[int, tuple[str, ...]], list[_ViewRecords]] = {}
    for one in gathered:
        in_view.setdefault((one.view.generation, one.view.workers), []).append(one)
    for event in events:
        generation = event.get("generation") or 0
        if event["event"] == "view_formed":
            same = in_view[generation, tuple(event["workers"])]
            before = [one for one in same if one.view.record["t"] <= event["t"]]
            at[event["worker"], generation] = (before or same)[-1]  # none before: its clock was set back
        if (view := at.get((event["worker"], generation))) is not None:
            view.take(event)
    return [
        _change(one, gathered[index - 1] if index else None, faults, signal_of) for index, one in enumerate(gathered)
    ]


def _change(one: _ViewRecords, before: _ViewRecords | None, faults: Faults, signal_of: Mapping[str, str]) -> ViewChange:
    """Return how a view came out of the one before, and what that cost."""
    view = one.view
    formed_t = float(view.record["t"])
    restarted = before is not None and before.view.launch != view.launch
    same = set(before.view.workers) if before is not None and not restarted else set()
    joined = len([worker for worker in view.workers if worker not in same])
    gone = same - set(view.workers)
    causes = one.faults | {worker: said for worker, said in signal_of.items() if said == AGENT_LOST}
    lost = {worker: causes.get(worker, "") for worker in view.lost}
    old, of_a_replica = ((), 1) if before is None else (before.view.workers, before.view.replica_size)
    detected_s = None
    if before is None:
        kind, begun_t = ChangeKind.START, formed_t
    elif restarted:
        # where that launch lost a peer, from the last that it did
        kind, begun_t = ChangeKind.RESTART, before.stood_still_t(()) if before.noticed else before.last_t
        lost = {worker: causes.get(worker, "") for worker in before.view.workers if worker not in view.workers}
    elif lost or (before.noticed and not joined and not gone):
        kind = ChangeKind.LOSS if lost else ChangeKind.BROKEN  # a collective failed, and nobody is gone
        begun = [before.fault_t(worker, lost, faults) for worker in lost] or [before.stood_still_t(())]
        begun_t = min(*begun, *before.noticed_t(lost), formed_t)
    else:
        kind = ChangeKind.LEAVE if gone else ChangeKind.JOIN
        begun_t = float(before.last_step["t"]) if before.last_step is not None else before.last_t
    if kind in (ChangeKind.LOSS, ChangeKind.BROKEN, ChangeKind.RESTART) and before is not None and before.noticed:
        detected_s = max(0.0, max(before.noticed_t(lost if kind == ChangeKind.LOSS else ())) - begun_t)
    step = one.loaded_step if one.loaded_step is not None else _step_after(before)
    return ViewChange(
        launch=view.launch,
        generation=view.generation,
        kind=kind,
        begun_t=min(begun_t, formed_t),
        formed_t=formed_t,
        trained_t=one.trained_t,
        world_size=len(view.workers),
        step=step,
        replica_size=view.replica_size,
        lost=lost,
        lost_of={worker: old.index(worker) // of_a_replica for worker in lost if of_a_replica > 1},
        joined=joined,
        left=len(gone) - len(view.lost) if not restarted else 0,
        detected_s=detected_s,
        came_back=tuple(worker for worker in lost if before is not None and worker in before.came_back),
        transfer_s=one.transfer_s,
        transfer_bytes=one.transfer_bytes,
        redone=len(one.redone),
        left_on=tuple(sorted({signal_of[worker] for worker in gone if worker in signal_of and worker not in lost})),
    )


def _latest(times: Mapping[str, float], lost: Collection[str], *, default: float) -> float:
    """Return the latest time of those who were not lost; of all, where all were."""
    return max([t for worker, t in times.items() if worker not in lost] or times.values(), default=default)


def _step_after(view: _ViewRecords | None) -> int | None:
    """Return how many steps were applied at a view's end, as far as its records tell."""
    if view is None:
        return None
    return view.last_step["step"] + 1 if view.last_step is not None else view.loaded_step
