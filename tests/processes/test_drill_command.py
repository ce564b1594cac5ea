"""`elastic drill`, as a person runs it: real workers, real faults, and nothing left of it afterwards.

What the command line refuses is tests/pure/test_drill_plan.py's.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic.drill.command import BROKEN, CANNOT, HOLDS, main
from elastic.drill.plan import DrillPlan
from elastic.drill.processes import MARK
from elastic.observe.events import read_events

PROGRAMS = Path(__file__).parents[1] / "kit" / "programs"
SMALL = str(PROGRAMS / "small.py")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder; and drills/, in which temporary folders are made. (Deep as it is: longer than a socket's path
    may be.)"""
    monkeypatch.chdir(tmp_path)
    drills = tmp_path / "drills"
    drills.mkdir()
    monkeypatch.setenv("TMPDIR", str(drills))
    monkeypatch.setattr(tempfile, "tempdir", str(drills))
    yield tmp_path
    assert marked_in(drills) == []


def marked_in(drills: Path) -> list[str]:
    """The commands of processes that belong to a drill in there."""
    mark = f"{MARK}={drills}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark in (entry / "environ").read_bytes():
                    found.append((entry / "cmdline").read_bytes().decode())
            except OSError:
                continue  # it has ended
    return found


def struck(run: Path) -> list[str]:
    """The faults that the workers of a run recorded, in order."""
    return [event["fault"] for event in read_events(run) if event["event"] == "fault"]


def test_a_drill_of_all_that_happens_to_fleets_holds(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Killed, stopped, told to leave, joined, all lost and resumed smaller: and the script's own URL is not touched."""
    faults = (
        "--kill 1@step=4,phase=in_backward --join @step=5 --stop 2@step=20 --leave 1@step=90 --flip-bytes @step=104 "
        "--lose-all @step=105"
    )
    script = [SMALL, *faults.split(), "--", "own", "--steps", "120", "--unhurried", "4"]
    assert main(["--workers", "3", "--resume-workers", "2", *script]) == HOLDS, capsys.readouterr().out
    shown = capsys.readouterr().out

    assert shown.count("✓") == 10
    assert "Every promise held" in shown
    assert "2,880, each 1×" in shown
    assert "too late to join" not in shown
    assert list((here / "drills").iterdir()) == []
    assert not (here / "own").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a small disk is mounted")
def test_a_disk_that_is_full_and_one_that_is_read_only_cost_saves_and_no_step(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And an agent that is killed, of two, is no failure of the run."""
    faults = "--disk-full @step=5,seconds=3 --read-only @step=60,seconds=0.5 --kill-agent 1@step=60"
    script = [SMALL, "--", "own", "--steps", "80", "--save-every", "10", "--unhurried", "3"]
    assert main(["--workers", "2", "--nodes", "2", *faults.split(), *script]) == HOLDS, capsys.readouterr().out
    shown = capsys.readouterr().out

    assert re.search(r"the save of step \d+ failed: .*No space left on device", shown)
    assert str(here) not in Path("/proc/mounts").read_text()
    assert list((here / "drills").iterdir()) == []


def test_a_plan_is_saved_and_strikes_again_the_same_faults_in_the_same_order(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a seed drew, and how many workers it was drawn for, is in the file; the printed command needs no more."""
    drawing = "--workers 2 --seed 12 --faults kill,exception,stop --rate 0.25"
    command = ["--keep", "--folder", "first", *drawing.split(), SMALL, "--", "own", "--steps", "12"]
    assert main(command) == HOLDS, capsys.readouterr().out
    shown = capsys.readouterr().out
    first = struck(here / "first" / "disturbed-drill")
    assert len(first) == 3

    replay = shlex.split(shown.rpartition("replay")[2])
    assert replay[:2] == ["elastic", "drill"]
    assert main(["--keep", "--folder", "again", *replay[2:]]) == HOLDS, capsys.readouterr().out
    assert struck(here / "again" / "disturbed-drill") == first
    assert (here / "again" / "plan.json").read_text() == (here / "first" / "plan.json").read_text()


def test_all_that_stands_around_a_worker_can_fail(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Helpers are killed, memory runs out, data hangs, storage fails: and the script has loader processes."""
    faults = (
        "--slow 2@step=2,shares=5 --exception 1@step=6 --oom 2@step=12,phase=forward --kill-warm 1@step=16 "
        "--kill-writer @step=60 --kill-loader 2@step=66 --stick-loader 1@step=70 --kill-agent 1@step=90 "
        "--hang-limit 3 --storage-errors 0.03 --seed 4"
    )
    script = [SMALL, "--", "own", "--steps", "120", "--num-workers", "1", "--unhurried", "3"]
    assert main(["--workers", "3", *faults.split(), *script]) == HOLDS, capsys.readouterr().out
    shown = capsys.readouterr().out

    assert "never struck" not in shown
    assert "failed" in shown.partition("storage: ")[2]
    assert list((here / "drills").iterdir()) == []


@pytest.mark.parametrize(
    ("program", "says", "look"),
    [
        ("rank_sampler", "depends on which worker reads it", 'random.Random(7 + int(os.environ.get("LOCAL_RANK"'),
        ("global_counter", "depends on what was read before in the same process", "reads += 1"),
        ("unseeded", "they are initialised without a seed", "model = nn.Linear(8, 2)"),
    ],
)
def test_a_bug_of_the_script_is_told_in_words_that_lead_to_the_line(
    here: Path, capsys: pytest.CaptureFixture[str], program: str, says: str, look: str
) -> None:
    """Its storage is kept, its own URL is not touched, and the command that replays the faults is printed."""
    script = str(PROGRAMS / f"{program}.py")
    assert main([script, "--workers", "2", "--kill", "1@step=5"]) == BROKEN
    shown = capsys.readouterr().out

    assert says in shown
    assert re.search(rf"look  {re.escape(script)}:\d+  {re.escape(look)}", shown)
    assert "✗  weights, optimizer and sums are those of the undisturbed run" in shown
    assert re.search(r"without faults +\d+\.\d\d s  worker 0 .*\n +with faults +\d+\.\d\d s  worker \d ", shown)
    (kept,) = (here / "drills").iterdir()
    assert f"kept    {kept}" in shown
    assert f"elastic drill {script} --plan {kept}/plan.json" in shown
    assert DrillPlan.from_json((kept / "plan.json").read_text()).workers == 2
    assert not (here / "runs").exists()


def test_a_script_that_fails_without_faults_is_shown_and_no_verdict_is_given(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It cannot be said what faults do to it."""
    (here / "broken.py").write_text("import elastic\nraise SystemExit('no data here')\n")
    assert main(["broken.py", "--kill", "1@step=1"]) == CANNOT
    shown = capsys.readouterr()

    assert "never came to `with elastic.Run(…)`" in shown.err
    assert "no data here" in shown.err
    assert "promised" not in shown.out
    assert list((here / "drills").iterdir()) == []


def test_a_fault_whose_moment_never_comes_is_no_success(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The drill has not done what it was to."""
    assert main([SMALL, "--workers", "2", "--kill", "1@step=50", "--", "own", "--steps", "4"]) == CANNOT
    shown = capsys.readouterr().out

    assert "✗" not in shown
    assert "never struck: step 50: SIGKILL to worker 1" in shown


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_drill_that_is_told_to_end_leaves_nothing(here: Path, number: signal.Signals) -> None:
    """Processes, shared memory and storage go, at once and whichever run is under way."""
    before = set(os.listdir("/dev/shm"))
    drills = here / "drills"
    plan = ["--workers", "3", "--kill", "1@step=3"] if number == signal.SIGTERM else ["--kill", "1@step=3000"]
    steps = "8" if number == signal.SIGTERM else "4000"
    script = [SMALL, *plan, "--", "own", "--steps", steps, "--num-workers", "1", "--unhurried", "99"]
    command = [sys.executable, "-m", "elastic", "drill", *script]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environ) as drill:
        assert drill.stdout is not None
        shown = ""
        awaited = "SIGKILL to worker 1\n" if number == signal.SIGTERM else "it begins at step 0"
        while shown.count(awaited) <= (number == signal.SIGTERM):
            line = drill.stdout.readline()
            assert line, shown
            shown += line
        assert marked_in(drills) != [], shown
        drill.send_signal(number)
        shown += drill.communicate(timeout=60)[0]

    assert drill.returncode == 128 + number, shown
    assert f"ended by {number.name}" in shown
    assert marked_in(drills) == []
    assert list(drills.iterdir()) == []
    assert {name for name in os.listdir("/dev/shm") if name not in before and "torch_" in name} == set()
