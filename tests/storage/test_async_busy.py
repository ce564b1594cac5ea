"""What happens when saves are due faster than they can be written, or the storage does not answer."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from elastic_checkpoint import (
    CheckpointError,
    SaveDropped,
)
from elastic_checkpoint.testing import Hang, Plan
from tests.kit.s3 import S3Server
from tests.storage.beside import WITHIN_S, Make, gone, state, writers
from tests.storage.gate import Gate, gate

pytestmark = pytest.mark.usefixtures("nothing_is_left")


@pytest.fixture
def slow(s3: S3Server) -> Iterator[Gate]:
    """A gate before the S3 server."""
    port = urlsplit(s3.endpoint_url).port
    assert port is not None
    with gate(port) as one:
        yield one


def behind(slow: Gate, s3: S3Server) -> dict[str, Any]:
    return {**s3.options, "endpoint_url": f"http://127.0.0.1:{slow.port}"}


@pytest.mark.nightly(sample=1)
@pytest.mark.parametrize("when_busy", ["wait", "skip", "replace"])
def test_a_third_save_does_what_when_busy_says(
    when_busy: str, slow: Gate, s3: S3Server, tmp_path: Path, checkpointer: Make
) -> None:
    url, options = f"s3://runs/{tmp_path.name}", behind(slow, s3)
    runs = checkpointer(url, storage_options=options, when_busy=when_busy, keep=10, log=lambda line: None)
    runs.save(1, state(1), blocking=False).wait(WITHIN_S)
    runs.wait()
    slow.shut()
    savings = [runs.save(2, state(2), blocking=False)]
    assert slow.arrived.wait(WITHIN_S)
    savings.append(runs.save(3, state(3), blocking=False))
    opening = threading.Timer(0.5, slow.open)
    if when_busy == "wait":
        opening.start()
    savings.append(runs.save(4, state(4), blocking=False))
    slow.open()
    runs.wait()
    opening.cancel()

    dropped = {"wait": [], "skip": [4], "replace": [3]}[when_busy]
    for saving in savings:
        if saving.step in dropped:
            with pytest.raises(SaveDropped) as caught:
                saving.wait(WITHIN_S)
            assert caught.value.step == saving.step
        else:
            assert saving.wait(WITHIN_S).step == saving.step
    assert [commit.step for commit in runs.list()] == [step for step in (4, 3, 2, 1) if step not in dropped]


def test_a_newer_save_does_not_replace_one_that_was_begun(
    slow: Gate, s3: S3Server, tmp_path: Path, checkpointer: Make
) -> None:
    """The older one is finished, so that with saves due all the time some checkpoint is always committed."""
    url, options = f"s3://runs/{tmp_path.name}", behind(slow, s3)
    runs = checkpointer(url, storage_options=options, when_busy="replace", keep=100)
    runs.save(1, state(1), blocking=False).wait(WITHIN_S)
    runs.wait()
    slow.shut()
    first = runs.save(2, state(2), blocking=False)
    assert slow.arrived.wait(WITHIN_S)
    later = [runs.save(step, state(step), blocking=False) for step in range(3, 20)]
    assert [saving.done for saving in later] == [True] * 16 + [False]
    slow.open()
    assert first.wait(WITHIN_S).step == 2
    assert later[-1].wait(WITHIN_S).step == 19


def test_a_storage_that_never_answers_ends_the_save_at_its_deadline(
    slow: Gate, s3: S3Server, tmp_path: Path, checkpointer: Make
) -> None:
    lines: list[str] = []
    url, options = f"s3://runs/{tmp_path.name}", behind(slow, s3)
    runs = checkpointer(url, storage_options=options, finish_s=1.0, log=lines.append)
    runs.save(1, state(1), blocking=False).wait(WITHIN_S)
    runs.wait()
    slow.shut()
    saving = runs.save(2, state(2), blocking=False)
    with pytest.raises(TimeoutError, match="step 2 is still under way"):
        saving.wait(0.01)
    [writer] = writers()
    assert gone(writer)
    slow.open()
    with pytest.raises(CheckpointError, match="not finished within 1 s"):
        saving.wait(WITHIN_S)
    assert any("step 2 could not be saved" in line for line in lines)
    assert runs.save(3, state(3), blocking=False).wait(WITHIN_S).step == 3


def test_a_writer_that_no_signal_ends_holds_nobody_up(
    slow: Gate, s3: S3Server, tmp_path: Path, checkpointer: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its kernel may wait for a disk for ever. Here its end of the socket stays open, which looks the same."""
    monkeypatch.setattr("elastic_checkpoint.save.writer.process._KILLED_S", 1.0)
    url, options = f"s3://runs/{tmp_path.name}", behind(slow, s3)
    runs = checkpointer(url, storage_options=options, finish_s=1.0, log=lambda line: None)
    runs.save(1, state(1), blocking=False).wait(WITHIN_S)
    [writer] = writers()
    watched = os.pidfd_open(writer.pid)
    pidfd_getfd = 438
    held = ctypes.CDLL(None, use_errno=True).syscall(pidfd_getfd, watched, int(writer.cmdline()[-2]), 0)
    os.close(watched)
    assert held >= 0
    try:
        slow.shut()
        saving = runs.save(2, state(2), blocking=False)
        assert gone(writer)
        slow.open()
        with pytest.raises(CheckpointError, match="not finished within 1 s"):
            saving.wait(WITHIN_S)
        assert runs.save(3, state(3), blocking=False).wait(WITHIN_S).step == 3
    finally:
        os.close(held)


@pytest.mark.parametrize("hanging", ["*", "*1.*"], ids=["all objects", "some"])
def test_saves_that_are_given_up_leave_the_next_one_the_storage(
    tmp_path: Path, hanging: str, checkpointer: Make
) -> None:
    """One hangs, and one waits behind it."""
    plan = Plan(Hang(600.0, on="write", path=f"*/s000000001-*/{hanging}"))
    options = {"target_protocol": "file", "target_options": {"auto_mkdir": True}, "faults": plan.document()}
    said: list[str] = []
    runs = checkpointer(f"faulty://{tmp_path}/run", storage_options=options, shard_bytes=5000, log=said.append)
    runs.give_up_saves()
    first, waiting = (runs.save(step, state(step), blocking=False) for step in (1, 2))
    runs.give_up_saves()
    for one in (first, waiting):
        with pytest.raises(SaveDropped, match="given up"):
            one.wait(WITHIN_S)
    assert runs.save(3, state(3), blocking=False).wait(WITHIN_S).step == 3
    runs.give_up_saves()
    assert [commit.step for commit in runs.list()] == [3]
    assert all(one.ok for one in runs.verify())
    assert said == []
