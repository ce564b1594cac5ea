"""Hosts whose clocks differ by seconds tell one story; hosts that are slow are not taken for such."""

from __future__ import annotations

import heapq
import json
from pathlib import Path

import pytest

from elastic.__main__ import main
from elastic.events.event import Event
from elastic.report.clocks import LEAST_S, aligned, offsets
from elastic.report.report import report
from tests.kit.story import Story


def happened(**ahead: float) -> list[Event]:
    """Losses, joins and a restart on three hosts, a record each 50 ms, by clocks so many seconds ahead."""
    story = Story().launch(4).train(4).read().regroup([0, 1, 2]).train(6).regroup([1, 2], newcomers=1).train(8)
    story.regroup([2]).train(10).regroup([0], newcomers=2).train(12).launch(4).train(16).finish()
    by_worker: dict[str, list[Event]] = {}
    for event in story.events:
        moved = {**event, "worker": named(event["worker"])}
        moved["t"] = 1e6 + 0.05 * event["t"] + ahead.get(moved["worker"][0], 0.0)
        if "workers" in event:
            moved["workers"] = list(map(named, event["workers"]))
        by_worker.setdefault(moved["worker"], []).append(moved)
    return list(heapq.merge(*by_worker.values(), key=lambda event: float(event["t"])))


def named(worker: str) -> str:
    """As a run names its workers: by host, process and token."""
    return f"{'abc'[int(worker[1:]) % 3]}-1-{worker}"


@pytest.mark.parametrize("seconds", [5.0, -7.0, 300.0, -4000.0])
def test_a_clock_that_is_wrong_is_found_and_changes_nothing(seconds: float) -> None:
    truth, wrong = report(happened()), happened(b=seconds)
    found = offsets(wrong)
    assert list(found) == ["b"]
    assert found["b"] == pytest.approx(seconds, abs=0.3)
    seen = report(aligned(wrong, found))
    for fact in ("state", "steps", "redone", "world_sizes", "peers_lost", "counted"):
        assert getattr(seen, fact) == getattr(truth, fact), fact
    kinds, true_kinds = ([(change.kind, change.step) for change in r.view_changes] for r in (seen, truth))
    assert kinds == true_kinds
    assert seen.seconds == pytest.approx(truth.seconds, abs=1.0)


def test_what_an_agent_saw_is_moved_by_its_own_clock() -> None:
    """Of a death on a host whose clock is wrong, told by a worker of another host."""
    events = happened(b=20.0)
    at = next(index for index, event in enumerate(events) if event["worker"].startswith("a-"))
    fault = {**events[at], "event": "fault_detected", "lost": "b-1-w1", "cause": "SIGKILL", "died_t": 1e6 + 20.5}
    moved = aligned([*events[: at + 1], fault, *events[at + 1 :]], offsets(events))
    (found,) = [event for event in moved if event["event"] == "fault_detected"]
    assert found["died_t"] == pytest.approx(1e6 + 0.5, abs=0.3)
    assert found["t"] == pytest.approx(events[at]["t"], abs=0.3)


def test_a_host_that_is_late_once_and_clocks_that_hardly_differ_are_left_alone() -> None:
    assert offsets(happened()) == {}
    assert offsets(happened(b=LEAST_S / 2, c=-LEAST_S / 4)) == {}
    slow = happened()
    for event in slow:
        event["t"] = 1e6 + 100 * (event["t"] - 1e6) + (20.0 if event["worker"].startswith("b") else 0.0)
    assert offsets(slow) == {}, "20 s of steps of a minute may be work"
    late = happened()
    for event in late:
        if event["worker"].startswith("b") and event["event"] == "view_formed":
            event["t"] += 30.0
    assert offsets(late) == {}
    first = [event for event in happened(b=9.0) if event["event"] == "run_started"]
    assert offsets(first) == {}, "nothing was done together"


def test_the_command_says_whose_times_it_corrected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "events").mkdir()
    for event in happened(b=120.0):
        with (tmp_path / "events" / f"{event['worker']}.jsonl").open("a") as file:
            file.write(json.dumps(event) + "\n")
    assert main(["report", str(tmp_path), "--json"]) == 0
    shown = capsys.readouterr()
    assert "the clock of b is 2 min ahead of the others'" in shown.err
    assert json.loads(shown.out)["steps"] == 16
