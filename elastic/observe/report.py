"""What became of a run, told from its events. Pure: events in, facts out; `elastic report` prints them.

Facts are counted as the workers reported them. Whether the run kept its promises is the judge's to say
(elastic/drill/judge.py), which wants to see what was really read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from elastic.observe.events import Event
from elastic.observe.views import views


@dataclass(frozen=True, kw_only=True)
class Report:
    """
    state         of the newest claim's workers: "finished", "left" (in order, resumable), or "unfinished"
    steps         applied by them, with what they went on from; a worker that lost its claim no longer counts
    redone        steps that had to be done again, as often as they were
    world_sizes   of the views, in order
    claims        how often the run was started or restarted
    peers_lost    workers that were lost from one view to the next; where a loss restarts all, such restarts
    save_stall_seconds  that training stood still for saves
    accepted      identity fields that were allowed to differ: the bits of the result may, too
    """

    state: str
    steps: int
    redone: int
    epoch: int
    world_sizes: tuple[int, ...]
    claims: int
    peers_lost: int
    notices: tuple[str, ...]
    saves: int
    saved_bytes: int
    save_stall_seconds: float
    save_failures: int
    accepted: tuple[str, ...]
    seconds: float
    weights_sha256: str | None

    def facts(self) -> dict[str, Any]:
        return asdict(self)


def report(events: Sequence[Event]) -> Report:
    """The report on all launches of a run together. Raises ValueError if there are no events."""
    if not events:
        raise ValueError("no events")
    loaded = [event for event in events if event["event"] == "loaded"]
    applied = [event for event in events if event["event"] == "step_applied" and event.get("rank") == 0]
    saved = [event for event in events if event["event"] == "saved"]
    seen = views(events)
    restarts = {event.get("claim") for event in events if event["event"] == "peer_lost" and not event.get("generation")}
    newest = max((event.get("claim") or 0 for event in events), default=0)
    of_newest = [event for event in events if (event.get("claim") or 0) == newest]
    ends = [event for event in of_newest if event["event"] in ("finished", "left")]
    finished = [event for event in ends if event["event"] == "finished"]
    last = next((event for event in reversed(applied) if event.get("claim") == newest), None)
    begun = next((event["step"] for event in of_newest if event["event"] == "loaded"), 0)
    return Report(
        state=ends[-1]["event"] if ends else "unfinished",
        steps=last["step"] + 1 if last else begun,
        redone=_redone(event for event in events if event["event"] == "step_applied"),
        epoch=last["epoch"] if last else next((event["epoch"] for event in of_newest if "epoch" in event), 0),
        world_sizes=tuple(len(view.workers) for view in seen),
        claims=sum(event["event"] == "claimed" for event in events),
        peers_lost=sum(len(view.lost) for view in seen) + len(restarts),
        notices=tuple(event["signal"] for event in events if event["event"] == "notice" and event["signal"]),
        saves=len(saved),
        saved_bytes=sum(event["bytes"] for event in saved),
        save_stall_seconds=sum(event["stall"] if "stall" in event else event["seconds"] for event in saved),
        save_failures=sum(event["event"] == "save_failed" for event in events),
        accepted=tuple(sorted({name for event in loaded for name in event.get("accepted", ())})),
        seconds=events[-1]["t"] - events[0]["t"],
        weights_sha256=finished[-1]["digest"] if finished else None,
    )


def _redone(applied: Iterable[Event]) -> int:
    """A step comes round again in a later view (its `attempt` says how often, unless its appliers died with it), or
    under a later claim that went on from before it."""
    places: dict[tuple[int, int], set[int]] = defaultdict(set)
    attempts: dict[tuple[int, int], int] = defaultdict(int)
    for event in applied:
        of_claim = event["step"], event.get("claim") or 0
        places[of_claim].add(event.get("generation") or 0)
        attempts[of_claim] = max(attempts[of_claim], event.get("attempt", 0))
    begun = sum(1 + max(len(places[of_claim]) - 1, attempts[of_claim]) for of_claim in places)
    return begun - len({step for step, _ in places})
