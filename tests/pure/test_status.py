"""The status is looked at while a run is in trouble, so it must be right, short, and in nobody's way."""

from __future__ import annotations

import re
from typing import Any

import pytest

from elastic.events.log import EventLog
from elastic.status import terminal
from elastic.status.tracker import Status, StatusTracker

CODES = re.compile(r"\x1b\[[0-9;]*m")


class Shown:
    """An EventLog without a file, whose clock is set by hand, and what a tracker made of its events."""

    def __init__(self, *, total_steps: int = 100, shares: int = 12, every_s: float = 0.5) -> None:
        self.now = 100.0
        self.statuses: list[Status] = []
        self.lines: list[str] = []
        self.log = EventLog(None, worker_id="w0", clock=lambda: self.now)
        show, said = self.statuses.append, self.lines.append
        self.log.hear(StatusTracker(total_steps=total_steps, shares=shares, every_s=every_s, show=show, say=said).hear)
        self.log.emit_named("run_started")
        self.log.context(rank=0, world_size=4, generation=1)

    def view(self, *workers: str, generation: int = 1, after_s: float = 0.0, **facts: Any) -> Shown:
        self.log.context(generation=generation)
        return self.then("view_formed", after_s, workers=list(workers), shares=[0, 3], **facts)

    def then(self, event: str, after_s: float = 0.0, **facts: Any) -> Shown:
        self.now += after_s
        self.log.emit_named(event, **facts)
        return self

    def steps(self, first: int, last: int, **facts: Any) -> Shown:
        for step in range(first, last):
            self.then(
                "step_applied", 0.25, step=step, epoch=0, count=64, values={"correct": 8.0, "loss": 32.0}, **facts
            )
        return self


def test_the_status_has_what_people_ask_for_first() -> None:
    shown = Shown().view("a", "b", "c", "d").steps(0, 4).then("saved", step=4).steps(4, 8)

    common = {"total_steps": 100, "step": 7, "epoch": 0, "world_size": 4, "generation": 1, "lost": 0}
    expected = {"value": ["loss", 0.5], "step_s": 0.25, "count_per_s": 256.0, "balance": 1.0, "goodput": 1.0}
    saved = {"saved": {"step": 4, "t": shown.now - 1.0}}
    assert shown.statuses[-1] == {**common, **expected, **saved, "t": shown.now - 0.25}


def test_it_is_told_no_more_than_twice_a_second_and_only_by_rank_0() -> None:
    """The agent's loop must see deaths at once, however many steps a second there are."""
    assert len(Shown(every_s=0.5).view("a").steps(0, 40).statuses) == 20
    other = Shown().view("a", "b")
    other.log.context(rank=1)
    assert other.steps(0, 40).statuses == []


def test_a_loss_is_told_with_its_cause_and_what_it_cost_once_the_run_is_under_way_again() -> None:
    shown = Shown().view("a", "b", "c").steps(0, 8)
    shown.then("peer_lost", 1.0).view("a", "b", generation=2)
    shown.then("fault_detected", lost="c", cause="SIGKILL", died_t=shown.now - 0.5)
    assert shown.lines == []
    shown.steps(8, 12)

    line = "step 8: 2 workers, 750 ms after the loss of 1 (SIGKILL), 500 ms until it was noticed; goodput 69.2 %"
    assert shown.lines == [line]
    fault = {"t": shown.now - 0.75, "why": "SIGKILL", "cost_s": 0.75, "unnoticed_s": 0.5}
    assert shown.statuses[-1]["fault"] == fault
    assert shown.statuses[-1]["lost"] == 1
    shown.then("finished", step=12)
    assert shown.lines[-1].startswith("finished: 12 steps, 1 lost on the way, goodput ")


def test_replicas_are_named_where_they_have_several_workers() -> None:
    shown = Shown().view("a", "b", "c", "d", replica_size=2).steps(0, 8)
    shown.then("peer_lost", 1.0).view("a", "b", generation=2, replica_size=2)
    shown.then("fault_detected", lost="c", of_replica=1, cause="it ended with its replica", died_t=None)
    shown.then("fault_detected", lost="d", of_replica=1, cause="SIGKILL", died_t=None).steps(8, 12)

    line = "step 8: 2 workers in 1 replica, 1.2 s after the loss of replica 1 (SIGKILL)"
    assert shown.lines[0].startswith(line), shown.lines
    assert shown.statuses[-1]["lost"] == 2
    status = {**shown.statuses[-1], "world_size": 6, "balance": 1.0}
    assert "6 workers in 3 replicas" in CODES.sub("", "".join(terminal.lines(status, shown.now, 160)))


def test_only_those_who_were_lost_are_counted_as_lost() -> None:
    """In a run's first view one died, and two had not received the state: it said "after the loss of 3"."""
    shown = Shown().view("a", "b", "c", "d").then("peer_lost", 1.0)
    shown.view("a", generation=2, not_lost=["b", "d"])
    shown.then("fault_detected", lost="c", cause="SIGKILL", died_t=shown.now).steps(0, 1)
    shown.view("a", "b", "d", generation=3).steps(1, 5)
    assert [line.partition(" (")[0].partition(";")[0] for line in shown.lines] == [
        "step 0: 1 worker, 250 ms after the loss of 1",
        "step 1: 3 workers, 2 joined",
    ]
    assert shown.statuses[-1]["lost"] == 1


@pytest.mark.parametrize(
    ("died_s", "cost_s", "unnoticed_s"),
    [(None, 3.95, 3.7), (-3600.0, 3.95, 3.7), (3600.0, 0.25, 0.0)],
    ids=["cut off", "a clock that is behind", "a clock that is ahead"],
)
def test_a_loss_that_nobody_saw_counts_from_the_last_step_on(
    died_s: float | None, cost_s: float, unnoticed_s: float
) -> None:
    """No agent, or by a clock that is wrong: other hosts' clocks decide no more than the time since that step."""
    shown = Shown().view("a", "b", "c").steps(0, 8).then("peer_lost", 3.7).view("a", "b", generation=2)
    died_t = None if died_s is None else shown.now + died_s
    shown.then("fault_detected", lost="c", cause="its node was lost", died_t=died_t).steps(8, 10)
    fault = shown.statuses[-1]["fault"]
    assert (fault["cost_s"], fault["unnoticed_s"]) == (pytest.approx(cost_s), pytest.approx(unnoticed_s))
    said = ", 3.7 s until it was noticed" if unnoticed_s else ""
    assert f"{'4.0 s' if said else '250 ms'} after the loss of 1 (its node was lost){said}; goodput" in shown.lines[0]
    assert plain(shown.statuses[-1], shown.now).endswith(f": its node was lost{said}")


def test_who_joins_and_who_leaves_is_told_and_an_undisturbed_run_says_nothing() -> None:
    shown = Shown().view("a", "b").steps(0, 4)
    assert shown.lines == []
    shown.view("a", "b", "c", generation=2).steps(4, 5).view("a", "b", generation=3).steps(5, 6)
    assert [line.partition(";")[0] for line in shown.lines] == [
        "step 4: 3 workers, 1 joined",
        "step 5: 2 workers, 1 left",
    ]
    calm = Shown().view("a").steps(0, 4).then("finished", step=4)
    assert calm.lines == []


def test_a_failed_save_is_shown_until_one_is_committed() -> None:
    shown = Shown().view("a").steps(0, 4).then("save_failed", step=4).steps(4, 8)
    assert "saving step 4 failed 1 s ago" in plain(shown.statuses[-1], shown.now)
    shown.then("saved", step=8).steps(8, 12)
    assert "failed" not in plain(shown.statuses[-1], shown.now)


def plain(status: Status, now: float, width: int = 200) -> str:
    return "\n".join(CODES.sub("", line) for line in terminal.lines(status, now, width))


@pytest.mark.parametrize("width", [60, 80, 90, 120])
@pytest.mark.parametrize("total_steps", [100, 100_000])
def test_the_time_that_is_left_is_kept_before_the_bar_and_examples_per_second(width: int, total_steps: int) -> None:
    shown = Shown(total_steps=total_steps).view("a", "b").steps(0, 12)
    line = plain(shown.statuses[-1], shown.now, width).splitlines()[0]
    left = {100: "22 s left", 100_000: "6 h 56 min left"}[total_steps]
    assert left in line
    assert line.startswith(f"step 11 of {total_steps:,} ")
    assert ("examples/s" in line) or width < 120
    assert len(line) < width


def test_what_a_run_says_steers_neither_the_terminal_nor_the_panel() -> None:
    """An error's message may hold anything."""
    shown = Shown().view("a").steps(0, 4)
    shown.then("passed_over", 1.0, step=4, first=4, epoch=0, why="[red]\x1b[2Jgone\n[/nonsense]").steps(5, 7)
    line = terminal.lines(shown.statuses[-1], shown.now, 200)[1]
    assert "\x1b[2J" not in line
    assert "\n" not in line
    assert "[red]�[2Jgone [/nonsense]" in CODES.sub("", line)
