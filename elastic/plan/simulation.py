"""What becomes of a run on a fleet that comes and goes, under a policy? A discrete-event model. Pure.

    steps, until the fleet changes or a save is due  ->  the change costs what the policy says  ->  steps …

Every second of the trace is of one part, and the parts sum to its length:

    useful      computing steps that last
    lost        computing steps that did not: those in flight, those since the save that a restart went back to
    saving      training stood still for a save
    recovering  the survivors of a loss, or those that somebody joins, do not compute yet
    starting    processes start, read a checkpoint, and nobody trains
    waiting     there are fewer nodes than the run needs

Beside the time there is the fleet: `ideal` is how many steps it could have done had no change cost anything, and
goodput is steps that last over these.

It leaves out what policies have in common: how a step's time varies, and what the storage does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil, floor, inf

from elastic.plan.cadence import AT_RISK_MAX_S, Losses, daly_s, decide
from elastic.plan.trace import Trace

PARTS = ("useful", "lost", "saving", "recovering", "starting", "waiting")
_EPSILON = 1e-9
StepTime = Callable[[int], float]
"""Nodes -> seconds of a step."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """A way of running: what it does when the fleet changes, and how long that takes.

    survives    those who are left go on with the state that they hold; else everything goes back to the newest save
    loss_s      survivors: from a loss to the begin of the next step
    join_s      survivors: what it costs them that somebody joins
    joins       whether those who come are taken in at once; else everything starts again for them after the next save
    start_s     from the begin of a start to its first step, a checkpoint's reading included
    arrive_s    from a node's coming to its being ready to take part, while others train
    stall_s     training stands still for one save
    durable_s   from a save's begin to its being what a restart goes back to
    interval_s  of training between two saves; None: the best one (`auto`: as the run finds it out, else by hindsight)
    at_risk_max_s, save_costs_s  of `auto`, see cadence.decide
    notice_s    so long before it goes a node is noticed; it then leaves after its step, and nothing is redone. What is
                noticed to all is saved, if a save is that quick
    nodes_min   the fewest that train
    """

    name: str
    survives: bool
    loss_s: float = 0.0
    join_s: float = 0.0
    joins: bool = True
    start_s: float
    arrive_s: float = 0.0
    stall_s: float
    durable_s: float
    interval_s: float | None = None
    auto: bool = False
    at_risk_max_s: float = AT_RISK_MAX_S
    save_costs_s: float = 0.0
    notice_s: float = 0.0
    nodes_min: int = 1


@dataclass(frozen=True)
class Outcome:
    """The end of a simulation: what became of a run on a trace, under one policy.

    parts      part -> seconds; see above
    steps      that last
    ideal      that the fleet could have done
    node_s     seconds of nodes that were there
    restarts   how often everything started again from a save
    intervals  the first and the last interval between saves, in seconds of training
    """

    policy: str
    parts: Mapping[str, float]
    steps: int
    ideal: float
    node_s: float
    restarts: int
    saves: int
    intervals: tuple[float, float]

    @property
    def goodput(self) -> float:
        return self.steps / self.ideal if self.ideal else 0.0


def simulate(trace: Trace, policy: Policy, step_s: StepTime) -> Outcome:
    """Simulate the policy on a trace that is already limited to the nodes that the run has room for.

    step_s  seconds of a step by the number of nodes, from policy.nodes_min to the trace's most
    """
    return _Run(trace, policy, step_s).outcome()


@dataclass(frozen=True)
class _SavePoint:
    """A save: what a restart would go back to from `durable_t` on."""

    durable_t: float
    steps: int
    computed_s: float


@dataclass
class _Run:
    """A run under way on a trace: where it stands, what it waits for, and what its time went into."""

    trace: Trace
    policy: Policy
    step_s: StepTime
    t: float = 0.0
    nodes: dict[str, None] = field(default_factory=dict)
    spares: dict[str, None] = field(default_factory=dict)
    running: bool = False
    overhead_s: float = 0.0
    overhead_kind: str = "starting"
    steps: int = 0
    computed_s: float = 0.0
    marks: list[_SavePoint] = field(default_factory=lambda: [_SavePoint(0.0, 0, 0.0)])
    saved_t: float = 0.0
    in_flight_s: float = 0.0
    restarts: int = 0
    saves: int = 0
    seen: Losses = field(default_factory=Losses)

    def outcome(self) -> Outcome:
        """Go through the trace, change by change, and return what became of the run."""
        self.parts = dict.fromkeys(PARTS, 0.0)
        policy, length_s = self.policy, self.trace.length_s
        # The run has a node once that can take part; `ideal` below has it from its coming.
        seen = self.trace.delayed(policy.arrive_s) if policy.arrive_s else self.trace
        self.interval_s = first_s = self._interval_s()
        for change in seen.changes:
            self._go_on_until(min(change.t_s, length_s))
            self._change(change.gone, change.come)
        self._go_on_until(length_s)
        self.parts["lost"] += self.in_flight_s
        self.parts["useful"] = self.computed_s
        ideal = sum(
            seconds / self.step_s(len(there))
            for seconds, there in self.trace.stretches()
            if len(there) >= policy.nodes_min
        )
        return Outcome(
            policy.name,
            self.parts,
            self.steps,
            ideal,
            self.trace.node_s,
            self.restarts,
            self.saves,
            (first_s, self.interval_s),
        )

    def _go_on_until(self, until_t: float) -> None:
        """Go on until then, as nobody comes or goes before."""
        while self.t < until_t - _EPSILON:
            if len(self.nodes) < self.policy.nodes_min:
                self._spend("waiting", until_t)
            elif self.overhead_s > _EPSILON:
                self.overhead_s -= self._spend(self.overhead_kind, min(until_t, self.t + self.overhead_s))
            else:
                self.overhead_s = 0.0
                self._compute(until_t)
        self.t = until_t

    def _compute(self, until_t: float) -> None:
        """Compute steps until then, or until a save is due, and make that save."""
        step_s = self.step_s(len(self.nodes))
        if not self.running:
            self.running, self.saved_t = True, self.t
        begun_t = self.t - self.in_flight_s
        finishes_t = max(self.t, begun_t + step_s)
        # The fleet changes within the step.
        if finishes_t > until_t + _EPSILON:
            self.in_flight_s += until_t - self.t
            self.t = until_t
            return
        # In steps behind the one in flight.
        due = ceil((self.saved_t + self.interval_s - finishes_t) / step_s - _EPSILON) if self.interval_s < inf else inf
        room = floor((until_t - finishes_t) / step_s + _EPSILON)
        # All in one go: up to the next save or change nothing else happens.
        count = 1 + max(0, min(due, room))
        self.steps += int(count)
        self.t = finishes_t + (count - 1) * step_s
        self.computed_s += self.t - begun_t
        self.in_flight_s = 0.0
        if due <= room:
            self._save(until_t)

    def _save(self, until_t: float) -> None:
        """Save, and take in whoever waits for that; then the interval may become another."""
        self.saves += 1
        self.marks.append(_SavePoint(self.t + self.policy.durable_s, self.steps, self.computed_s))
        self.overhead_s, self.overhead_kind = self.policy.stall_s, "saving"
        self.overhead_s -= self._spend("saving", min(until_t, self.t + self.overhead_s))
        self.saved_t = self.t + self.overhead_s
        # Of those who were not taken in at once: everything starts again with them, and loses no step behind a save.
        if self.spares:
            self._take_in()
            self.running = False
            self.overhead_s, self.overhead_kind = (
                self.overhead_s + self.policy.durable_s + self.policy.start_s,
                "starting",
            )
        self.seen = Losses(self.seen.count, self.t)
        self.interval_s = self._interval_s()

    def _change(self, gone: tuple[str, ...], come: tuple[str, ...]) -> None:
        """Take out who is gone and take in who comes, at what the policy says that it costs."""
        policy = self.policy
        lost = [node for node in gone if node in self.nodes]
        for node in gone:
            self.nodes.pop(node, None)
            self.spares.pop(node, None)
        noticed = policy.notice_s > 0
        # Nobody who is left holds the state.
        if lost and not (policy.survives and self.nodes):
            self._lose_all(saved=noticed and self.running and policy.stall_s + policy.durable_s <= policy.notice_s)
        elif lost and self.running:
            self._owe(policy.join_s if noticed else policy.loss_s, redo=not noticed)
        enough = len(self.nodes) >= policy.nodes_min
        self.spares.update(dict.fromkeys(come))
        if not self.running:
            self._take_in()
            if lost or not enough or (policy.joins and not policy.survives):
                self._start()
        elif come and policy.joins and policy.survives:
            self._take_in()
            self._owe(policy.join_s, redo=False)
        elif come and policy.joins:
            self._lose_all(saved=False)
            self._take_in()
            self._start()

    def _take_in(self) -> None:
        self.nodes.update(self.spares)
        self.spares.clear()

    def _start(self) -> None:
        begun_s = self.policy.arrive_s if self.policy.survives and self.t > 0 else 0.0  # while they arrived
        self.overhead_s, self.overhead_kind = max(0.0, self.policy.start_s - begun_s), "starting"

    def _owe(self, seconds: float, *, redo: bool) -> None:
        """Have the survivors stand still for so long. redo: the step in flight is computed again."""
        if redo:
            self.parts["lost"] += self.in_flight_s
            self.in_flight_s = 0.0
        if self.overhead_kind == "starting" and self.overhead_s > _EPSILON:
            return  # nobody trains yet, and whoever is left starts
        self.overhead_s, self.overhead_kind = max(self.overhead_s, seconds), "recovering"

    def _lose_all(self, *, saved: bool) -> None:
        """Go back to the newest save. saved: one was made in time."""
        if saved:
            self.marks = [_SavePoint(self.t, self.steps, self.computed_s)]
        back = max((mark for mark in self.marks if mark.durable_t <= self.t + _EPSILON), key=lambda mark: mark.steps)
        self.parts["lost"] += self.in_flight_s + self.computed_s - back.computed_s
        self.steps, self.computed_s, self.in_flight_s = back.steps, back.computed_s, 0.0
        self.marks = [back]
        # What had not begun to train again is no second restart.
        self.restarts += self.running
        self.seen = Losses(self.seen.count + (self.running and not saved), self.t)
        self.running = False
        self.overhead_s = 0.0

    def _spend(self, part: str, until_t: float) -> float:
        """Let the time until then pass as a part of the trace's; return how long it was."""
        spent_s = max(0.0, until_t - self.t)
        self.parts[part] += spent_s
        self.t = max(self.t, until_t)
        return spent_s

    def _interval_s(self) -> float:
        """Return the training between two saves, as the policy has it: fixed, found, or best by hindsight."""
        policy = self.policy
        if policy.interval_s is not None:
            return policy.interval_s
        if policy.auto:
            measured = self.saves > 0
            stall_s, durable_s = (policy.stall_s, policy.durable_s) if measured else (None, None)
            return decide(
                stall_s=stall_s,
                durable_s=durable_s,
                losses=self.seen,
                at_risk_max_s=policy.at_risk_max_s,
                save_costs_s=policy.save_costs_s,
            ).seconds
        return self._hindsight_s

    @cached_property
    def _hindsight_s(self) -> float:
        return hindsight_s(self.trace, self.policy)  # walks the whole trace, and is asked for after every save


def hindsight_s(trace: Trace, policy: Policy) -> float:
    """Return the interval for someone who knows how often the trace takes such a run back to its newest save.

    It is infinite where that never happens.
    """
    back = trace.full_losses
    if not policy.survives:
        # Without survivors each loss goes back to a save, and each coming that is taken in at once.
        came = sum(bool(change.come) and change.t_s > 0 for change in trace.changes) if policy.joins else 0
        back = trace.losses + came
    return daly_s(policy.stall_s, trace.length_s / back) if back else inf
