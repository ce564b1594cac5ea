"""What a loss cost is counted from when training stood still, and not from when somebody noticed."""

from __future__ import annotations

from typing import Any

import pytest

from elastic.events.event import Event
from elastic.report import sentences
from elastic.report.report import report
from elastic.report.view_changes import ViewChange

STEP_S, NOTICED_S, ON_S = 0.05, 3.7, 0.2


class Told:
    """Three workers, a step each STEP_S from second 100 on; the last step of all is at 101."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.workers = ["a-1-w", "b-1-w", "c-1-w"]
        for worker in self.workers:
            self.tell(worker, "run_started", 90.0, host=worker[0])
            self.tell(worker, "view_formed", 99.0, workers=self.workers, shares=[0, 1])
            self.tell(worker, "loaded", 99.5, step=0, epoch=0, from_claim=None, accepted=[], digest="d")
            for step in range(20):
                self.applies(worker, step, 100.0 + STEP_S * (step + 1))

    def tell(self, worker: str, event: str, t: float, *, generation: int = 1, **facts: Any) -> None:
        common = {"generation": generation, "rank": self.workers.index(worker), "claim": 1}
        self.events.append({"t": t, "worker": worker, "event": event, **common, **facts})

    def applies(self, worker: str, step: int, t: float, **facts: Any) -> None:
        self.tell(worker, "step_applied", t, step=step, attempt=0, count=8, epoch=0, **facts)

    def notices(self, worker: str, t: float) -> None:
        self.tell(worker, "peer_lost", t, step=20, phase="exchange", error="gone", missing=[], wait_s=3.6)

    def goes_on(self, t: float, *, died_t: float | None, steps: bool = True) -> None:
        """Without c."""
        self.notices("a-1-w", 101.0 + NOTICED_S - 0.1)
        self.notices("b-1-w", 101.0 + NOTICED_S)
        for worker in self.workers[:2]:
            self.tell(worker, "view_formed", t - 0.1, generation=2, workers=self.workers[:2], shares=[0, 1])
        fault = {"lost": "c-1-w", "cause": "its node was lost", "died_t": died_t, "step": 20}
        self.tell("a-1-w", "fault_detected", t - 0.1, generation=2, **fault)
        for worker in self.workers[:2] if steps else []:
            self.applies(worker, 20, t, generation=2)

    @property
    def loss(self) -> ViewChange:
        found = report(sorted(self.events, key=lambda event: float(event["t"])))
        (loss,) = [change for change in found.view_changes if change.kind == "loss"]
        return loss


def test_a_host_that_was_cut_off_silently_costs_from_the_last_step_on() -> None:
    """No agent saw a death; by the survivors' noticing, 0.2 s of 3.9 s would be told."""
    told = Told()
    told.goes_on(101.0 + NOTICED_S + ON_S, died_t=None)
    assert told.loss.cost_s == pytest.approx(3.9)
    assert told.loss.detected_s == pytest.approx(3.7)
    said = sentences.sentence(told.loss)
    assert "trained again 3.9 s later (3.7 s until it was noticed, 200 ms to go on)" in said
    assert "3.9 s" in str(sentences.recovered([told.loss]))


def test_who_was_cut_off_notices_it_later_and_that_is_nobodys_detection() -> None:
    """It stands still for an hour, say, and is told then that the run has gone on."""
    told = Told()
    told.goes_on(101.0 + NOTICED_S + ON_S, died_t=None)
    told.notices("c-1-w", 3700.0)
    told.tell("c-1-w", "moved_on", 3700.5, step=20, why="the run has gone on")
    assert told.loss.detected_s == pytest.approx(3.7)
    assert told.loss.came_back == ("c-1-w",)
    assert "(its node was lost; it came back, heard that the run had gone on, and ended)" in sentences.sentence(
        told.loss
    )


@pytest.mark.parametrize(("died_t", "cost_s"), [(104.0, 0.9), (101.0 - 3600, 3.9), (101.0 + 3600, 0.3)])
def test_a_death_that_an_agent_saw_counts_from_there_and_never_from_before_the_last_step(
    died_t: float, cost_s: float
) -> None:
    """All of a view take part in a step, so an earlier death is a wrong clock; a later one than its noticing, too."""
    told = Told()
    told.goes_on(101.0 + NOTICED_S + ON_S, died_t=died_t)
    assert told.loss.cost_s == pytest.approx(cost_s)


def test_a_loss_before_the_first_step_of_a_view_counts_from_what_the_others_did_last() -> None:
    told = Told()
    told.events = [event for event in told.events if event["event"] != "step_applied"]
    told.goes_on(101.0 + NOTICED_S + ON_S, died_t=None)
    assert told.loss.begun_t == 99.5


def test_a_collective_that_failed_with_nobody_lost_costs_from_step_to_step() -> None:
    told = Told()
    for worker in told.workers:
        told.notices(worker, 104.0)
        told.tell(worker, "view_formed", 104.5, generation=2, workers=told.workers, shares=[0, 1])
        told.applies(worker, 20, 105.0, generation=2)
    (broken,) = [one for one in report(sorted(told.events, key=lambda e: float(e["t"]))).view_changes if one.step]
    assert broken.kind == "broken"
    assert broken.cost_s == pytest.approx(4.0)
    assert "4.0 s from step to step (3.0 s until it was noticed, 1.0 s to go on)" in sentences.sentence(broken)
