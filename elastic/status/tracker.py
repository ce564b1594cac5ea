"""What the status of a run shows, kept up to date from one worker's own events as they happen.

    each event  ->  a few numbers here  ->  twice a second, at the end of a step, given to whoever shows them
                                        ->  where nobody does: a line of words after each change

It costs a step some microseconds. Only the coordinator's is shown, since it alone knows of saves and sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from elastic.events import words
from elastic.events.event import Event
from elastic.events.timing import SAVE

Status = dict[str, Any]

_MEMORY = 0.9  # of the running mean of how long a step takes
_CAUSE_MAX = 120
_MILESTONES = frozenset(
    {"run_started", "view_formed", "loaded", "transfer", "peer_lost", "step_applied", "passed_over"}
)


class StatusTracker:
    """Keeps the status of a run up to date, from one worker's events.

    total_steps  where the run ends
    shares       V, for the balance of shares: V / (W · ⌈V / W⌉), the share of a step's time in which all have work
    show         is given the status, as JSON values
    say          is given a line after each change of the view, once the next step is applied, and of the progress
                 every say_every_s
    """

    def __init__(
        self,
        *,
        total_steps: int,
        shares: int,
        show: Callable[[Status], None] | None = None,
        say: Callable[[str], None] | None = None,
        every_s: float = 0.5,
        say_every_s: float = 60.0,
    ) -> None:
        self._shares = shares
        self._show = show
        self._say = say
        self._every_s = every_s
        self._say_every_s = say_every_s
        self._said_t: float | None = None
        self._shown_t = -math.inf
        self._begun_t: float | None = None
        self._before_t = 0.0  # the last milestone's
        self._stepping = False  # it was a step of this view
        self._useful_s = 0.0
        self._step_s: float | None = None
        self._lost_t: float | None = None
        self._stood_still_t = 0.0  # what this worker did last before that
        self._faults: list[Event] = []
        self._stuck_s = 0.0
        self._workers: list[str] | None = None
        self._of_a_replica = 1  # workers
        self._lost_replicas: list[int] = []  # where these have several workers
        self._joined = self._left = self._lost = 0  # in views since the last step
        self._change = False  # there are such views
        self.status: Status = {"total_steps": total_steps, "lost": 0}  # since the step at which this worker came

    def hear(self, event: Event) -> None:
        """Take an event, as an EventLog's listener."""
        t = float(event["t"])
        if self._begun_t is None:
            self._begun_t = self._before_t = t
        match event["event"]:
            case "step_applied":
                self._stepped(event, t)
            case "passed_over":
                before = self.status.get("passed_over", {"times": 0})
                self.status.update(step=event["step"] + 1, epoch=event["epoch"])
                self.status["passed_over"] = {"times": before["times"] + 1, "why": event["why"], "t": t}
            case "view_formed":
                self._formed(event)
            case "loaded":
                self.status.setdefault("since", event["step"])
            case "peer_lost":
                if self._lost_t is None:
                    self._lost_t, self._stood_still_t = t, self._before_t
            case "fault_detected":
                self._faults.append(event)
            case "hang":
                self._stuck_s = max(self._stuck_s, event.get("stuck_s") or 0.0)
            case "saved":
                self.status["saved"] = {"step": event["step"], "t": t}
                self.status.pop("save_failed", None)
            case "save_failed":
                self.status["save_failed"] = {"step": event["step"], "t": t}
            case "save_interval":
                self.status["save_interval"] = event["reason"]
            case "finished":
                self._finished(event)
        if event["event"] in _MILESTONES:
            self._before_t, self._stepping = t, event["event"] == "step_applied"

    def _stepped(self, event: Event, t: float) -> None:
        took_s = max(0.0, t - self._before_t)
        self._useful_s += max(0.0, took_s - event.get(SAVE, 0.0))
        if self._stepping:
            self._step_s = took_s if self._step_s is None else _MEMORY * self._step_s + (1 - _MEMORY) * took_s
        self.status.update(step=event["step"] + 1, epoch=event["epoch"])
        if self._change:
            self._changed(event, t)
        if (
            self._say is not None
            and event.get("rank") == 0
            and t - (self._said_t or self._begun_t or t) >= self._say_every_s
        ):
            self._said_t = t
            self._say(self._progress(event))
        if self._show is None or event.get("rank") != 0 or t - self._shown_t < self._every_s:
            return
        self._shown_t = t
        count = event["count"]
        if "values" in event and count:
            self.status["value"] = _value(event)
        if self._step_s:
            self.status.update(step_s=self._step_s, count_per_s=count / self._step_s)
        self._give(t)

    def _give(self, t: float) -> None:
        assert self._show is not None
        self._show({**self.status, "t": t, "goodput": self._goodput(t)})

    def _progress(self, event: Event) -> str:
        done, total = event["step"] + 1, self.status["total_steps"]
        line = f"step {done:,} of {total:,}"
        if (value := _value(event)) is not None:
            line += f", {value[0]} {'not finite' if value[1] is None else words.number(value[1])}"
        if "world_size" in self.status:
            line += f", {words.workers(self.status['world_size'], of_a_replica=self._of_a_replica)}"
        if self._step_s:
            line += f", {words.seconds(self._step_s)} a step, {words.seconds((total - done) * self._step_s)} left"
        if (fault := self.status.get("fault")) is not None:
            ago = words.seconds(float(event["t"]) - fault["t"])
            line += f"; last fault {ago} ago" + (f": {fault['why']}" if fault["why"] else "")
        return line

    def _formed(self, event: Event) -> None:
        workers, before = list(event["workers"]), self._workers
        world_size = len(workers)
        self._workers = workers
        self.status["world_size"] = world_size
        self.status["generation"] = event.get("generation", 0)
        self._of_a_replica = size = event.get("replica_size", 1)
        if size > 1:
            self.status["of_a_replica"] = size
        self.status["balance"] = self._shares / (world_size * -(-self._shares // world_size))
        if before is not None:
            gone = set(before) - set(workers)
            lost = gone - set(event.get("not_lost", ()))
            self._lost_replicas += [at // size for at, worker in enumerate(before) if worker in lost and size > 1]
            self._change = True
            self._joined += len(set(workers) - set(before))
            self._lost += len(lost)
            self._left += len(gone) - len(lost)

    def _changed(self, event: Event, t: float) -> None:
        """Tell of changes of the view, at the first step after them."""
        joined, left, lost = self._joined, self._left, self._lost
        self._joined = self._left = self._lost = 0
        replicas, self._lost_replicas = self._lost_replicas, []
        self._change = False
        faults, self._faults = self._faults, []
        lost_t, self._lost_t = self._lost_t, None
        if lost_t is None:  # nothing failed: they left
            left, lost = left + lost, 0
        on = words.workers(self.status["world_size"], of_a_replica=self._of_a_replica)
        line = f"step {event['step']}: {on}"
        if lost_t is not None:
            began_t = self._began_t(lost_t, [fault.get("died_t") for fault in faults])
            causes = sorted({words.short_cause(fault["cause"]) for fault in faults} - {words.WITH_ITS_REPLICA})
            cost_s, unnoticed_s = max(0.0, t - began_t), max(0.0, lost_t - began_t)
            self.status["lost"] += lost
            why = ", ".join(causes)[:_CAUSE_MAX]
            kinds = ", ".join(sorted({cause.partition(":")[0] for cause in causes}))  # the agent has shown the rest
            self.status["fault"] = {"t": t, "why": why, "cost_s": cost_s, "unnoticed_s": unnoticed_s}
            whom = words.replicas_by_number(replicas) if replicas else str(lost)
            what = f"the loss of {whom}" if lost else "a collective failed"
            line += f", {words.seconds(cost_s)} after {what}" + (f" ({kinds})" if kinds else "")
            line += f", {words.seconds(unnoticed_s)} until it was noticed" if unnoticed_s > 0.5 * cost_s else ""
        line += f", {left} left" if left else ""
        line += f", {joined} joined" if joined else ""
        if self._say is not None:
            self._say(f"{line}; goodput {words.percent(self._goodput(t))}")

    def _began_t(self, lost_t: float, died_t: Sequence[float | None]) -> float:
        """Return when the fault began that was noticed at lost_t; died_t: as agents saw it, by their hosts' clocks.

        One that no agent saw, and one by a clock that is wrong, began when this worker last did something: all workers
        of a view take part in a step.
        """
        seen = [t for t in died_t if t is not None]
        stuck_s, self._stuck_s = self._stuck_s, 0.0
        if len(seen) < max(len(died_t), 1):
            return self._stood_still_t
        return min(max(min(lost_t, *seen) - stuck_s, self._stood_still_t), lost_t)

    def _finished(self, event: Event) -> None:
        if self._show is not None and event.get("rank") == 0 and "step" in self.status:
            self._give(float(event["t"]))
        if self._say is not None and self._begun_t is not None and self.status["lost"]:
            t = float(event["t"])
            lost = f"{self.status['lost']} lost{since(self.status) or ' on the way'}"
            goodput = f"goodput {words.percent(self._goodput(t))}"
            self._say(f"finished: {event['step']} steps, {lost}, {goodput}; `elastic report` tells more")

    def _goodput(self, t: float) -> float:
        """Return the share of this worker's time, since it began, that went into steps and the script's own code."""
        elapsed_s = t - (self._begun_t or t)
        return min(1.0, self._useful_s / elapsed_s) if elapsed_s > 0 else 1.0


def since(status: Status) -> str:
    """Return what losses are counted from, where that is not the run's beginning.

    A launch counts its own, and a worker that joined those since then; `elastic report` counts all.
    """
    return f" since step {status['since']:,}" if status.get("since") else ""


def _value(event: Event) -> list[Any] | None:
    """Return name and value of the loss, or the first of what was summed, per example."""
    values, count = event.get("values"), event["count"]
    if not values or not count:
        return None
    name = "loss" if "loss" in values else next(iter(values))
    return [name, _finite(float(values[name]) / count)]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
