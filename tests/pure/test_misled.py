"""Whoever is wrong is no witness, and must be named where it can be told from the others."""

from __future__ import annotations

from typing import Any

from elastic.drill.faults import At, CorruptState, Kill
from elastic.drill.judge.misled import misled, sound_events, unnamed
from elastic.drill.judge.surviving_steps import Application, SurvivingSteps
from elastic.events.event import Event

FAULTS = (Kill(0, At(1, "applied")), CorruptState(1, At(2, "applied"), "weight"))
VIEW = (1, 1)


def event(kind: str, t: float, rank: int, **facts: Any) -> Event:
    return {
        "event": kind, "t": t, "worker": f"w{rank}", "rank": rank, "world_size": 3, "claim": 1, "generation": 1, **facts
    }  # fmt: skip


STRUCK = event("fault", 2.0, 1, index=1)


def test_from_the_fault_on_its_worker_and_what_does_not_survive_say_nothing() -> None:
    before = event("weights", 1.0, 1, step=2)
    own, kept, thrown_away = (event("weights", 3.0, rank, step=step) for rank, step in ((1, 2), (0, 2), (0, 3)))
    events = [event("fault", 0.5, 0, index=0), before, STRUCK, own, kept, thrown_away]
    known = misled(events, FAULTS)
    assert list(known) == [VIEW]
    lineage = SurvivingSteps(path={2: Application(2, VIEW, (), ()), 3: Application(3, (2, 1), (), ())})
    assert list(sound_events(events, lineage, known)) == [events[0], before, kept]


def test_an_error_of_others_names_the_worker_that_is_wrong() -> None:
    def errors(text: str, *ranks: int) -> list[Event]:
        return [STRUCK, *(event("error", 3.0, rank, error=f"CollectiveMismatch: {text}") for rank in ranks)]

    assert not list(unnamed(errors("rank 1 (on a) holds another one than rank 0, 2", 0, 1, 2), FAULTS))
    (found,) = unnamed(errors("rank 0 is here, and rank 1 there", 0, 1, 2), FAULTS)
    assert (found.invariant, "rank 1 and its host" in found.message) == ("named", True)
    assert not list(unnamed(errors("said by itself", 1), FAULTS))
    assert not list(unnamed([STRUCK, event("error", 3.0, 0, error="OSError: another matter")], FAULTS))
