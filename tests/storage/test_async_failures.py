"""Saves beside training that fail: who is told, when the run stops, and what holds nobody up."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

import pytest

from elastic_checkpoint import (
    Checkpointer,
    CheckpointError,
    ClaimLost,
    StorageError,
)
from tests.kit.forkserver import piped
from tests.kit.s3 import S3Server
from tests.storage.beside import WITHIN_S, Make, newest, state, writers

pytestmark = pytest.mark.usefixtures("nothing_is_left")


def test_a_failure_is_reported_and_after_three_the_next_save_stops_the_run(tmp_path: Path, checkpointer: Make) -> None:
    lines: list[str] = []
    folder = tmp_path / "runs"
    runs = checkpointer(folder, log=lines.append, retry_s=0.01)
    runs.save(1, state(1), blocking=False).wait(WITHIN_S)
    (folder / "data").rename(folder / "elsewhere")
    (folder / "data").write_bytes(b"in the way")
    for step in (2, 3, 4):
        saving = runs.save(step, state(step), blocking=False)
        with pytest.raises(StorageError, match="a file lies where a folder is needed") as caught:
            saving.wait(WITHIN_S)
        assert caught.value.operation == "write"
    said = [line for line in lines if "could not be saved" in line]  # not what its sweep met
    assert [f"step {step} could not be saved" in line for step, line in zip((2, 3, 4), said, strict=True)] == [True] * 3
    with pytest.raises(StorageError):
        runs.wait()
    with pytest.raises(CheckpointError, match="3 saves in a row failed") as stopped:
        runs.save(5, state(5), blocking=False)
    assert isinstance(stopped.value.__cause__, StorageError)

    (folder / "data").unlink()
    (folder / "elsewhere").rename(folder / "data")
    assert runs.save(6, state(6), blocking=False).wait(WITHIN_S).step == 6  # whoever catches the error may go on
    assert newest(folder) == 6


def test_a_job_that_was_replaced_stops_at_the_save_after(tmp_path: Path, checkpointer: Make) -> None:
    old, new = checkpointer(tmp_path, log=lambda line: None), checkpointer(tmp_path, take_over=True)
    old.save(1, state(1), blocking=False).wait(WITHIN_S)
    new.claim()
    with pytest.raises(ClaimLost) as caught:
        old.save(2, state(2), blocking=False).wait(WITHIN_S)
    assert (caught.value.ours, caught.value.newest) == (1, 2)
    with pytest.raises(ClaimLost):
        old.save(3, state(3), blocking=False)
    assert [commit.step for commit in new.list()] == [1]


def test_without_memory_for_the_arena_training_waits_and_the_log_says_how_much_it_takes(tmp_path: Path) -> None:
    program = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))\n"
        "import sys, elastic_checkpoint\n"
        "from tests.storage.beside import state\n"
        "with elastic_checkpoint.Checkpointer(sys.argv[1], shard_bytes=2**19, log=print) as runs:\n"
        "    runs.warm(state(1, 50_000))\n"
        "    for step in (1, 2): print(runs.save(step, state(step, 50_000), blocking=False).wait(60).step)\n"
    )
    with piped([sys.executable, "-c", program, str(tmp_path)]) as trainer:
        output, errors = trainer.communicate(timeout=120)
        assert trainer.returncode == 0, errors
    [said, *steps] = output.splitlines()
    assert "training waits for each commit" in said
    assert "bytes of shared memory are needed" in said
    assert steps == ["1", "2"]
    assert newest(tmp_path) == 2


def test_credentials_reach_the_writer_by_no_command_line_and_no_environment(
    s3: S3Server, tmp_path: Path, checkpointer: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="elastic_checkpoint")
    runs = checkpointer("s3://no-such-bucket-here/x", storage_options=s3.options, retry_s=1)
    good = checkpointer(f"s3://runs/{tmp_path.name}", storage_options=s3.options)
    good.save(1, state(1), blocking=False).wait(WITHIN_S)
    [writer] = writers()
    seen = json.dumps([writer.cmdline(), writer.environ()])
    with pytest.raises(StorageError) as caught:
        runs.save(1, state(1), blocking=False)
    seen += str(caught.value) + "".join(record.getMessage() for record in caplog.records)
    assert s3.options["secret"] not in seen
    assert s3.options["key"] not in seen


def test_a_log_that_takes_nothing_holds_no_save_up(tmp_path: Path) -> None:
    def broken(line: str) -> None:
        raise BrokenPipeError(line)

    with Checkpointer(tmp_path / "run", log=broken, retry_s=0.1) as runs:
        runs.save(1, state(1), blocking=False).wait(WITHIN_S)
        (tmp_path / "run" / "data").rename(tmp_path / "away")
        (tmp_path / "run" / "data").write_text("no folder")
        for step in (2, 3, 4):  # more than there are halves
            with pytest.raises(StorageError):
                runs.save(step, state(step), blocking=False).wait(WITHIN_S)
        (tmp_path / "run" / "data").unlink()
        (tmp_path / "away").rename(tmp_path / "run" / "data")
        with pytest.raises(CheckpointError, match="3 saves in a row failed"):
            runs.save(5, state(5), blocking=False)
        runs.save(5, state(5), blocking=False).wait(WITHIN_S)
    assert newest(tmp_path / "run") == 5
