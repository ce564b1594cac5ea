"""Every second of every worker is in exactly one part, whatever the events say; and each part is what it is called."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic.events.account import BADPUT, PARTS, Account
from elastic.events.compaction import Compaction
from elastic.events.declarations import EVENTS
from elastic.events.event import Event
from elastic.report.ledger import ledger

NAMES = [event.name for event in EVENTS]


class Worker:
    """Tells the events of one worker, second by second."""

    def __init__(self, name: str, t: float, **common: Any) -> None:
        self.name, self.t, self.common = name, t, common
        self.events: list[Event] = []

    def then(self, event: str, after_s: float = 0.0, **facts: Any) -> Worker:
        self.t += after_s
        self.events.append({"t": self.t, "worker": self.name, "event": event, **self.common, **facts})
        return self

    def at(self, **common: Any) -> Worker:
        self.common.update(common)
        return self

    def begins(self, *, step: int = 0, from_claim: int | None = None) -> Worker:
        """3 s to start, 2 to form, 1 to load."""
        self.then("run_started", age_s=3.0).then("view_formed", 2.0, workers=[], shares=[0, 1])
        return self.then("loaded", 1.0, step=step, epoch=0, from_claim=from_claim, accepted=[], digest="d")

    def steps(self, first: int, last: int, **facts: Any) -> Worker:
        for step in range(first, last):
            self.then("step_applied", 1.0, step=step, attempt=0, count=8, **facts)
        return self


def together(*workers: Worker) -> list[Event]:
    return sorted((event for worker in workers for event in worker.events), key=lambda event: float(event["t"]))


def parts(*workers: Worker) -> dict[str, float]:
    """Those that are not zero, rounded."""
    found = ledger(together(*workers))
    assert math.isclose(sum(found.parts.values()), found.whole, abs_tol=1e-6)
    # by others' names each second is somewhere, too: lost, computed, or in an exchange
    counts = found.parts["productive"] + found.parts["exchange_wait"]
    assert math.isclose(sum(found.badput.values()) + counts, found.whole, abs_tol=1e-6)
    return {part: round(seconds, 6) for part, seconds in found.parts.items() if seconds}


def badput(worker: Worker) -> dict[str, float]:
    """Of what a view's changes take, what is not zero, rounded."""
    found = ledger(together(worker)).badput
    assert tuple(found) == BADPUT
    changes = ("training_prep", "elastic_scale_up", "elastic_slice_down")
    return {name: round(found[name], 6) for name in changes if found[name]}


numbers = st.floats(-10.0, 10.0, allow_nan=False)
small = st.integers(0, 3)
records = st.fixed_dictionaries(
    {"t": numbers, "worker": st.sampled_from("abc"), "event": st.sampled_from(NAMES)},
    optional={
        "generation": small,
        "claim": small,
        "rank": small,
        "age_s": numbers,
        "idle_s": numbers,
        "wait_s": numbers,
        "data_s": numbers,
        "save_s": numbers,
    },
)
facts = st.fixed_dictionaries(
    {
        "step": small,
        "lost": st.sampled_from("abc"),
        "died_t": st.none() | numbers,
        "stuck_s": st.none() | numbers,
        "from_claim": st.none() | small,
        "first": st.none() | small,
        "last": st.integers(3, 6),
        "unknown": st.booleans(),
    }
)


@given(st.lists(st.tuples(records, facts), min_size=1, max_size=40))
def test_the_parts_sum_to_the_whole_for_any_events(drawn: list[tuple[Event, Event]]) -> None:
    """Torn logs, clocks that jump, facts that make no sense: a ledger must still add up."""
    found = ledger([{**facts, **record} for record, facts in drawn])
    for account in found.workers.values():
        assert math.isclose(sum(account.parts.values()), account.end_s - account.begin_s, abs_tol=1e-6)
        assert min(account.parts.values()) >= 0.0
        assert_stretches_cover(account)
    assert math.isclose(sum(found.parts.values()), found.whole, abs_tol=1e-6)
    assert 0.0 <= found.computed <= found.goodput <= 1.0 + 1e-9
    assert tuple(found.parts) == PARTS


def assert_stretches_cover(account: Account) -> None:
    """What is drawn has no gap and no overlap."""
    edges = [account.begin_s, *(edge for begin, end, _ in account.stretches for edge in (begin, end)), account.end_s]
    assert all(a == b for a, b in zip(edges[::2], edges[1::2], strict=True))


def test_a_drill_that_notes_something_first_takes_no_time_away() -> None:
    """Its observer tells where a worker is placed before the worker enters its run; the start is still the worker's."""
    worker = Worker("a", 3.0, claim=1).then("placed", agent=1).then("run_started", 0.5, age_s=3.5)
    assert parts(worker) == {"starting": 3.5}


def test_a_death_costs_its_worker_the_step_in_flight_and_the_survivor_that_and_the_recovery() -> None:
    """The dead worker's time ends with its death, as its agent saw it."""
    dead = Worker("dead", 3.0, claim=1, generation=1).begins().steps(0, 2)  # until 8.0
    survivor = Worker("alive", 3.0, claim=1, generation=1).begins().steps(0, 2)
    survivor.then("peer_lost", 0.75, step=2, phase="x", error="e", missing=[], wait_s=0.5).at(generation=2)
    survivor.then("view_formed", 0.5, workers=["alive"], shares=[0, 2], idle_s=0.125)
    survivor.then("fault_detected", lost="dead", cause="SIGKILL", died_t=8.5, step=2)
    survivor.then("redo", step=2, attempt=1).then("step_applied", 1.0, step=2, attempt=1, count=8, wait_s=0.25)
    found = ledger(together(dead, survivor))

    assert {p: s for p, s in found.workers["dead"].parts.items() if s} == {
        "starting": 3.0,
        "forming": 2.0,
        "loading": 1.0,
        "productive": 2.0,
        "redone": 0.5,
    }
    assert found.workers["dead"].died
    assert {p: s for p, s in found.workers["alive"].parts.items() if s} == {
        "starting": 3.0,
        "forming": 2.375,
        "loading": 1.0,
        "productive": 2.75,
        "exchange_wait": 0.25,
        "redone": 0.5,
        "detecting": 0.25,
        "idle": 0.125,
    }


def test_a_worker_that_was_stuck_is_being_detected_from_its_last_sign_on() -> None:
    dead = Worker("dead", 3.0, claim=1, generation=1).begins().steps(0, 1)  # until 7.0
    survivor = Worker("alive", 3.0, claim=1, generation=1).begins().steps(0, 1)
    survivor.then("peer_lost", 3.0, step=1, phase="x", error="e", missing=[], wait_s=2.5).at(generation=2)
    survivor.then("view_formed", workers=["alive"], shares=[0, 2])
    survivor.then("fault_detected", lost="dead", cause="hang", died_t=9.75, step=1).then(
        "hang", lost="dead", step=1, stuck_s=2.25
    )
    found = ledger(together(dead, survivor))

    assert [found.workers[name].parts["redone"] for name in ("dead", "alive")] == [0.5, 0.5]
    assert [found.workers[name].parts["detecting"] for name in ("dead", "alive")] == [2.25, 2.5]


@pytest.mark.parametrize("killed", [True, False], ids=["and another was killed meanwhile", "alone"])
def test_a_host_that_was_cut_off_was_being_detected_since_the_last_step(killed: bool) -> None:
    """Waits inside a backward pass are no collective's, and under the next claim the next view is told of."""
    survivor = Worker("a", 3.0, claim=1, generation=1).begins().steps(0, 1)
    survivor.then("peer_lost", 4.0, step=1, phase="x", error="e", missing=[], save_s=0.5).at(generation=3, claim=2)
    survivor.then("view_formed", workers=["a", "b"], shares=[0, 2])
    survivor.then("fault_detected", lost="cut", cause="its node was lost", died_t=None, step=1)
    if killed:
        survivor.then("fault_detected", lost="killed", cause="SIGKILL", died_t=survivor.t - 0.125, step=1)
    found = parts(survivor)
    assert (found.get("redone", 0.0), found["save_stall"], found["detecting"]) == (0.0, 0.5, 3.5)


def test_a_newcomer_takes_the_state_and_a_donor_gives_it() -> None:
    newcomer = Worker("new", 3.0, generation=2).then("run_started", age_s=1.0)
    newcomer.then("view_formed", 0.5, workers=[], shares=[0, 2]).at(claim=1)
    newcomer.then("transfer", 2.0, step=4, bytes=8, seconds=2.0, role="takes")
    newcomer.then("loaded", 0.25, step=4, epoch=0, from_claim=1, accepted=[]).steps(4, 5)
    assert parts(newcomer) == {"starting": 1.0, "forming": 0.5, "transferring": 2.25, "productive": 1.0}


def test_steps_that_a_restart_went_back_behind_do_not_count() -> None:
    """Launch 2 goes on from step 2, so steps 2 and 3 of launch 1 were in vain."""
    first = Worker("a", 3.0, claim=1).begins().steps(0, 4, wait_s=0.25)
    second = Worker("b", 23.0, claim=2).begins(step=2, from_claim=1).steps(2, 4)
    assert parts(first) == {"starting": 3, "forming": 2, "loading": 1, "productive": 3.0, "exchange_wait": 1.0}
    found = parts(first, second)
    assert (found["redone"], found["productive"], found["exchange_wait"]) == (2.0, 3.5, 0.5)


def test_a_launch_that_nobody_went_on_from_was_in_vain() -> None:
    first = Worker("a", 3.0, claim=1).begins().steps(0, 4)
    lost = Worker("b", 23.0, claim=2).begins(step=3, from_claim=1).steps(3, 5)
    third = Worker("c", 43.0, claim=3).begins(step=2, from_claim=1).steps(2, 3)
    found = ledger(together(first, lost, third)).workers
    assert [found[name].parts["redone"] for name in "abc"] == [2.0, 2.0, 0.0]


def test_a_coordinator_that_takes_a_claim_of_its_own_goes_on_with_the_launch() -> None:
    """The others still name the claim that the launch began with; and a restart may go on from either's checkpoint."""
    first = Worker("a", 3.0, claim=1, generation=1).begins().steps(0, 2)
    other = Worker("b", 3.0, claim=1, generation=1).begins().steps(0, 2).at(generation=2).steps(2, 4)
    first.at(claim=2, generation=2).steps(2, 4)
    assert parts(first, other)["productive"] == 8.0
    restarted = Worker("c", 43.0, claim=3, generation=1).begins(step=3, from_claim=2)
    assert parts(first, other, restarted)["redone"] == 2.0


def test_what_a_view_takes_is_told_apart_by_what_changed() -> None:
    """By ml-goodput-measurement's names: a start, workers that come, and workers that are lost or leave."""
    worker = Worker("a", 3.0, claim=1, generation=1).then("run_started", age_s=3.0)
    worker.then("view_formed", 2.0, workers=["a", "b"], shares=[0, 1])
    worker.then("loaded", 1.0, step=0, epoch=0, from_claim=None, accepted=[], digest="d").steps(0, 2)
    assert badput(worker) == {"training_prep": 2.0}
    worker.then("peer_lost", 0.5, step=2, phase="x", error="e", missing=[], wait_s=0.25).at(generation=2)
    worker.then("view_formed", 0.75, workers=["a"], shares=[0, 2], idle_s=0.5).steps(2, 4)
    lost = 0.25 + 0.25  # detecting, and forming behind the wait for nodes
    assert badput(worker) == {"training_prep": 2.0, "elastic_slice_down": lost}
    worker.at(generation=3).then("view_formed", 0.125, workers=["a", "c"], shares=[0, 1])
    worker.then("transfer", 0.5, step=4, bytes=8, seconds=0.5, role="gives").steps(4, 6)
    assert badput(worker) == {"training_prep": 2.0, "elastic_scale_up": 0.625, "elastic_slice_down": lost}
    worker.at(generation=4).then("view_formed", 0.25, workers=["a"], shares=[0, 2]).steps(6, 7)
    assert badput(worker) == {"training_prep": 2.0, "elastic_scale_up": 0.625, "elastic_slice_down": lost + 0.25}
    found = ledger(together(worker)).badput
    assert found["infrastructure_recovery_from_disruption"] == 0.5, "below the minimum of nodes"


def test_what_a_newcomer_waits_for_is_growth_also_where_it_comes_for_a_lost_one() -> None:
    newcomer = Worker("new", 3.0, generation=4).then("run_started", age_s=1.0)
    newcomer.then("view_formed", 0.5, workers=["a", "new"], shares=[0, 2]).at(claim=1)
    newcomer.then("transfer", 2.0, step=4, bytes=8, seconds=2.0, role="takes")
    newcomer.then("loaded", 0.25, step=4, epoch=0, from_claim=1, accepted=[])
    assert badput(newcomer) == {"elastic_scale_up": 2.75}
    survivor = Worker("a", 3.0, claim=1, generation=1).then("run_started", age_s=1.0)
    survivor.then("view_formed", workers=["a", "b"], shares=[0, 2]).steps(0, 1)
    survivor.then("peer_lost", 0.5, step=1, phase="x", error="e", missing=[], wait_s=0.5).at(generation=2)
    survivor.then("view_formed", 0.25, workers=["a", "new"], shares=[0, 2])
    survivor.then("transfer", 1.0, step=1, bytes=8, seconds=1.0, role="gives")
    assert badput(survivor) == {"elastic_slice_down": 0.75, "elastic_scale_up": 1.0}


@given(st.integers(0, 30), st.integers(0, 30))
def test_compacting_old_records_changes_no_part(cut: int, back_to: int) -> None:
    """Unless a restart went back to within what was folded, the ledger of a bounded log is that of the whole one."""
    worker = Worker("a", 3.0, claim=1, generation=1, rank=0).begins()
    worker.steps(0, 20, wait_s=0.25, data_s=0.125).then(
        "peer_lost", 1.0, step=20, phase="", error="", missing=[], wait_s=0.5
    )
    worker.then("view_formed", 1.0, workers=[], shares=[0, 1]).steps(20, 30, wait_s=0.25, save_s=0.0625)
    restarted = Worker("b", 60.0, claim=2, rank=0).begins(step=back_to, from_claim=1)
    compaction = Compaction()
    for event in worker.events[:cut]:
        compaction.add(event)
    folded = [*compaction.items, *worker.events[cut:], *restarted.events]
    whole, bounded = ledger(together(worker, restarted)), ledger(folded)

    assert bounded.whole == pytest.approx(whole.whole)
    assert bounded.parts == pytest.approx(whole.parts)
    assert bounded.badput == pytest.approx(whole.badput)


def test_what_is_forgotten_is_unknown_and_not_made_up() -> None:
    worker = Worker("a", 3.0, claim=1).then("run_started", age_s=3.0)
    worker.then("folded", 10.0, **{**folded_of(4), "since": 3.0, "unknown": True})
    assert parts(worker) == {"starting": 3.0, "unknown": 10.0}


def folded_of(steps: int) -> dict[str, Any]:
    counts = {"records": {"step_applied": steps}, "steps": steps, "first": 0, "last": steps - 1}
    return {**counts, "redone": 0, "count": 8 * steps, "saved_bytes": 0, "stall_s": 0.0, "saved_t": [], "curve": []}


def test_a_step_that_was_passed_over_and_what_went_with_it_do_not_count() -> None:
    """Steps 2 to 4: two that were taken back, and the bad one."""
    worker = Worker("w0", 0.0).begins().steps(0, 4)
    worker.then("passed_over", 1.0, step=4, first=2, epoch=0, attempt=0, count=8, why="the loss is nan", wait_s=0.5)
    worker.steps(5, 7)
    assert parts(worker)["redone"] == 3.0
    assert parts(worker)["productive"] == 4.0
