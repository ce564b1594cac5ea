"""What a logger makes of rows that come again, of a service that fails, and of files that a killed process has left."""

from __future__ import annotations

import csv
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import fsspec
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from elastic.logging import CSV, Logger, TensorBoard
from elastic.logging.wandb import last_step, records
from elastic.logging.writer import Writer

WITHIN_S = 60.0


class Remembers(Logger):
    """fails: so many of the first calls of `write` raise, each after half of the row was taken."""

    def __init__(self, fails: int = 0) -> None:
        self.there: dict[int, dict[str, float]] = {}
        self.opened: list[int] = []
        self.closed = False
        self._fails = fails

    def open(self, run: str, *, after: int) -> None:
        self.opened.append(after)
        self.there = {step: row for step, row in self.there.items() if step <= after}

    def write(self, step: int, values: Mapping[str, float]) -> None:
        row = self.there.setdefault(step, {})
        for name, value in values.items():
            assert name not in row, f"{name} of step {step} was written twice"
            row[name] = value
            if self._fails:
                self._fails -= 1
                raise ConnectionError("the service is gone")

    def missing(self, step: int, values: Mapping[str, float]) -> Mapping[str, float]:
        return {name: value for name, value in values.items() if name not in self.there.get(step, {})}

    def close(self) -> None:
        self.closed = True


def fed(
    logger: Logger, rows: list[tuple[int, dict[str, float]]], *, after: int = 0, within_s: float = WITHIN_S
) -> list[str]:
    said: list[str] = []
    writer = Writer(logger, "runs/x", said.append)
    writer.open(after)
    for step, row in rows:
        writer.put(step, row)
    writer.close(within_s)
    return said


def test_rows_of_one_step_are_one_and_those_that_come_again_take_the_place_of_the_first() -> None:
    logger = Remembers()
    rows = [(1, {"a": 1.0}), (2, {"a": 2.0}), (2, {"b": 2.5}), (3, {"a": 3.0}), (2, {"a": 9.0}), (3, {"a": 8.0})]
    assert fed(logger, rows) == []
    assert logger.there == {1: {"a": 1.0}, 2: {"a": 9.0}, 3: {"a": 8.0}}
    assert logger.closed


def test_what_was_there_before_a_resume_is_not_written_again() -> None:
    logger = Remembers()
    logger.there = {4: {"a": 4.0}, 5: {"a": 5.0}}
    fed(logger, [(4, {"a": 4.0, "b": 1.0}), (5, {"a": 6.0})], after=4)
    assert logger.there == {4: {"a": 4.0, "b": 1.0}, 5: {"a": 6.0}}


def test_a_service_that_fails_is_told_of_once_and_given_the_row_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastic.logging.writer._RETRY_S", 0.01)
    said: list[str] = []
    logger = Remembers(fails=2)
    writer = Writer(logger, "runs/x", said.append)
    writer.open(0)
    rows = {step: {"a": float(step), "b": 0.0} for step in range(1, 6)}
    for step, row in rows.items():
        writer.put(step, row)
    deadline = threading.Event()
    for _ in range(600):
        if logger.there == rows:
            break
        deadline.wait(0.1)
    writer.close(WITHIN_S)
    assert logger.there == rows
    (told,) = said
    assert "Remembers: ConnectionError: the service is gone" in told


def test_a_row_that_is_never_taken_is_left_out_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastic.logging.writer._RETRY_S", 0.01)

    class Refuses(Remembers):
        def write(self, step: int, values: Mapping[str, float]) -> None:
            if "acc@1" in values:
                raise ValueError("no such name")
            super().write(step, values)

    logger, said = Refuses(), list[str]()
    writer = Writer(logger, "runs/x", said.append)
    writer.open(0)
    for step, row in enumerate([{"a": 1.0}, {"acc@1": 0.5}, {"a": 3.0}], start=1):
        writer.put(step, row)
    waits = threading.Event()
    for _ in range(600):
        if 3 in logger.there:
            break
        waits.wait(0.1)
    writer.close(WITHIN_S)
    assert logger.there == {1: {"a": 1.0}, 3: {"a": 3.0}}
    assert any("has not taken the row of step 2: no such name" in line for line in said)
    assert "lacks 1 of this worker's rows: 0 were not written in time, 1 were dropped before" in said[-1]


def test_who_writes_next_waits_until_the_one_before_has_let_go() -> None:
    """Closing may take longer than anybody waits for it, and a logger is for one thread."""
    goes_on = threading.Event()

    class ClosesSlowly(Remembers):
        def close(self) -> None:
            assert goes_on.wait(WITHIN_S)
            super().close()

        def open(self, run: str, *, after: int) -> None:
            assert not self.opened or self.closed
            super().open(run, after=after)

    logger, said = ClosesSlowly(), list[str]()
    first = Writer(logger, "runs/x", said.append)
    first.open(0)
    first.put(1, {"a": 1.0})
    first.close(0.01)
    second = Writer(logger, "runs/x", said.append, before=first)
    second.open(1)
    second.put(1, {"a": 1.0, "b": 2.0})
    goes_on.set()
    second.close(WITHIN_S)
    assert logger.opened == [0, 1]
    assert logger.there == {1: {"a": 1.0, "b": 2.0}}


def test_of_too_many_rows_the_oldest_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastic.logging.writer._ROWS_MAX", 3)
    goes_on = threading.Event()

    class Slow(Remembers):
        def write(self, step: int, values: Mapping[str, float]) -> None:
            assert goes_on.wait(WITHIN_S)
            super().write(step, values)

    logger, said = Slow(), list[str]()
    writer = Writer(logger, "runs/x", said.append)
    writer.open(0)
    writer.put(1, {"a": 1.0})
    while writer._rows:
        threading.Event().wait(0.01)
    for step in range(2, 8):
        writer.put(step, {"a": float(step)})
    goes_on.set()
    writer.close(WITHIN_S)
    assert sorted(logger.there) == [1, 5, 6, 7]
    assert said == ["Slow lacks 3 of this worker's rows: 0 were not written in time, 3 were dropped before"]


def test_a_table_goes_on_behind_a_torn_line_and_takes_new_columns(tmp_path: Path) -> None:
    path = tmp_path / "of" / "curves.csv"
    table = CSV(path)
    table.open("runs/x", after=0)
    for step in (1, 2, 3):
        table.write(step, {"loss": step / 3})
    table.write(3, {"five": 5})
    with path.open("a") as file:
        file.write("4,0.2")
    again = CSV(path)
    again.open("runs/x", after=2)
    again.write(3, {"loss": 0.1})
    with path.open(newline="") as file:
        assert list(csv.DictReader(file)) == [
            {"step": "1", "loss": repr(1 / 3), "five": ""},
            {"step": "2", "loss": repr(2 / 3), "five": ""},
            {"step": "3", "loss": "0.1", "five": ""},
        ]


def test_a_table_may_be_an_object(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "memory://curves/of.csv"
    assert fed(CSV(url), [(1, {"loss": 1.0}), (2, {"loss": 2.0})]) == []
    assert fed(CSV(url), [(2, {"loss": 3.0})], after=1) == []
    with fsspec.open(url, "r") as file:
        assert file.read() == "step,loss\n1,1.0\n2,3.0\n"


def test_event_files_hold_each_step_once(tmp_path: Path) -> None:
    assert fed(TensorBoard(tmp_path), [(step, {"loss": step}) for step in range(1, 8)]) == []
    assert fed(TensorBoard(tmp_path), [(4, {"loss": 0.5, "five": 1}), (5, {"loss": 0.25})], after=4) == []
    found = EventAccumulator(str(tmp_path), size_guidance={"scalars": 0}).Reload()
    assert [(one.step, one.value) for one in found.Scalars("loss")] == [(1, 1), (2, 2), (3, 3), (4, 4), (5, 0.25)]
    assert [one.step for one in found.Scalars("five")] == [4]


def test_a_second_in_which_another_host_wrote_is_waited_for(tmp_path: Path) -> None:
    """Its coordinator was killed a moment ago, and its name sorts behind ours: readers go by the files' names."""
    assert fed(TensorBoard(tmp_path), [(step, {"loss": step}) for step in range(1, 8)]) == []
    (path,) = tmp_path.iterdir()
    path.rename(path.with_name(path.name.replace(f".{socket.gethostname()}.", ".~.")))
    assert fed(TensorBoard(tmp_path), [(7, {"loss": 0.5}), (8, {"loss": 0.25})], after=6) == []
    found = EventAccumulator(str(tmp_path), size_guidance={"scalars": 0}).Reload().Scalars("loss")
    assert [one.step for one in found] == list(range(1, 9))
    assert found[6].value == 0.5


def test_a_file_of_a_clock_far_ahead_is_said_and_holds_nothing_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Rows behind a run have ten seconds, and waiting would change nothing."""
    (tmp_path / f"events.out.tfevents.{int(time.time()) + 3600}.elsewhere.1.0").touch()
    assert fed(TensorBoard(tmp_path), [(1, {"loss": 1.0})], within_s=9.0) == []
    assert f"{tmp_path} holds an event file of " in caplog.text


def test_a_summary_of_wandb_may_name_no_step() -> None:
    assert [last_step(summary) for summary in ({}, {"step": None}, {"step": 7.0})] == [-1, -1, 7]


def test_records_of_wandb_are_read_up_to_a_torn_one() -> None:
    def framed(kind: int, data: bytes) -> bytes:
        return bytes(4) + len(data).to_bytes(2, "little") + bytes([kind]) + data

    header, first = b":W&B\xe1\xbe\x00", framed(1, b"one")
    rest = (32 << 10) - len(header) - len(first)
    begins = framed(2, b"x" * (rest - 7))
    whole = header + first + begins + framed(4, b"y" * 5)
    assert list(records(whole)) == [b"one", b"x" * (rest - 7) + b"y" * 5]
    assert list(records(whole[:-1])) == [b"one"]
    assert list(records(header)) == []
