"""Which applied steps does the state that survived consist of, and which were thrown away? Pure.

A step is applied in a view: (claim, generation). Views are ordered, so a wall clock decides only which saves came
before a claim: what a superseded worker still does under an old claim stays under that claim. Loading step r from
claim f continues f's path at r and throws away what f applied from r on. Applying a step that the path already holds
(its appliers died, the survivors had not applied it) replaces it. A step is begun once in a view, whatever its workers
count as attempts: one that took the step before over from a peer, or joined, begins it for the first time. Per worker,
positions must follow each other, or a step was skipped or applied twice.

A step may be passed over instead of applied, which workers record (`passed_over`): it has its place in the path all the
same, and so have those that a rollback took back, from the save that it went to on; their examples do not count.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from math import inf

from elastic.drill.judge.grouping import by_fact, grouped
from elastic.drill.judge.verdict import Violation
from elastic.events.event import Event

ViewKey = tuple[int, int]


DONE = ("step_applied", "passed_over")
"""The events by which a worker says that a step is behind it."""


@dataclass(frozen=True)
class Application:
    """One step, applied or passed over once.

    reads     what its workers read for it, those that died before they applied it included
    left_out  likewise, what raised as they read it, and is left out
    """

    step: int
    view: ViewKey
    applied: tuple[Event, ...]
    reads: tuple[Event, ...]
    left_out: tuple[Event, ...] = ()

    @property
    def in_order(self) -> list[tuple[int, Event]]:
        """Return (index, record) of all its examples, share after share, those that were left out at their places."""
        of_share: dict[int, list[tuple[int, Event]]] = defaultdict(list)
        for read in self.reads:
            of_share[int(read["share"])] += [(index, read) for index in read["indices"]]
        for one in sorted(self.left_out, key=lambda event: int(event["at"])):
            of_share[int(one["share"])].insert(one["at"], (one["index"], one))
        return [example for _, examples in sorted(of_share.items()) for example in examples]

    @property
    def passed_from(self) -> int | None:
        """Return the first step that its rollback took back, or its own index; None: it was not passed over."""
        return next((int(event["first"]) for event in self.applied if event["event"] == "passed_over"), None)


@dataclass
class SurvivingSteps:
    """The lineage of a run: the steps that its surviving state consists of, and what was found on the way there.

    path       step -> its surviving application
    discarded  applications that were thrown away
    begun      (view, step) wherever a worker read for it or applied it
    """

    path: dict[int, Application] = field(default_factory=dict)
    discarded: list[Application] = field(default_factory=list)
    begun: set[tuple[ViewKey, int]] = field(default_factory=set)
    violations: list[Violation] = field(default_factory=list)

    @property
    def passed_over(self) -> set[int]:
        """Return the steps of the path that did not add to the state, or were taken back."""
        return _passed(self.path)


def view_key(event: Event) -> ViewKey:
    """Return the view of an event, (claim, generation); 0 for what it does not say."""
    return (event.get("claim") or 0, event.get("generation") or 0)


def trace(events: Sequence[Event], *, may_fall_back: bool = False) -> SurvivingSteps:
    """Return the lineage that a run's events tell.

    may_fall_back  checkpoints were damaged on purpose, so a load may go behind the newest save
    """
    of_kind = by_fact(events, "event")
    found = SurvivingSteps(violations=_positions(events))
    done = _done(of_kind)
    for event in (*of_kind["reads"], *done):
        found.begun.add((view_key(event), event["step"]))
    found.violations += [*_origins(of_kind, may_fall_back), *_writers(of_kind)]

    everything = _applications(done, of_kind["reads"], of_kind["example_left_out"])
    steps_at: dict[ViewKey, list[int]] = defaultdict(list)
    for view, step in sorted(everything):
        steps_at[view].append(step)
    loads = grouped(of_kind["loaded"], view_key)
    paths: dict[int, dict[int, Application]] = {}
    newest: dict[int, Application] = {}
    for view in sorted({*loads, *steps_at}):
        claim = view[0]
        path = dict(paths.get(claim, newest))
        for load in loads.get(view, [])[:1]:
            origin = load["from_claim"]
            path = {} if origin is None else path if origin == claim else _path_of(origin, paths)
            found.violations += _reach(path, load)
            path = {step: done for step, done in path.items() if step < load["step"]}
            found.violations += _record(path, load)
        for step in steps_at.get(view, []):
            if step > 0 and step - 1 not in path:
                found.violations.append(_gap(path, everything[view, step]))
            if step in path:
                path = {earlier: done for earlier, done in path.items() if earlier < step}
            path[step] = everything[view, step]
        paths[claim] = newest = path
    found.path = newest
    found.discarded = [done for key, done in everything.items() if newest.get(key[1]) is not done]
    for end in of_kind["finished"][-1:]:
        found.violations += _record(newest, end)
    return found


def _done(of_kind: Mapping[str, Sequence[Event]]) -> list[Event]:
    return [*of_kind["step_applied"], *of_kind["passed_over"]]


def _passed(path: Mapping[int, Application]) -> set[int]:
    """Return the steps of a path that were passed over, or taken back by a rollback."""
    found: set[int] = set()
    for step, done in path.items():
        if (first := done.passed_from) is not None:
            found.update(range(first, step + 1))
    return found


def _record(path: Mapping[int, Application], stated: Event) -> Iterator[Violation]:
    """Check that what a state says was passed over is what its lineage passed over."""
    says = {step for first, end in stated.get("passed_over") or () for step in range(first, end)}
    was = _passed(path)
    if says != was:
        where = "finished" if stated["event"] == "finished" else f"at step {stated['step']}"
        what = f"the state {where} says that steps {sorted(says)} were passed over, and {sorted(was)} were"
        evidence = [event for step in sorted(says ^ was) if step in path for event in path[step].applied[:1]]
        yield Violation("passed", what, (*evidence[:4], stated))


def _path_of(claim: int, paths: Mapping[int, dict[int, Application]]) -> dict[int, Application]:
    """Return the path of a claim, or of the newest one before: one taken under way may have applied nothing."""
    return paths[max(one for one in paths if one <= claim)] if any(one <= claim for one in paths) else {}


def _applications(
    applied: Iterable[Event], reads: Iterable[Event], left_out: Iterable[Event]
) -> dict[tuple[ViewKey, int], Application]:
    """Return each application of a step, by its view and step, with the reads that count for it."""

    def key(event: Event) -> tuple[ViewKey, int]:
        return view_key(event), event["step"]

    looked_at = grouped((*reads, *left_out), key)
    found = {}
    for (view, step), events in grouped(applied, key).items():
        counting = by_fact(_that_count(events, looked_at[view, step]), "event")
        reads_of, left_out_of = tuple(counting["reads"]), tuple(counting["example_left_out"])
        found[view, step] = Application(step, view, tuple(events), reads_of, left_out_of)
    return found


def _that_count(applied: list[Event], reads: list[Event]) -> list[Event]:
    """Return, of each worker, the reads of the attempt that it applied or, if it died before, of its last attempt."""
    attempt: dict[str, int] = {}
    for event in reads:
        attempt[event["worker"]] = max(event["attempt"], attempt.get(event["worker"], 0))
    attempt.update({event["worker"]: event["attempt"] for event in applied})
    return [event for event in reads if event["attempt"] == attempt[event["worker"]]]


def _reach(path: dict[int, Application], load: Event) -> list[Violation]:
    """Return a violation if a load is of a step that this path does not reach without a gap."""
    missing = sorted(set(range(load["step"])) - path.keys())
    if not missing:
        return []
    what = (
        f"claim {load['claim']} loaded step {load['step']} of claim {load['from_claim']}, which never applied {missing}"
    )
    return [Violation("lineage", what, (load,))]


def _gap(path: dict[int, Application], done: Application) -> Violation:
    """Return the violation that a step was applied to a path that lacks some before it."""
    missing = sorted(set(range(done.step)) - path.keys())
    before = path[max(path)].applied[-1:] if path else ()
    return Violation("lineage", f"step {done.step} was applied to a state without {missing}", (*before, *done.applied))


def _positions(events: Iterable[Event]) -> list[Violation]:
    """Check that each worker, after a load at step r, applies r, r + 1 and so on."""
    broken = []
    last: dict[str, tuple[int, Event]] = {}
    for event in events:
        worker = event["worker"]
        if event["event"] == "loaded":
            last[worker] = (event["step"], event)
        elif event["event"] in DONE:
            step = event["step"]
            if worker not in last:
                broken.append(Violation("position", f"{worker} applied step {step} before it loaded a state", (event,)))
            elif step != last[worker][0]:
                how = "twice" if step < last[worker][0] else f"and skipped {list(range(last[worker][0], step))}"
                broken.append(Violation("position", f"{worker} applied step {step} {how}", (last[worker][1], event)))
            last[worker] = (step + 1, event)
    return broken


def _origins(of_kind: dict[str, list[Event]], may_fall_back: bool) -> list[Violation]:
    """Check that each claim goes on from the newest state that was durable, and from no superseded writer's.

    A claim supersedes with its first save: until then what the one before it had on its way counts.
    """
    origin: dict[int, tuple[int | None, int]] = {}
    first: dict[int, Event] = {}
    for event in of_kind["claimed"]:
        source = event.get("resumed_from")
        origin[event["claim"]] = (source["claim"], source["step"]) if source else (None, 0)
        first[event["claim"]] = event
    for event in reversed(of_kind["loaded"]):  # a claim's first load decides; later ones are its own recoveries
        source = event["from_claim"] if event["from_claim"] != event["claim"] else None  # its own first commit: new
        origin[event["claim"]] = (source, event["step"])
        first[event["claim"]] = event
    under_way = _taken_under_way(of_kind)
    for claim, step in under_way.items():
        origin[claim] = max((one for one in origin if one < claim), default=None), step

    broken = []
    durable_at: dict[int, int] = {}  # claim -> the step that was saved when it was taken
    saved = {event.get("claim") for event in of_kind["saved"]}
    for before, claim in pairwise(sorted(origin)):
        source, step = origin[claim]
        idle = takewhile(lambda one: one not in saved, sorted((c for c in origin if c <= before), reverse=True))
        heads = {before, *(max((c for c in origin if c < one), default=one) for one in idle)}
        if all(step > _bounds(origin, head).get(source, -1) for head in heads):
            what = f"claim {claim} went on from step {step} of claim {source}, which claim {before} had left behind"
            broken.append(Violation("zombie", what, (first[before], first[claim])))
        durable = [e for e in of_kind["saved"] if e.get("claim") == before and e["t"] <= first[claim]["t"]]
        newest = max((e["step"] for e in durable), default=durable_at.get(before, origin[before][1]))
        durable_at[claim] = newest if claim in under_way else step
        if step < newest and not may_fall_back:
            what = f"claim {claim} went back to step {step}, though step {newest} was saved"
            broken.append(Violation("durable", what, (*durable[-1:], first[claim])))
    return broken


def _taken_under_way(of_kind: dict[str, list[Event]]) -> dict[int, int]:
    """Return the first step of each claim that was taken under way, as hosts were lost.

    The run went on there with what it had in memory, and nobody has loaded anything from storage.
    """
    read = {event["claim"] for event in of_kind["loaded"] if event["from_claim"] != event["claim"]}
    begun: dict[int, int] = {}
    for event in _done(of_kind):
        claim = event.get("claim") or 0
        begun[claim] = min(event["step"], begun.get(claim, event["step"]))
    claimed = {event["claim"]: event.get("resumed_from") for event in of_kind["claimed"]}
    taken = {claim: step for claim, step in begun.items() if claim in claimed.keys() - read}
    return {claim: step for claim, step in taken.items() if step > 0 or claimed[claim] is not None}


def _writers(of_kind: dict[str, list[Event]]) -> Iterator[Violation]:
    """Check that who lost its claim applied no more than the current step."""
    for newer in of_kind["claimed"]:
        went_on = [
            done for done in _done(of_kind) if (done.get("claim") or 0) < newer["claim"] and done["t"] > newer["t"]
        ]
        for worker, steps in by_fact(went_on, "worker").items():
            if len(steps) > 1:
                what = f"{worker} applied {len(steps)} steps after another writer took claim {newer['claim']}"
                yield Violation("writer", what, (newer, *steps[:2]))


def _bounds(origin: dict[int, tuple[int | None, int]], claim: int) -> dict[int | None, float]:
    """Return, for a claim and each of its ancestors, up to which of its steps a successor of `claim` may go on."""
    bounds: dict[int | None, float] = {claim: inf}
    at: int | None = claim
    while at in origin:
        at, reached = origin[at]
        if at in bounds:
            break
        bounds[at] = reached
    return bounds
