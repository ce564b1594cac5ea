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
from collections.abc import Callable
from pathlib import Path

import pytest

from elastic.drill.cluster import Cluster
from elastic.drill.faults import At
from elastic.events.reading import read_events
from elastic.launch.workers.start_times import APPLIED, HELD, IMPORTED, IN_RUN, LOADED, STARTED
from tests.kit.launch import Launch
from tests.kit.observed import assert_observed
from tests.kit.screen import Screen

pytestmark = pytest.mark.nightly(sample=1, of="where the status is shown")

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "tests" / "kit" / "programs"
SAYS_EACH_STEP = "tests.kit.programs.says_each_step"
WITHIN_S = 240.0


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


def to_the_end(pid: int, screen: Screen) -> None:
    """Look until the process has ended, and at what it has left there."""
    screen.until(lambda: os.waitpid(pid, os.WNOHANG) != (0, 0))
    screen.look()


def assert_whole(screen: Screen) -> None:
    """All that the script printed is there, the status was, and the terminal is as it was."""
    printed = [match[1] for row in screen.all_rows if (match := re.fullmatch(r"step (\d+) loss [\d.]+", row))]
    assert printed == [str(step) for step in range(60)]
    assert b"2 workers" in screen.written
    assert b"elastic: step" not in screen.written
    assert screen.scrolls_as_a_whole
    assert not any(screen.rows[-2:])


def test_on_a_terminal_the_last_lines_are_the_status(tmp_path: Path) -> None:
    """The script's own lines stay whole, and the terminal is given back."""
    url = tmp_path / "run"
    pid, screen = on_a_terminal(url, "--steps=60", program=SAYS_EACH_STEP)
    screen.until(lambda: screen.rows[-2].startswith("step "))
    assert " of 60 " in screen.rows[-2]
    to_the_end(pid, screen)
    assert_whole(screen)
    assert b"after the loss" not in screen.written
    screen.close()
    assert_observed(read_events(url))


def test_the_time_from_the_command_to_the_first_step_is_said_once(tmp_path: Path) -> None:
    """By whoever wonders where a start's ten seconds go; a replaced worker's start is not the command's."""
    flags = ["run", "--standalone", "--no-status", "--timing", "--nproc-per-node=2"]
    with Launch("elastic", [*flags, PROGRAMS / "small.py", tmp_path / "run", "--steps=30", "--unhurried=2"]) as launch:
        output = launch.succeed(within_s=WITHIN_S)

    assert output.count("from the command to a step of 2 workers: ") == 1, output
    rows = re.findall(r"^ +(\d+\.\d\d) s  (.*)$", output, re.M)
    assert [what for _, what in rows] == [LOADED, IMPORTED, STARTED, IN_RUN, HELD, APPLIED], output
    assert [float(at) for at, _ in rows] == sorted(float(at) for at, _ in rows)


def test_under_torchrun_rank_0_shows_the_status(tmp_path: Path) -> None:
    """Its agent is not ours, and people watch such a run as well; others have only lines to say."""
    pid, screen = on_a_terminal(tmp_path / "run", "--steps=60", module="torch.distributed.run", program=SAYS_EACH_STEP)
    to_the_end(pid, screen)
    assert_whole(screen)
    screen.close()


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT])
def test_an_agent_that_is_killed_or_told_to_end_gives_the_terminal_back(tmp_path: Path, sent: signal.Signals) -> None:
    """What a person types next scrolls as ever, and nobody has to know of `reset`."""
    pid, screen = on_a_terminal(tmp_path / "run", "--steps=4000")
    screen.until(lambda: " of 4,000 " in screen.rows[-2])
    assert not screen.scrolls_as_a_whole
    os.kill(pid, sent)
    to_the_end(pid, screen)
    screen.until(lambda: screen.scrolls_as_a_whole and not any(screen.rows[-2:]))
    screen.close()


def test_a_worker_that_is_killed_leaves_the_status_where_it_is(tmp_path: Path) -> None:
    pid, screen = on_a_terminal(tmp_path / "run", "--steps=4000")
    screen.until(lambda: "2 workers" in screen.rows[-1])
    events = read_events(tmp_path / "run")
    worker = next(event["worker"] for event in events if event["event"] == "view_formed" and event.get("rank") == 1)
    os.kill(int(worker.rsplit("-", 2)[1]), signal.SIGKILL)
    screen.until(lambda: "lost 1, the last " in screen.rows[-1] and " of 4,000 " in screen.rows[-2])
    os.kill(pid, signal.SIGINT)
    to_the_end(pid, screen)
    assert screen.scrolls_as_a_whole
    screen.close()


def on_a_terminal(
    url: Path, *options: str, module: str = "elastic", program: str = "tests.kit.programs.small"
) -> tuple[int, Screen]:
    """Start a launcher with two workers on a terminal of 30 lines; return its pid, and the terminal."""
    launcher = [sys.executable, "-m", module, *["run"] * (module == "elastic")]
    command = [*launcher, "--standalone", "--nproc-per-node=2", "-m", program, str(url)]
    pid, terminal = pty.fork()
    if pid == 0:  # whose terminal has its size before anybody asks
        environ = {**os.environ, "TERM": "xterm-256color"}
        os.chdir(ROOT)
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 150, 0, 0))
        os.execve(sys.executable, [*command, "--unhurried=3", *options], environ)
    return pid, Screen(30, 150, terminal)
