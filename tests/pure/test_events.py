"""Events are the one source of what people see and tests check, so none may be lost, torn or reordered."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import threading
from collections.abc import Callable
from pathlib import Path

import fsspec
import pytest
import torch

from elastic.events import remote_sink, segments
from elastic.events.declarations import problems
from elastic.events.digests import digest_of_sums
from elastic.events.event import Event
from elastic.events.log import EventLog
from elastic.events.reading import read_events
from elastic_checkpoint.storage.fsspec import FsspecStorage


def clock(*times: float) -> Callable[[], float]:
    return iter(times).__next__


def test_a_record_carries_its_time_its_worker_and_the_common_facts(tmp_path: Path) -> None:
    log = EventLog(tmp_path, worker_id="w0", clock=clock(1.0, 2.0, 3.0))
    log.emit_named("run_started", pid=17)
    log.context(generation=2, rank=0, world_size=4, claim=None)
    log.emit_named("notice", signal="SIGTERM")
    log.context(claim=3, rank=None)
    log.emit_named("saved", step=4)

    assert read_events(tmp_path) == [
        {"t": 1.0, "worker": "w0", "event": "run_started", "pid": 17},
        {"t": 2.0, "worker": "w0", "event": "notice", "generation": 2, "rank": 0, "world_size": 4, "signal": "SIGTERM"},
        {"t": 3.0, "worker": "w0", "event": "saved", "generation": 2, "world_size": 4, "claim": 3, "step": 4},
    ]


def test_workers_are_merged_by_time_and_each_one_s_order_is_kept(tmp_path: Path) -> None:
    """A clock that is set back must not turn one worker's history around."""
    first = EventLog(tmp_path, worker_id="w0", clock=clock(1.0, 5.0, 4.0))
    second = EventLog(tmp_path, worker_id="w1", clock=clock(2.0))
    for name in ("a", "b", "c"):
        first.emit_named(name)
    second.emit_named("d")

    assert [event["event"] for event in read_events(tmp_path)] == ["a", "d", "b", "c"]


def test_a_file_url_is_a_folder(tmp_path: Path) -> None:
    EventLog(f"file://{tmp_path}", worker_id="w0").emit_named("a")
    assert [event["event"] for event in read_events(f"file://{tmp_path}")] == ["a"]
    assert (tmp_path / "events" / "w0.jsonl").exists()


@pytest.mark.parametrize("torn", ['{"t": 3.0, "worker": "w0", "ev', "[1, 2]", '{"t": 3.0}', "\x00\x00", ""])
def test_a_torn_last_line_costs_itself_and_nothing_after_it(tmp_path: Path, torn: str) -> None:
    """A kill or a full disk may tear a line; what the next process appends must not be glued to it."""
    EventLog(tmp_path, worker_id="w0", clock=clock(1.0)).emit_named("before")
    with (tmp_path / "events" / "w0.jsonl").open("a") as file:
        file.write(torn)
    EventLog(tmp_path, worker_id="w0", clock=clock(2.0)).emit_named("after")

    assert [event["event"] for event in read_events(tmp_path)] == ["before", "after"]


def test_threads_do_not_tear_each_other_s_lines(tmp_path: Path) -> None:
    log = EventLog(tmp_path, worker_id="w0")
    log.keep_uncompacted()

    def write(name: str) -> None:
        for at in range(200):
            log.emit_named(name, at=at, text="x" * 5000)

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)

    events = read_events(tmp_path)
    assert len(events) == 800
    assert all([e["at"] for e in events if e["event"] == name] == list(range(200)) for name in "abcd")


def test_a_log_that_cannot_be_written_says_so_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Training is worth more than its log."""
    (tmp_path / "events").write_text("a file where the folder should be")
    with caplog.at_level(logging.WARNING):
        log = EventLog(tmp_path, worker_id="w0")
        for _ in range(3):
            log.emit_named("step_applied")
        log.flush()
        log.close()

    assert len(caplog.records) == 1
    assert "training goes on" in caplog.text


def test_in_object_storage_a_segment_grows_and_two_of_one_name_do_not_hide_each_other() -> None:
    """Objects cannot be appended to, and one per flush would be thousands to read."""
    url = "memory://events-in-segments"
    first = EventLog(url, worker_id="w0", clock=clock(1.0, 2.0, 4.0))
    first.emit_named("a")
    first.flush(wait=True)
    first.flush(wait=True)
    first.emit_named("b")
    first.flush(wait=True)
    first.emit_named("d")
    second = EventLog(url, worker_id="w0", clock=clock(3.0))
    second.emit_named("c")
    second.close()
    first.close()

    assert sorted(event["event"] for event in read_events(url)) == ["a", "b", "c", "d"]
    assert sorted(fsspec.filesystem("memory").ls("/events-in-segments/events", detail=False)) == [
        f"/events-in-segments/events/w0.00000{number}.jsonl" for number in range(2)
    ]


def steps(log: EventLog, count: int, *, first: int = 0, rank: int = 0) -> None:
    """What a rank 0 records of so many steps, a save every hundred, and a loss every thousand."""
    for step in range(first, first + count):
        facts = {"attempt": 0, "redone": False, "shares": [0, 2], "count": 24, "indices": "i" * 64, "sums": "s" * 64}
        values = {"values": {"loss": 0.5 * step}} if rank == 0 else {}
        log.emit_named("step_applied", step=step, epoch=0, **facts, **values, wait_s=0.25)
        if step % 100 == 99:
            log.emit_named("saved", step=step + 1, bytes=10, seconds=0.5, stall=0.125, name=f"c{step}")
        if step % 1000 == 999:
            log.emit_named("peer_lost", step=step + 1, phase="exchange", error="gone", missing=[])


def ticking() -> Callable[[], float]:
    return itertools.count(1.0).__next__


@pytest.mark.parametrize("kind", ["folder", "objects"])
def test_a_long_log_is_bounded_and_its_totals_stay_right(tmp_path: Path, kind: str) -> None:
    """A month of steps must not fill the disk of the run, nor keep a report from being read."""
    url = str(tmp_path) if kind == "folder" else "memory://events-of-a-month"
    log = EventLog(url, worker_id="host.name-17-ab", clock=ticking())
    for part in range(40):
        steps(log, 1000, first=1000 * part)
        log.flush(wait=True)
    log.close()

    listed = fsspec.filesystem("file" if kind == "folder" else "memory").find(
        f"{tmp_path}/events" if kind == "folder" else "/events-of-a-month/events", detail=True
    )
    assert sum(found["size"] for found in listed.values()) <= (segments.SEGMENTS + 1.5) * segments.SEGMENT_BYTES
    events = read_events(url)
    folded = [event for event in events if event["event"] == "folded"]
    applied = [event["step"] for event in events if event["event"] == "step_applied"]
    assert not [problem for event in folded for problem in problems(event)]
    assert applied == list(range(40_000 - len(applied), 40_000))
    assert sum(event["steps"] for event in folded) == 40_000 - len(applied) > 20_000
    assert sum(event["event"] == "peer_lost" for event in events) == 40
    saved = sum(event["records"].get("saved", 0) for event in folded) + sum(e["event"] == "saved" for e in events)
    assert saved == 400
    assert sum(event["wait_s"] for event in events if "wait_s" in event) == pytest.approx(10_000)
    curve = [point for event in folded for point in event["curve"]]
    assert curve
    assert all(values == {"loss": 0.5 * step} for step, _, values in curve)
    assert [event["t"] for event in events] == sorted(event["t"] for event in events)


@pytest.mark.parametrize("cut", range(7))
def test_a_crash_anywhere_in_the_removal_of_a_segment_loses_and_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: int
) -> None:
    """Nothing of a killed worker may count twice in a total, or be missing from it."""
    log = EventLog(tmp_path, worker_id="w0", clock=ticking())
    steps(log, 14_000)  # five segments are full or filling, so the next two that are full fold the first two
    calls = 0

    def crash() -> bool:
        nonlocal calls
        calls += 1
        if calls > cut:
            raise KeyboardInterrupt
        return True

    real = {name: getattr(Path, name) for name in ("write_bytes", "replace", "unlink")}
    for name, method in real.items():
        monkeypatch.setattr(Path, name, lambda *a, m=method, **k: m(*a, **k) if crash() else None)
    with contextlib.suppress(KeyboardInterrupt):
        steps(log, 6_000, first=14_000)
    monkeypatch.undo()

    assert calls > cut
    events = read_events(tmp_path)
    folded = sum(event["steps"] for event in events if event["event"] == "folded")
    applied = [event["step"] for event in events if event["event"] == "step_applied"]
    assert applied == list(range(folded, folded + len(applied)))
    assert folded + len(applied) > 14_000


def test_a_torn_object_costs_its_last_line_only() -> None:
    """Some storages show an upload that was cut short."""
    url = "memory://torn-events"
    log = EventLog(url, worker_id="w0")
    for name in ("a", "b"):
        log.emit_named(name)
    log.close()
    filesystem = fsspec.filesystem("memory")
    key = "/torn-events/events/w0.000000.jsonl"
    filesystem.pipe_file(key, filesystem.cat_file(key)[:-9])

    assert [event["event"] for event in read_events(url)] == ["a"]


def test_an_upload_that_fails_is_said_once_and_made_up_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Storage that is away for an hour must cost neither the run nor its history."""
    url = "memory://events-of-a-bad-hour"
    log = EventLog(url, worker_id="w0")
    log.emit_named("before")
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(FsspecStorage, "put_new", lambda *_: (_ for _ in ()).throw(PermissionError("403")))
        log.flush(wait=True)
        log.emit_named("during")
        log.flush(wait=True)
    log.emit_named("after")
    log.flush(wait=True)

    assert [event["event"] for event in read_events(url)] == ["before", "during", "after"]
    assert len([record for record in caplog.records if record.name == "elastic.events"]) == 1


def test_what_storage_does_not_take_for_long_is_folded_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is the training's; the totals of a bad day are right all the same."""
    url = "memory://events-of-a-bad-day"
    monkeypatch.setattr(remote_sink, "PENDING_BYTES_MAX", 600_000)
    log = EventLog(url, worker_id="w0", clock=ticking())
    with monkeypatch.context() as patch:
        patch.setattr(FsspecStorage, "put_new", lambda *_: (_ for _ in ()).throw(PermissionError("403")))
        steps(log, 5_000)
        log.flush(wait=True)
    log.flush(wait=True)  # there again: what waits is taken, and then what was folded
    steps(log, 10, first=5_000)
    log.close()

    events = read_events(url)
    applied = [event for event in events if event["event"] == "step_applied"]
    folded = sum(event["steps"] for event in events if event["event"] == "folded")
    assert len(applied) < 2_500
    assert folded + len(applied) == 5_010
    assert sum(event["event"] == "peer_lost" for event in events) == 5
    assert sum(event["wait_s"] for event in events if "wait_s" in event) == pytest.approx(5_010 / 4)


def test_a_listener_that_fails_is_let_go_and_the_run_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    heard: list[str] = []

    def hear(event: Event) -> None:
        heard.append(event["event"])
        raise KeyError("values")

    log = EventLog(tmp_path, worker_id="w0")
    log.hear(hear)
    with caplog.at_level(logging.ERROR):
        for name in ("a", "b"):
            log.emit_named(name)

    assert heard == ["a"]
    assert len(caplog.records) == 1
    assert [event["event"] for event in read_events(tmp_path)] == ["a", "b"]


def test_a_digest_of_sums_knows_every_bit_and_no_order() -> None:
    """Two workers agree on a step when their sums do, to the sign of a zero."""
    sums = {"loss": 0.5, "correct": 3, "confusion": torch.eye(2, dtype=torch.float64)}
    same = digest_of_sums(sums, 6)

    assert digest_of_sums(dict(reversed(sums.items())), 6) == same
    others = [(sums, 7), ({**sums, "loss": 0.5000000000000001}, 6), ({**sums, "correct": 3.0}, 6), ({}, 6)]
    assert len({same, *(digest_of_sums(*other) for other in others)}) == 5
    assert digest_of_sums({"loss": 0.0}, 1) != digest_of_sums({"loss": -0.0}, 1)


def test_every_record_is_strict_json(tmp_path: Path) -> None:
    """Other tools read these files too."""
    EventLog(tmp_path, worker_id="w0").emit_named("odd", text='quote " and \u2028', none=None)
    (line,) = (tmp_path / "events" / "w0.jsonl").read_text().splitlines()
    assert json.loads(line)["none"] is None


def test_evidence_is_never_folded(tmp_path: Path) -> None:
    log = EventLog(tmp_path, worker_id="w0")
    log.keep_uncompacted()
    steps(log, 15_000)
    log.close()
    assert [e["step"] for e in read_events(tmp_path) if e["event"] == "step_applied"] == list(range(15_000))
