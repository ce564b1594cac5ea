"""Was anything taken from those who survived? Pure: what the judge asks of views that follow each other in one launch.

A worker that is in a view and in the next one survived: it is the same process, holds its state, and does again at most
the step that was in flight, and that only if somebody was lost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise

from elastic.drill.judge.grouping import by_fact
from elastic.drill.judge.verdict import Violation
from elastic.events.event import Event
from elastic.report.views import ViewSeen


def survival(
    seen: Sequence[ViewSeen],
    of_kind: Mapping[str, Sequence[Event]],
    lost_max: int | None,
    *,
    may_fall_back: bool = False,
    misled: Collection[int] = (),
) -> Iterator[Violation]:
    """Yield a violation for whatever was taken from survivors, and if more workers were lost than faults took.

    lost_max       how many workers were taken from the run against their will
    may_fall_back  checkpoints were damaged on purpose
    misled         generations in which a worker was misled: such a view may end with nobody lost
    """
    yield from _restarted(of_kind["run_started"])
    yield from _storage(seen, of_kind["loaded"])
    yield from _redone(seen, (*of_kind["reads"], *of_kind["step_applied"], *of_kind["passed_over"]), misled)
    if not may_fall_back:
        yield from _thrown_away(seen, of_kind)
    lost = [worker for view in seen for worker in view.lost]
    if lost_max is not None and len(lost) > lost_max:
        losing = tuple(view.record for view in seen if view.lost)
        yield Violation("lost", f"{len(lost)} workers were lost, and {lost_max} were taken: {', '.join(lost)}", losing)


def _restarted(started: Sequence[Event]) -> Iterator[Violation]:
    """Yield a violation for each worker that started more than once."""
    for worker, starts in by_fact(started, "worker").items():
        if len(starts) > 1:
            yield Violation("restarted", f"{worker} started {len(starts)} times", tuple(starts))


def _storage(seen: Sequence[ViewSeen], loaded: Sequence[Event]) -> Iterator[Violation]:
    """Yield a violation for each worker that took its state from storage where it or a peer had held one before."""
    loads = by_fact(loaded, "worker")
    views = {(view.generation, worker): view for view in seen for worker in view.workers}
    for worker, own in loads.items():
        for at, load in enumerate(own):
            generation = load.get("generation") or 0
            view = views.get((generation, worker))
            if "digest" not in load or view is None:  # a state without a digest came from a peer
                continue
            peers = [other for peer in view.workers if peer != worker for other in loads.get(peer, [])]
            earlier = [*own[:at], *(other for other in peers if (other.get("generation") or 0) < generation)]
            if earlier:
                what = f"{worker} took its state from storage, and {earlier[0]['worker']} held one"
                yield Violation("storage", what, (earlier[0], load))


def _redone(seen: Sequence[ViewSeen], begun: Sequence[Event], misled: Collection[int]) -> Iterator[Violation]:
    """Yield a violation where a survivor did more than the step in flight again, or did so and nobody was lost."""
    losses = {(view.launch, view.generation) for view in seen if view.lost}
    launch_of = {worker: view.launch for view in seen for worker in view.workers}
    for worker, own in by_fact(begun, "worker").items():
        first: dict[int, dict[int, Event]] = defaultdict(dict)  # generation -> step -> what began it there
        for event in own:
            at = first[event.get("generation") or 0].setdefault(event["step"], event)
            if at["attempt"] != event["attempt"]:
                what = f"{worker} began step {event['step']} twice in one view"
                yield Violation("redone", what, (at, event))
        for before, after in pairwise(sorted(first)):
            again = sorted(first[before].keys() & first[after].keys())
            evidence = tuple(first[at][step] for step in again for at in (before, after))
            if len(again) > 1:
                yield Violation("redone", f"{worker} did steps {again} again, and one was in flight", evidence)
            if (
                again
                and before not in misled
                and not any((launch_of.get(worker), at) in losses for at in range(before + 1, after + 1))
            ):
                yield Violation("redone", f"{worker} did step {again[0]} again, and nobody was lost", evidence)


def _thrown_away(seen: Sequence[ViewSeen], of_kind: Mapping[str, Sequence[Event]]) -> Iterator[Violation]:
    """Check that whoever leaves in order, last of its view, takes nothing along that storage does not have.

    The others of the view left before, or were killed by a fault: of those who ended otherwise nobody knows when.
    """
    views = {(view.generation, worker): view for view in seen for worker in view.workers}
    gone = {event["worker"]: event for event in (*of_kind["left"], *of_kind["fault"]) if event.get("fatal", True)}
    for leaving in of_kind["left"]:
        view = views.get((leaving.get("generation") or 0, leaving["worker"]))
        later = next((load for load in of_kind["loaded"] if "digest" in load and load["t"] > leaving["t"]), None)
        if view is None or later is None or later["step"] >= leaving["step"]:
            continue
        others = [gone.get(worker) for worker in view.workers if worker != leaving["worker"]]
        if all(other is not None and other["t"] < leaving["t"] for other in others):
            what = f"{leaving['worker']} left at step {leaving['step']}, nobody else held that, and the run went back"
            yield Violation("durable", f"{what} to step {later['step']}", (leaving, later))
