"""What became of a run. Pure: events in, facts out; `elastic report` prints them.

Facts are counted as the workers reported them. Whether the run kept its promises is the judge's to say
(elastic/drill/judge/invariants.py), which wants to see what was really read. Totals include what was folded
(compaction.py).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from elastic.events.event import Event
from elastic.report.completion import Completion, completion
from elastic.report.curves import step_seconds, values_by_step
from elastic.report.ledger import CountedSteps, Ledger, ledger
from elastic.report.left_out import LeftOut, PassedOver, left_out, passed_over
from elastic.report.view_changes import ViewChange, view_changes
from elastic.report.views import views

SCHEMA = 1
"""Of Report.facts(): rises when a key changes its meaning or goes."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Tells what a worker ended with, or a save; `times` counts the records that say the same."""

    what: str
    step: int | None
    times: int


@dataclass(frozen=True, kw_only=True)
class Report:
    """Holds what became of a run.

    steps         applied by them, with what they went on from; a worker that lost its claim no longer counts, nor do
                  steps that were passed over
    not_finite    of the newest state that was saved, or of the newest launch the first step; None: nothing
    passed_over   in order
    left_out      likewise, of the steps that count
    redone        steps that had to be done again, as often as they were
    world_sizes   of the views, in order
    replicas      that these are, each of one worker or of several
    claims        how often the run was started or restarted
    peers_lost    workers that were lost from one view to the next; where a loss restarts all, such restarts
    agents_lost   workers whose agent was gone without a word
    counted       what the steps that count have counted: examples, or tokens; of folded steps, all
    save_stall_seconds  that training stood still for saves
    hints         that nodes may be taken soon, of each word one
    cut_short     what workers were at whose machines went before they came to a boundary
    accepted      identity fields that were allowed to differ: the bits of the result may, too
    begun_t       unix seconds, of the first worker: what the times since then count from
    last_t        unix seconds, of the last record
    last_values   name -> global sum of the last step, divided by its count; None: not finite
    step_seconds, step_seconds_p99   None: unknown
    folded_steps  records of steps that are only known as sums
    forgotten     some records of other kinds are known no more than that either
    """

    state: Completion
    not_finite: str | None
    steps: int
    redone: int
    epoch: int
    world_sizes: tuple[int, ...]
    replicas: tuple[int, ...]
    claims: int
    peers_lost: int
    agents_lost: int
    notices: tuple[str, ...]
    hints: tuple[str, ...]
    cut_short: tuple[str, ...]
    saves: int
    saved_bytes: int
    save_stall_seconds: float
    save_failures: int
    accepted: tuple[str, ...]
    seconds: float
    begun_t: float
    last_t: float
    weights_sha256: str | None
    counted: int
    last_values: dict[str, float | None]
    step_seconds: float | None
    step_seconds_p99: float | None
    view_changes: tuple[ViewChange, ...]
    failures: tuple[Failure, ...]
    passed_over: tuple[PassedOver, ...]
    left_out: tuple[LeftOut, ...]
    ledger: Ledger
    folded_steps: int
    forgotten: bool

    def facts(self) -> dict[str, Any]:
        """Return the report as JSON values, under keys that stay."""
        facts = {
            name: value
            for name, value in vars(self).items()
            if name not in ("ledger", "view_changes", "failures", "passed_over", "left_out")
        }
        accounts = self.ledger.workers.values()
        view_changes = [{**asdict(change), "cost_s": change.cost_s} for change in self.view_changes]
        return {
            "schema": SCHEMA,
            **facts,
            "goodput": self.ledger.goodput,
            "computed": self.ledger.computed,
            "ettr": self.ledger.goodput,  # effective training time ratio, as papers call it
            "badput": self.ledger.badput,
            "worker_seconds": self.ledger.whole,
            "ledger": self.ledger.parts,
            "workers": {a.worker: {"begin": a.begin_s, "end": a.end_s, "died": a.died, **a.parts} for a in accounts},
            "view_changes": view_changes,
            "turns": view_changes,  # as they were called: keys are stable
            "failures": [asdict(failure) for failure in self.failures],
            "passed_over": [asdict(one) for one in self.passed_over],
            "left_out": [asdict(one) for one in self.left_out],
        }


def report(events: Sequence[Event]) -> Report:
    """Return the report on all launches of a run together; raise ValueError if there are no events."""
    if not events:
        raise ValueError("no events")
    of_kind: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        of_kind[event["event"]].append(event)
    folded, saved = of_kind["folded"], of_kind["saved"]
    seen = views(events)
    counting = CountedSteps(events)
    restarts = {event.get("claim") for event in of_kind["peer_lost"] if not event.get("generation")}
    newest = max((event.get("claim") or 0 for event in events), default=0)
    finished = [event for event in of_kind["finished"] if (event.get("claim") or 0) == newest]
    steps, epoch = _where(of_kind, newest)
    took = step_seconds(of_kind["step_applied"])
    spent = ledger(events, counting)
    return Report(
        state=completion(events),
        not_finite=_not_finite(saved, [e for e in of_kind["not_finite"] if (e.get("claim") or 0) == newest]),
        steps=steps - len(counting.passed_over),
        passed_over=passed_over(counting),
        left_out=left_out(of_kind["example_left_out"], counting),
        redone=_redone([*of_kind["step_applied"], *of_kind["passed_over"]], of_kind["peer_lost"])
        + _redone_and_folded(folded, counting),
        epoch=epoch,
        world_sizes=tuple(len(view.workers) for view in seen),
        replicas=tuple(len(view.workers) // view.replica_size for view in seen),
        claims=len(of_kind["claimed"]),
        peers_lost=sum(len(view.lost) for view in seen) + len(restarts),
        agents_lost=len({event["worker"] for event in of_kind["agent_lost"]}),
        notices=tuple(event["signal"] for event in of_kind["notice"] if event["signal"]),
        hints=tuple(sorted({event["why"] for event in of_kind["hint"]})),
        cut_short=tuple(f"{one['at']}, {one['step']} steps applied: {one['why']}" for one in of_kind["cut_short"]),
        saves=len(saved) + sum(event["records"].get("saved", 0) for event in folded),
        saved_bytes=sum(event["bytes"] for event in saved) + sum(event["saved_bytes"] for event in folded),
        save_stall_seconds=math.fsum(event["stall"] if "stall" in event else event["seconds"] for event in saved)
        + math.fsum(event["stall_s"] for event in folded),
        save_failures=len(of_kind["save_failed"]),
        accepted=tuple(sorted({name for event in of_kind["loaded"] for name in event.get("accepted", ())})),
        seconds=events[-1]["t"] - events[0]["t"],
        begun_t=min(account.begin_s for account in spent.workers.values()),
        last_t=events[-1]["t"],
        weights_sha256=finished[-1]["digest"] if finished else None,
        counted=_counted(of_kind, counting),
        last_values=_last_values(events, counting),
        step_seconds=took[0] if took else None,
        step_seconds_p99=took[1] if took else None,
        view_changes=tuple(view_changes(events)),
        failures=tuple(_failures(of_kind)),
        ledger=spent,
        folded_steps=sum(event["steps"] for event in folded),
        forgotten=any(event["unknown"] for event in folded),
    )


def _not_finite(saved: Sequence[Event], told: Sequence[Event]) -> str | None:
    """Return in words which weights or step are not finite, see Report.not_finite."""
    if saved and "unfit" in saved[-1]:
        return f"the weights, {saved[-1]['unfit']}"
    return f"step {told[0]['step']}: {told[0]['why']}" if told else None


def _where(of_kind: dict[str, list[Event]], newest: int) -> tuple[int, int]:
    """Return (steps applied, epoch) of those who went on under the newest claim, in its newest view."""
    loaded = next((e for e in of_kind["loaded"] if (e.get("claim") or 0) == newest), {"step": 0, "epoch": 0})
    done = [*of_kind["step_applied"], *of_kind["passed_over"]]
    applied = [e for e in done if e.get("claim") == newest]
    if applied:
        generation = max(e.get("generation") or 0 for e in applied)
        in_view = [e for e in applied if (e.get("generation") or 0) == generation]
        # others tell it where the first worker's records are not there yet, as on object storage
        of_first = [e for e in in_view if e.get("rank") == 0]
        last = max(of_first or in_view, key=lambda event: float(event["t"]))
        return last["step"] + 1, last["epoch"]
    folded = [e["last"] + 1 for e in of_kind["folded"] if e["steps"] and (e.get("claim") or 0) == newest]
    return max([loaded["step"], *folded]), loaded["epoch"]


def _redone(applied: Iterable[Event], lost: Iterable[Event]) -> int:
    """Return how many steps were done again."""
    generations: dict[tuple[int, int], set[int]] = defaultdict(set)
    attempts: dict[tuple[int, int], int] = defaultdict(int)
    for event in applied:
        of_claim = event["step"], event.get("claim") or 0
        generations[of_claim].add(event.get("generation") or 0)
        attempts[of_claim] = max(attempts[of_claim], event.get("attempt", 0))
    # where a loss restarts all, the step in flight is done again, too
    in_flight = {(event["step"], event.get("claim") or 0) for event in lost if not event.get("generation")}
    done = {step for step, _ in generations}
    given_up = sum(1 for of_claim in in_flight - generations.keys() if of_claim[0] in done)
    # A step comes round again in a later view (its `attempt` says how often, unless its appliers died with it), or
    # under a later claim that went on from before it.
    begun = sum(1 + max(len(generations[of_claim]) - 1, attempts[of_claim]) for of_claim in generations)
    return begun + given_up - len(done)


def _redone_and_folded(folded: Iterable[Event], counting: CountedSteps) -> int:
    """Return the same of folded records: of each view the greatest number that any of its workers knows."""
    of_worker: dict[tuple[int, int, str], int] = defaultdict(int)
    most: dict[tuple[int, int], int] = defaultdict(int)
    for event in folded:
        claim, generation = event.get("claim") or 0, event.get("generation") or 0
        in_vain = round(event["steps"] * (1.0 - counting.share_that_counts(event)))
        of_worker[claim, generation, event["worker"]] += event["redone"] + in_vain
        most[claim, generation] = max(most[claim, generation], of_worker[claim, generation, event["worker"]])
    return sum(most.values())


def _counted(of_kind: dict[str, list[Event]], counting: CountedSteps) -> int:
    """Return what was counted, each step once: as any worker tells it, else its share of rank 0's folded records."""
    counts: dict[int, int] = {e["step"]: e.get("count", 0) for e in of_kind["step_applied"] if counting.counts(e)}
    total = float(sum(counts.values()))
    known = set(counts)
    for event in of_kind["folded"]:
        if event["steps"] and event.get("rank") == 0:
            kept = round((event["last"] + 1 - event["first"]) * counting.share_that_counts(event))
            new = set(range(event["first"], event["first"] + kept)) - known
            known |= new
            total += event["count"] * len(new) / (event["last"] + 1 - event["first"])
    return round(total)


def _last_values(events: Sequence[Event], counting: CountedSteps) -> dict[str, float | None]:
    """Return name -> last value of each curve; None: not finite."""
    curves = values_by_step((event for event in events if "values" in event or event["event"] == "folded"), counting)
    last = {name: curve[max(curve)] for name, curve in curves.items()}
    return {name: value if math.isfinite(value) else None for name, value in last.items()}


def _failures(of_kind: dict[str, list[Event]]) -> Iterable[Failure]:
    """Return what workers, saves and the run ended with, each once."""
    times: dict[tuple[str, int | None], int] = defaultdict(int)
    for event in of_kind["error"]:
        at = f" (after step {event['step'] - 1})" if event.get("step") else ""
        times[event["error"] + at, event.get("step")] += 1
    for event in of_kind["save_failed"]:
        times[f"the save of step {event['step']} failed: {event['error']}", event["step"]] += 1
    ends = {"repeated_failure": "the run ended, for one failure came again and again", "ended": "the run ended"}
    for kind, said in ends.items():
        for why in sorted({event["why"] for event in of_kind[kind]} - {""}):  # none: a run that was over
            times[f"{said}: {why}", None] += 1
    return [Failure(what=what, step=step, times=count) for (what, step), count in times.items()]
