"""What does a worker hold of its machine, and has that grown when it ends? Descriptors, sockets and threads. Linux.

    in the worker  a look at /proc/self after the 1st, 2nd, 4th, 8th … step of each view, and at the run's end
    afterwards     of each worker that came to the end: its last view against the first one of as many workers

A survivor goes from view to view, and what a view forgets to give back would grow with each loss. What it may keep is
known: gloo holds a torn collective until its own deadline, a coordinator gets a writer process, a client of object
storage its connections; and what the script itself comes to hold shows in the undisturbed run.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Collection, Mapping, Sequence
from operator import itemgetter
from typing import Any

from elastic.drill.judge.grouping import by_fact, grouped
from elastic.drill.judge.surviving_steps import ViewKey, view_key
from elastic.drill.judge.verdict import Violation
from elastic.drill.machine.processes import writer_processes
from elastic.events.event import Event
from elastic_checkpoint import linux

# Where a worker learns of a loss by the end of a connection, gloo may hold what was in flight, and its whole group with
# it: two threads of its own and the device's, where it listens, and three descriptors more (seen once in some six kills
# in a backward pass, on a busy machine).
GIVEN_UP = ("a peer hung up", "a peer was lost while the group was formed")
OF_A_GROUP = 5
OF_A_WRITER = {"descriptors": 4, "sockets": 1, "threads": 1}
# Of one in a replica of several, who save together: their group of gloo's, and connections for what they agree on, too
# (2 workers, measured on 2026-11-30: 7, 6 and 11 on the one that leads them, without its heartbeat).
OF_A_REPLICA_S_WRITER = {"descriptors": 11, "sockets": 7, "threads": 6}
# Of a worker that has become coordinator: its heartbeat, and tqdm's monitor where it draws a trainer's bar now.
OF_A_CLAIM = {"descriptors": 0, "sockets": 0, "threads": 2}
OF_A_SHARE = {"descriptors": 1, "sockets": 0, "threads": 0}  # its stream's file, which is open from read to read
OF_A_STORE = {"descriptors": 16, "sockets": 12, "threads": 8}  # a pool of ten connections, and who looks up names
KINDS = ("sockets", "threads", "descriptors")
_SHARED = ("/dev/shm/", "/memfd:")  # batches from loader processes come and go; what stays is found elsewhere
_SETTLED_S, _LOOK_S = 5.0, 0.05


class Holdings:
    """The looks of one worker at what it holds itself. in_replica: it saves with others of its replica, if it does."""

    def __init__(self, *, in_replica: bool = False) -> None:
        self._of_a_writer = OF_A_REPLICA_S_WRITER if in_replica else OF_A_WRITER
        self._generation: int | None = None
        self._steps = 0
        self._looks: list[Event] = []
        self._given_up = 0

    def hear(self, event: Event) -> None:
        """Count, as an EventLog's listener, the collectives that this worker has given up."""
        self._given_up += collectives_given_up([event])

    def after_step(self, *, generation: int, world_size: int, rank: int) -> dict[str, int] | None:
        """Look at what this worker holds, and return it to be recorded; None: it is not time for a look."""
        if generation != self._generation:
            self._generation, self._steps = generation, 0
        self._steps += 1
        if self._steps & (self._steps - 1):
            return None
        found = here()
        self._looks.append({"generation": generation, "world_size": world_size, "rank": rank, **found})
        return found

    def at_the_end(self, *, generation: int, world_size: int, rank: int) -> dict[str, int]:
        """Wait until the group of the view before has ended, in the background; return what this worker holds."""
        deadline = time.monotonic() + _SETTLED_S
        kept = OF_A_GROUP * self._given_up
        first = _comparable(self._looks, {"generation": generation, "world_size": world_size})
        gc.collect()
        while True:
            found = here()
            now = {**found, "rank": rank}
            more = [
                kind
                for kind in KINDS
                if first and min(_more(kind, look, now, self._of_a_writer) for look in first) > kept
            ]
            if not more or time.monotonic() > deadline:
                return found
            time.sleep(_LOOK_S)


def here() -> dict[str, int]:
    """Return how many descriptors, sockets, threads and writer processes this process has now."""
    links = [link for link in linux.descriptors().values() if not link.startswith(_SHARED)]
    sockets, writers = sum(link.startswith("socket:") for link in links), len(writer_processes())
    return {"descriptors": len(links), "sockets": sockets, "threads": linux.thread_count(), "writers": writers}


def collectives_given_up(events: Sequence[Event], misled: Collection[ViewKey] = ()) -> int:
    """Count the losses that may have left a collective in flight, each with what gloo keeps of it."""
    lost = [event for event in events if event["event"] == "peer_lost"]
    return sum(view_key(one) in misled or any(of in one["error"] for of in GIVEN_UP) for one in lost)


def leaks(
    events: Sequence[Event],
    baseline: Sequence[Event] = (),
    *,
    store: bool = False,
    misled: Collection[ViewKey] = (),
) -> list[Violation]:
    """Return a violation, with the looks that show it, where a worker held more at the end than it may.

    baseline  of the undisturbed run: what the script comes to hold by itself
    store     the run lives in an object store
    misled    views in which a worker was misled: a collective that others were not in is given up, too
    """
    by_itself = dict.fromkeys(KINDS, 0)
    formed = [event for event in events if event["event"] == "view_formed"]
    shares = {(e["worker"], e["generation"]): int(e["shares"][1] - e["shares"][0]) for e in formed}

    def of_streams(kind: str, before: Event, after: Event) -> int:
        """Return how many more the worker may hold for shares that it has got since."""
        now, then = (shares.get((look["worker"], look["generation"]), 0) for look in (after, before))
        return OF_A_SHARE[kind] * max(0, now - then)

    for looks in _looks(baseline).values():
        by_itself = {kind: max(more, _more(kind, looks[0], looks[-1], OF_A_WRITER)) for kind, more in by_itself.items()}
    found = []
    for worker, looks in _looks(events).items():
        last = looks[-1]
        first = _comparable(looks, last)
        if not last["last"] or not first:
            continue
        own = [event for event in events if event["worker"] == worker]
        kept = OF_A_GROUP * collectives_given_up(own, misled)
        of_a_writer = OF_A_REPLICA_S_WRITER if "replica" in last else OF_A_WRITER
        for kind in KINDS:
            more, before = min(
                (_more(kind, look, last, of_a_writer) - of_streams(kind, look, last), look[kind]) for look in first
            )
            if more > kept + by_itself[kind] + (OF_A_STORE[kind] if store else 0):
                what = (
                    f"worker {worker} held {last[kind]} {kind} in its last view, of {last['world_size']} workers, and "
                    f"{before} in the first one of {first[0]['world_size']}; {kept + by_itself[kind]} are accounted for"
                )
                found.append(Violation("left", f"left behind: {what}", (first[0], last)))
    return found


def _more(kind: str, before: Mapping[str, Any], after: Mapping[str, Any], of_a_writer: Mapping[str, int]) -> int:
    """Return how many more of a kind are held than before, but for what a coordinator has."""
    of_writers = of_a_writer[kind] * max(0, after["writers"] - before["writers"])
    of_a_claim = OF_A_CLAIM[kind] if after.get("rank") == 0 and before.get("rank") != 0 else 0
    return int(after[kind] - before[kind] - of_writers - of_a_claim)


def _looks(events: Sequence[Event]) -> dict[str, list[Event]]:
    return by_fact([event for event in events if event["event"] == "held"], "worker")


def _comparable(looks: Sequence[Event], last: Event) -> list[Event]:
    """Return the looks of the first earlier view of as many workers, else of more: there is a connection to each.

    A view of one step does not count: a peer that dies meanwhile takes its connection with it before the look.
    """
    other = [look for look in looks if look["generation"] != last["generation"]]
    earlier = grouped((look for look in other if look["world_size"] >= last["world_size"]), itemgetter("generation"))
    long = [view for _, view in sorted(earlier.items()) if len(view) > 1]
    equal = [view for view in long if view[0]["world_size"] == last["world_size"]]
    return next(iter([*equal, *long]), [])
