"""What `elastic run` shows while it runs, on a terminal and elsewhere; with real workers and a real kill."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from elastic.drill.cluster import Cluster
from elastic.drill.faults import At
from elastic.events.reading import read_events
from elastic.launch.workers.start_times import APPLIED, HELD, IMPORTED, IN_RUN, LOADED, STARTED
from tests.kit.launch import Launch
from tests.kit.observed import assert_observed

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "tests" / "kit" / "programs"
SAYS_EACH_STEP = "tests.kit.programs.says_each_step"
WITHIN_S = 240.0


@pytest.mark.nightly(sample=1, of="where the status is shown")
def test_where_there_is_no_terminal_each_change_is_a_line(elastic_cluster: Callable[..., Cluster]) -> None:
    """A log file is read the next morning: who was lost, why, and what it cost."""
    run = elastic_cluster(workers=3, launcher="elastic", steps=40, seed=7, awaits=3)
    run.kill(worker=1, when=At(step=8, phase="forward"))
    end = run.finish(within_s=WITHIN_S)

    assert end.exit_code == 0, end.output
    assert len(re.findall(r" after the loss of 1 \(SIGKILL\)[^;\n]*; goodput ", end.output)) == 1, end.output
    assert end.output.count("3 workers, 1 joined; goodput ") == 1, end.output
    assert "finished: 40 steps, 1 lost on the way" in end.output
    assert "\x1b" not in end.output


@pytest.mark.nightly(sample=1, of="where the status is shown")
@pytest.mark.parametrize("launcher", ["elastic", "torch.distributed.run", None])
def test_where_there_is_no_terminal_one_worker_says_how_far_the_run_is(tmp_path: Path, launcher: str | None) -> None:
    """Nothing for hours looks like a hang; a line of each worker would be as many as there are."""
    command = [SAYS_EACH_STEP, tmp_path / "run", "--steps=12"]
    if launcher is not None:
        flags = [*["run"] * (launcher == "elastic"), "--standalone", "--nproc-per-node=2", "-m"]
        command = [launcher, *flags, *command]
    with Launch(str(command[0]), command[1:]) as launch:
        output = launch.succeed(within_s=WITHIN_S)

    said = re.findall(r"^[\d:]{8}  elastic: step (\d+) of 12,", output, re.M)
    assert said == [str(step) for step in range(1, 13)], output


def read_to_the_end(pid: int, terminal: int) -> bytes:
    """All that the process shows there, until it has ended."""
    shown = b""
    deadline = time.monotonic() + WITHIN_S
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        assert time.monotonic() < deadline, shown
        shown += read(terminal)
        time.sleep(0.02)
    shown += read(terminal)
    os.close(terminal)
    return shown


@pytest.mark.nightly(sample=1, of="where the status is shown")
def test_on_a_terminal_the_last_lines_are_the_status(tmp_path: Path) -> None:
    """The script's own lines stay whole, and the terminal is given back."""
    url = tmp_path / "run"
    pid, terminal = on_a_terminal(url, "--steps=60", program=SAYS_EACH_STEP)
    shown = read_to_the_end(pid, terminal)

    assert b" of 60 " in shown
    assert b"elastic: step" not in shown
    assert b"2 workers" in shown
    assert shown.count(b"\x1b[r") == 1
    assert shown.rindex(b"\x1b[r") > shown.rindex(b" of 60 ")
    for step in range(60):
        assert f"step {step} loss ".encode() in shown
    assert b"after the loss" not in shown
    assert_observed(read_events(url))


@pytest.mark.nightly(sample=1, of="where the status is shown")
def test_the_time_from_the_command_to_the_first_step_is_said_once(tmp_path: Path) -> None:
    """By whoever wonders where a start's ten seconds go; a replaced worker's start is not the command's."""
    flags = ["run", "--standalone", "--no-status", "--timing", "--nproc-per-node=2"]
    with Launch("elastic", [*flags, PROGRAMS / "small.py", tmp_path / "run", "--steps=30", "--unhurried=2"]) as launch:
        output = launch.succeed(within_s=WITHIN_S)

    assert output.count("from the command to a step of 2 workers: ") == 1, output
    rows = re.findall(r"^ +(\d+\.\d\d) s  (.*)$", output, re.M)
    assert [what for _, what in rows] == [LOADED, IMPORTED, STARTED, IN_RUN, HELD, APPLIED], output
    assert [float(at) for at, _ in rows] == sorted(float(at) for at, _ in rows)


@pytest.mark.nightly(sample=1, of="where the status is shown")
def test_under_torchrun_rank_0_shows_the_status(tmp_path: Path) -> None:
    """Its agent is not ours, and people watch such a run as well; others have only lines to say."""
    pid, terminal = on_a_terminal(
        tmp_path / "run", "--steps=60", module="torch.distributed.run", program=SAYS_EACH_STEP
    )
    shown = read_to_the_end(pid, terminal)

    assert b"2 workers" in shown
    assert b"elastic: step" not in shown
    assert shown.count(b"\x1b[r") == 1
    assert shown.rindex(b"\x1b[r") > shown.rindex(b" of 60 ")
    assert [f"step {step} loss ".encode() in shown for step in range(60)] == [True] * 60


@pytest.mark.nightly(sample=1, of="where the status is shown")
def test_an_agent_that_is_killed_gives_the_terminal_back(tmp_path: Path) -> None:
    """What a person types next scrolls as ever, and nobody has to know of `reset`."""
    pid, terminal = on_a_terminal(tmp_path / "run", "--steps=4000")
    shown = b""
    deadline = time.monotonic() + WITHIN_S
    while b" of 4,000 " not in shown:
        assert time.monotonic() < deadline, shown
        shown += read(terminal)
        time.sleep(0.02)
    assert b"\x1b[r" not in shown
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    while b"\x1b[r" not in shown:
        assert time.monotonic() < deadline, shown
        shown += read(terminal)
        time.sleep(0.02)
    os.close(terminal)

    assert b"\x1b7\x1b[r\x1b[29;1H\x1b[2K\x1b[30;1H\x1b[2K\x1b8" in shown[shown.rindex(b" of 4,000 ") :]


def on_a_terminal(
    url: Path, *options: str, module: str = "elastic", program: str = "tests.kit.programs.small"
) -> tuple[int, int]:
    """A launcher with two workers, on a terminal of 30 lines: its pid, and the terminal."""
    launcher = [sys.executable, "-m", module, *["run"] * (module == "elastic")]
    command = [*launcher, "--standalone", "--nproc-per-node=2", "-m", program, str(url)]
    pid, terminal = pty.fork()
    if pid == 0:
        environ = {**os.environ, "TERM": "xterm-256color"}
        os.chdir(ROOT)
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        os.execve(sys.executable, [*command, "--unhurried=3", *options], environ)
    os.set_blocking(terminal, False)
    return pid, terminal


def read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # nothing yet, or the end
        return b""
