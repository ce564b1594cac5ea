"""`elastic drill`, as a person runs it: real workers, real faults, and nothing left of it afterwards.

What the command line refuses is tests/pure/test_drill_plan.py's.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import s3fs

from elastic.drill import command as drill_command
from elastic.drill.command import BROKEN, CANNOT, HOLDS
from elastic.drill.machine.processes import MARK
from elastic.drill.plan.drill_plan import DrillPlan
from elastic.events.reading import read_events
from tests.kit.forked_drill import ForkedDrill
from tests.kit.s3 import s3_server

PROGRAMS = Path(__file__).parents[1] / "kit" / "programs"
SMALL = str(PROGRAMS / "small.py")
UNDISTURBED = "weights, optimizer and sums are those of the undisturbed run"
SAME = "an example is the same wherever and whenever it is read"


def main(argv: Sequence[str]) -> int:
    return drill_command.main(argv, drill=ForkedDrill)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder; and drills/, in which temporary folders are made. (Deep as it is: longer than a socket's path
    may be.)"""
    monkeypatch.chdir(tmp_path)
    drills = tmp_path / "drills"
    drills.mkdir()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))  # torch's own, made by any optimizer
    monkeypatch.setenv("TMPDIR", str(drills))
    monkeypatch.setattr(tempfile, "tempdir", str(drills))
    yield tmp_path
    assert marked_in(drills) == []


@pytest.fixture
def holds(here: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What a drill of small.py has shown, of which every promise held: its options, and behind "--" the script's."""

    def drilled(options: str, script: str = "") -> str:
        status = main([SMALL, *shlex.split(options), "--", "own", *script.split()])
        shown = capsys.readouterr().out
        assert status == HOLDS, shown
        return shown

    return drilled


def pids_in(drills: Path) -> list[int]:
    """The processes that belong to a drill in there."""
    mark = f"{MARK}={drills}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended
                if mark in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
    return found


def marked_in(drills: Path) -> list[str]:
    """The commands of these processes."""
    found = []
    for pid in pids_in(drills):
        with contextlib.suppress(OSError):
            found.append(Path(f"/proc/{pid}/cmdline").read_bytes().decode())
    return found


def struck(run: Path) -> list[str]:
    """The faults that the workers of a run recorded, in order."""
    return [event["fault"] for event in read_events(run) if event["event"] == "fault"]


@pytest.mark.nightly(sample=1, of="what a drill strikes")
def test_a_drill_of_all_that_happens_to_fleets_holds(here: Path, holds: Callable[..., str]) -> None:
    """Killed, stopped, told to leave, joined, all lost and resumed smaller: and the script's own URL is not touched."""
    shown = holds(
        "--workers 3 --resume-workers 2 --kill 1@step=4,phase=in_backward --join @step=5 --stop 2@step=20 "
        "--leave 1@step=90 --flip-bytes @step=104 --lose-all @step=105",
        "--steps 120 --unhurried 4",
    )
    assert shown.count("✓") == 10
    assert "Every promise held" in shown
    assert "2,880, each 1×" in shown
    assert "too late to join" not in shown
    assert list((here / "drills").iterdir()) == []
    assert not (here / "own").exists()


@pytest.mark.nightly(sample=1, of="what a drill strikes")
def test_nodes_that_join_are_waited_for_and_take_part_at_once(here: Path, holds: Callable[..., str]) -> None:
    """However short the run is: a replay then has them join at the same steps. And nobody who waits counts as hung."""
    joins = "--workers 1 --join @step=2 --join @step=5 --join @step=8 --hang-limit 1"
    shown = holds(f"--keep --folder kept {joins}", "--steps 16")
    assert "too late to join" not in shown
    assert shown.count("the node is there") == 3
    events = read_events(here / "kept" / "disturbed-drill")
    assert [event["there"] for event in events if event["event"] == "awaited"] == [True] * 3
    applied = {event["step"]: event["world_size"] for event in events if event["event"] == "step_applied"}
    assert [applied[step] for step in (1, 4, 7, 11)] == [1, 2, 3, 4]


@pytest.mark.nightly(sample=1, of="what a drill strikes")
def test_a_recorded_fleet_is_replayed_with_nodes_that_die_and_join(here: Path, holds: Callable[..., str]) -> None:
    (here / "fleet.csv").write_text("t_s,op,node\n0,add,a\n0,add,b\n30,remove,a\n60,add,c\n120,remove,b\n")
    shown = holds("--keep --folder kept --workers 2 --trace fleet.csv", "--steps 24")
    assert "too late to join" not in shown
    events = read_events(here / "kept" / "disturbed-drill")
    sizes = [event["world_size"] for event in events if event["event"] == "view_formed" and event["rank"] == 0]
    assert sizes == [2, 1, 2]


@pytest.mark.nightly(sample=1, of="what a drill strikes")
@pytest.mark.parametrize(("option", "every"), [("", 4), ("--save-every 3", 3), ("--save-every script", None)])
def test_a_run_that_loses_all_has_saved_before(
    here: Path, holds: Callable[..., str], option: str, every: int | None
) -> None:
    """Of a script that saves every ten minutes a drill of seconds would show nothing else."""
    drill = f"--keep --folder kept --workers 2 {option} --lose-all @step=11"
    shown = holds(drill, "--steps 32 --save-every 10min")
    assert f"goes on from step {11 // every * every if every else 0}, the newest save" in shown
    plan = DrillPlan.from_json((here / "kept" / "plan.json").read_text())
    assert plan.save_every == (str(every) if every else None)
    assert (f"the run saves every {every} steps" in shown) == (every is not None)


@pytest.mark.nightly(sample=1, of="what a drill strikes")
def test_both_runs_may_live_in_an_object_store(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Everything that they wrote there goes, and what opens it is told to nobody."""
    with s3_server() as server:
        bucket = server.new_bucket("drills")
        for key, value in server.options.items():
            (here / key).write_text(value if isinstance(value, str) else json.dumps(value))
        options = [f"--storage-option={key}=@{key}" for key in server.options]
        where = ["--storage", f"{bucket}/here", *options]
        faults = ["--storage-errors=0.02", "--seed=3", "--kill=1@step=5", "--lose-all=@step=9"]
        script = [SMALL, *where, "--workers=2", *faults]
        command = ["--keep", "--folder", "kept", *script, "--", "own", "--steps", "16"]
        assert main(command) == HOLDS, capsys.readouterr()
        shown = capsys.readouterr().out
        storage = s3fs.S3FileSystem(**server.options)
        (kept,) = storage.ls(f"{bucket}/here")
        assert " ".join(where) in shown.rpartition("replay")[2]
        short = [SMALL, *where, "--workers", "1", "--slow", "0@step=1,shares=1", "--", "own", "--steps", "3"]
        assert main(short) == HOLDS, capsys.readouterr()
        shown += capsys.readouterr().out
        storage.invalidate_cache()
        assert storage.ls(f"{bucket}/here") == [kept]

    assert "goes on from step" in shown
    assert not (here / "kept" / "disturbed").exists()
    assert list((here / "drills").iterdir()) == []
    told = shown.encode() + b"".join(path.read_bytes() for path in (here / "kept").rglob("*") if path.is_file())
    assert server.key.encode() not in told
    assert server.secret.encode() not in told


@pytest.mark.nightly(sample=1, of="what a drill strikes")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a small disk is mounted")
def test_a_disk_that_is_full_and_one_that_is_read_only_cost_saves_and_no_step(
    here: Path, holds: Callable[..., str]
) -> None:
    """And an agent that is killed, of two, is no failure of the run."""
    faults = "--disk-full @step=5,seconds=3 --read-only @step=60,seconds=0.5 --kill-agent 1@step=60"
    shown = holds(f"--workers 2 --nodes 2 {faults}", "--steps 80 --save-every 10 --unhurried 3")
    assert re.search(r"the save of step \d+ failed: .*No space left on device", shown)
    assert str(here) not in Path("/proc/mounts").read_text()
    assert list((here / "drills").iterdir()) == []


@pytest.mark.nightly(sample=1, of="what a drill strikes")
def test_a_node_that_comes_when_the_first_is_gone_finds_the_others(holds: Callable[..., str]) -> None:
    """At the first one's port, where all of them met, nobody listens any more."""
    shown = holds("--workers 2 --nodes 2 --kill-agent 0@step=20 --join @step=30", "--steps 60")
    assert re.search(r"workers +1 +2 → 1 → 2 ", shown)


@pytest.mark.nightly(sample=1, of="what a drill strikes")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a small disk is mounted")
def test_what_has_no_end_of_its_own_is_ended_by_the_drill(holds: Callable[..., str]) -> None:
    """A disk is whole for the next launch; who has not left in time is killed, which the run is not blamed for."""
    shown = holds(
        "--workers 2 --nodes 2 --grace 0.2 --slow 0@step=10,seconds=1,shares=8 --leave 1@step=10,phase=exchange "
        "--read-only @step=20,seconds=600 --lose-all @step=21",
        "--steps 40",
    )
    assert "worker 1 has not left within 0.2 s: SIGKILL" in shown
    assert re.search(r"it goes on from step \d+, the newest save", shown)


@pytest.mark.nightly(sample=1, of="what a drill strikes")
def test_a_plan_is_saved_and_strikes_again_the_same_faults_in_the_same_order(
    here: Path, holds: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    """What a seed drew, and how many workers it was drawn for, is in the file; the printed command needs no more."""
    drawing = "--workers 2 --seed 12 --faults kill,exception,stop --rate 0.25"
    shown = holds(f"--keep --folder first {drawing}", "--steps 12 --awaits 2")
    first = struck(here / "first" / "disturbed-drill")
    assert len(first) == 3

    replay = shlex.split(shown.rpartition("replay")[2])
    assert replay[:2] == ["elastic", "drill"]
    assert main(["--keep", "--folder", "again", *replay[2:]]) == HOLDS, capsys.readouterr().out
    assert struck(here / "again" / "disturbed-drill") == first
    assert (here / "again" / "plan.json").read_text() == (here / "first" / "plan.json").read_text()


@pytest.mark.nightly(sample=1, of="what a drill strikes")
def test_all_that_stands_around_a_worker_can_fail(here: Path, holds: Callable[..., str]) -> None:
    """Helpers are killed, memory runs out, data hangs, storage fails: and the script has loader processes."""
    shown = holds(
        "--workers 3 --slow 2@step=2,shares=5 --exception 1@step=6 --oom 2@step=12,phase=forward "
        "--kill-fork-server 1@step=16 --kill-writer @step=60 --kill-loader 2@step=66 --stick-loader 1@step=70 "
        "--kill-agent 0@step=90 --hang-limit 3 --storage-errors 0.03 --seed 4",
        "--steps 120 --num-workers 1 --unhurried 3",
    )
    assert "never struck" not in shown
    assert "failed" in shown.partition("storage: ")[2]
    assert list((here / "drills").iterdir()) == []


@pytest.mark.nightly(sample=1, of="what a drill strikes")
@pytest.mark.parametrize(
    ("program", "says", "line", "broken"),
    [
        ("rank_sampler", "another state that changes as it is read, or on the worker's rank", 25, SAME),
        ("global_counter", "depends on what was read before in the same process", 23, UNDISTURBED),
        ("unseeded", "they are initialised without a seed", None, UNDISTURBED),
    ],
    ids=["rank_sampler", "global_counter", "unseeded"],
)
def test_a_bug_of_the_script_is_told_by_its_kind(
    here: Path, capsys: pytest.CaptureFixture[str], program: str, says: str, line: int | None, broken: str
) -> None:
    """The run itself refuses the first in its first step, once there are two workers; the drill finds the others.

    Its storage is kept, its own URL is not touched, and the command that replays the faults is printed."""
    script = str(PROGRAMS / f"{program}.py")
    assert main([script, "--workers", "2", "--kill", "1@step=5"]) == BROKEN
    shown = capsys.readouterr().out

    assert says in shown
    assert line is None or f"look  {script}:{line}  __getitem__" in shown
    assert f"✗  {broken}" in shown
    assert re.search(r"without faults +\d+\.\d\d s  worker 0 .*\n +with faults +\d+\.\d\d s  worker \d ", shown)
    (kept,) = (here / "drills").glob("elastic-drill-*")  # beside what torch keeps there
    assert f"kept    {kept}" in shown
    assert f"elastic drill {script} --plan {kept}/plan.json" in shown
    assert DrillPlan.from_json((kept / "plan.json").read_text()).workers == 2
    assert not (here / "runs").exists()


@pytest.mark.nightly(sample=1, of="what a drill strikes")
def test_what_survivors_hold_more_of_from_view_to_view_is_left_behind(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A fleet that is preempted every few minutes for weeks dies of what each loss leaves open."""
    script = str(PROGRAMS / "leaky.py")
    assert main([script, "--workers", "3", "--kill", "2@step=4", "--leave", "1@step=14", "--", "own"]) == BROKEN
    shown = capsys.readouterr().out

    assert "✗  no process, socket, thread, file or shared memory was left behind" in shown
    assert shown.count("✗") == 1
    assert re.search(r"left behind: worker \S+ held \d+ (sockets|descriptors) in its last view", shown)


def test_a_script_that_fails_without_faults_is_shown_and_no_verdict_is_given(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It cannot be said what faults do to it."""
    (here / "broken.py").write_text("import elastic\nraise SystemExit('no data here')\n")
    assert drill_command.main(["broken.py", "--kill", "1@step=1"]) == CANNOT
    shown = capsys.readouterr()

    assert "never came to `with elastic.Run(…)`" in shown.err
    assert "no data here" in shown.err
    assert "promised" not in shown.out
    assert list((here / "drills").iterdir()) == []


@pytest.mark.nightly(sample=1, of="what a drill strikes")
def test_a_fault_whose_moment_never_comes_is_no_success(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The drill has not done what it was to."""
    assert main([SMALL, "--workers", "2", "--kill", "1@step=50", "--", "own", "--steps", "4"]) == CANNOT
    shown = capsys.readouterr().out

    assert "✗" not in shown
    assert "never struck: step 50: SIGKILL to worker 1" in shown
    plan = re.search(r"--plan (\S+)", shown)
    assert plan is not None
    assert Path(plan[1]).exists(), "what replays it is kept"


def test_storage_that_takes_no_object_is_told_before_anything_runs(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([SMALL, "--kill", "0@step=1", "--storage", "nosuch://a/b", "--", "own"]) == CANNOT
    shown = capsys.readouterr()

    assert "--storage nosuch://a/b/elastic-drill-" in shown.err
    assert "found  nothing here opens nosuch://\n  state  nothing was run" in shown.err
    assert "Without faults" not in shown.out
    assert list((here / "drills").iterdir()) == []


@pytest.mark.nightly(sample=1, of="what a drill strikes")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_drill_that_is_told_to_end_leaves_nothing(here: Path, number: signal.Signals) -> None:
    """Processes, shared memory and storage go, at once and whichever run is under way."""
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
        pids = pids_in(drills)
        assert pids != [], shown
        drill.send_signal(number)
        shown += drill.communicate(timeout=60)[0]

    assert drill.returncode == 128 + number, shown
    assert f"ended by {number.name}" in shown
    assert marked_in(drills) == []
    assert list(drills.iterdir()) == []
    assert [name for name in os.listdir("/dev/shm") if name.startswith(tuple(f"torch_{pid}_" for pid in pids))] == []


@pytest.mark.nightly(sample=1, of="what a drill strikes")
def test_the_runs_of_a_drill_that_is_killed_outright_end_with_it(here: Path) -> None:
    """Nobody tells it, and what it has started lives in sessions of its own."""
    fault = ["--kill", "1@step=280"] if os.geteuid() != 0 else ["--read-only", "@step=280"]
    command = [sys.executable, "-m", "elastic", "drill", SMALL, *fault, "--", "own", "--steps", "300"]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environ) as drill:
        assert drill.stdout is not None
        while "With faults" not in (line := drill.stdout.readline()):
            assert line
        while "it begins at step 0" not in (line := drill.stdout.readline()):
            assert line
        assert marked_in(here / "drills") != []
        assert (str(here) in Path("/proc/mounts").read_text()) == (os.geteuid() == 0)
        elsewhere = [path.resolve() for path in (here / "drills").glob("*/*/tmp") if path.is_symlink()]
        drill.kill()
    deadline = time.monotonic() + 60
    while left := (
        marked_in(here / "drills")
        or str(here) in Path("/proc/mounts").read_text()
        or any(path.exists() for path in elsewhere)
    ):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
