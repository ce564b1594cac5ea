"""Which views did a run go through, and whom did it lose on the way? Pure: its workers' events in, views out.

A launch numbers its views from the first, and the number only rises while it lives. Under torchrun every launch has
one view.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from elastic.events.event import Event


@dataclass(frozen=True)
class ViewSeen:
    """A view that at least one of its workers formed.

    launch  counts the launches of the run
    lost    those of the view before, in this launch, that neither are in this one nor had parted in order, nor wait for
            the state that they have not received
    record  the first worker's, of forming it
    """

    launch: int
    generation: int
    workers: tuple[str, ...]
    lost: tuple[str, ...]
    record: Event

    @property
    def replica_size(self) -> int:
        """Return how many workers are a replica."""
        return int(self.record.get("replica_size", 1))


def views(events: Iterable[Event]) -> list[ViewSeen]:
    """Return the views that a run went through, in order."""
    formed: list[Event] = []
    parted: set[str] = set()
    holds_from: dict[str, int] = {}
    last_in: dict[str, int] = {}
    for event in events:
        worker, generation = event["worker"], event.get("generation") or 0
        if event["event"] == "view_formed":
            formed.append(event)
            last_in[worker] = generation
        elif event["event"] == "loaded":
            holds_from.setdefault(worker, generation)
        elif event["event"] in ("left", "finished"):
            parted.add(worker)
    seen: list[ViewSeen] = []
    for record in formed:
        generation, workers = record.get("generation") or 0, tuple(record["workers"])
        if any((view.generation, view.workers) == (generation, workers) for view in seen[-_RECENT:]):
            continue
        before = seen[-1] if seen and generation > seen[-1].generation else None
        launch = seen[-1].launch + (before is None) if seen else 0
        gone = [worker for worker in before.workers if worker not in workers] if before is not None else []
        # Lost is who had not left in order or finished, unless it held no state yet and came again later: who has not
        # received it all when a view breaks waits for the next one as a newcomer.
        lost = tuple(
            worker
            for worker in gone
            if worker not in parted
            and worker not in record.get("not_lost", ())
            and (holds_from.get(worker, generation) < generation or last_in.get(worker, 0) < generation)
        )
        seen.append(ViewSeen(launch, generation, workers, lost, record))
    return seen


_RECENT = 64  # views; a worker reports one no later than that
