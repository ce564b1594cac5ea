"""Notices by commands: what a command prints, and what Slurm's `squeue` says of the end of a job."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from elastic.preemption.sources.command import Command
from elastic.preemption.sources.command_output import CommandFailed, output_of
from elastic.preemption.sources.slurm import Slurm
from elastic.preemption.sources.source import SourceFailed

LONG_S = 60.0


def test_what_a_command_prints_is_a_notice_and_silence_is_none(tmp_path: Path) -> None:
    says = tmp_path / "says"
    source = Command(f"test -e {says} && cat {says}", clock=lambda: 100.0)
    assert source.look() == []
    says.write_text("leave 60 drained")
    first = source.look()[0]
    says.write_text("leave 55 drained")
    assert (first.by_s, source.look()[0].id) == (160.0, first.id), "seconds that count down are one notice"
    says.write_text("<html>")
    with pytest.raises(SourceFailed, match="expected nothing, or a line"):
        source.look()


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("exit 3", "ended with status 3"),
        ("kill -9 $$", "status unknown"),
        ("yes", "more than 4,096"),
        ("no-such", "127"),
    ],
)
def test_a_command_that_fails_says_how(command: str, said: str) -> None:
    with pytest.raises(CommandFailed, match=said):
        output_of(command, within_s=LONG_S)


def test_a_command_that_takes_too_long_is_killed_with_what_it_started(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    with pytest.raises(CommandFailed, match=r"took more than 2 s"):
        output_of(f"sleep 600 & echo $! > {pid}; wait", within_s=2.0)
    until_s = time.monotonic() + LONG_S
    while Path(f"/proc/{pid.read_text().strip()}").exists() and time.monotonic() < until_s:
        if "\nState:\tZ" in Path(f"/proc/{pid.read_text().strip()}/status").read_text():
            break
        time.sleep(0.01)
    assert time.monotonic() < until_s


def squeue(folder: Path, says: str) -> dict[str, str]:
    """On the PATH, in front of all others."""
    script = folder / "squeue"
    script.write_text(f"#!/bin/sh\necho '{says}'\n")
    script.chmod(0o755)
    return {"SLURM_JOB_ID": "7"}


def test_slurms_end_is_a_notice_some_time_ahead_and_follows_a_limit_that_is_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    source = Slurm({**squeue(tmp_path, "10:00"), "SLURM_RESTART_COUNT": "2"}, lead_s=120, clock=lambda: 50.0)
    assert (source.look(), source.every_s) == ([], 300.0)
    squeue(tmp_path, "3:00")
    assert (source.look(), source.every_s) == ([], 60.0)
    squeue(tmp_path, "1:40")
    (end,) = source.look()
    assert end.by_s == 150.0
    assert end.why == "Slurm's job 7 ends, which was started again 2 times before"
    squeue(tmp_path, "5:00:00")
    assert source.look() == []
    squeue(tmp_path, "UNLIMITED")
    assert source.look() == []


def test_a_task_of_an_array_asks_for_itself_and_not_for_the_array(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The array has the id of one of its tasks, and squeue prints a line for each of them."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    asked = tmp_path / "asked"
    job = squeue(tmp_path, f"1:00' && echo \"$@\" >{asked} && : '")
    task = {**job, "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}
    assert Slurm(task, clock=lambda: 50.0).look()[0].by_s == 110.0
    assert "--jobs=7_3 " in asked.read_text()


def test_without_squeue_slurms_end_is_what_the_job_was_told_at_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    job = squeue(tmp_path, "no such job")
    told = Slurm({**job, "SLURM_JOB_END_TIME": "1100"}, clock=lambda: 50.0, wall=lambda: 1000.0)
    assert told.look()[0].by_s == 150.0
    with pytest.raises(SourceFailed, match="--signal=TERM@120"):
        Slurm(job).look()
