"""Saves beside training: snapshots, that survive whoever is killed, whenever, and leave nothing behind."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
import torch

from checkpoint import (
    Checkpointer,
    CheckpointError,
    ClaimLost,
    NoCheckpoint,
    SaveDropped,
    Saving,
    StorageError,
    digest,
)
from checkpoint.background.underway import Rules, Underway
from checkpoint.background.workshop import Workshop
from checkpoint.storage import open_storage
from checkpoint.testing import Delay, Plan
from tests.kit.s3 import S3Server
from tests.storage.gate import Gate, gate

Make = Callable[..., Checkpointer]
WITHIN_S = 60.0
RESIDENT = "checkpoint.background.resident"
SEED = int(os.environ.get("SEED", "0")) or random.randrange(1, 10**6)


def state(seed: int, size: int = 1000) -> dict[str, Any]:
    """size  floats per tensor; there are 20"""
    generator = torch.Generator().manual_seed(seed)
    return {"model": {f"w{n}": torch.randn(size, generator=generator) for n in range(20)}, "at": seed}


def writers(of: int | None = None) -> list[psutil.Process]:
    """The writer processes of process `of`, by default of this one."""
    return [one for one in psutil.Process(of).children() if RESIDENT in one.cmdline()]


def newest(url: Path | str, **options: Any) -> int | None:
    """The step of the newest whole checkpoint, whose bytes are checked."""
    with Checkpointer(url, **options) as runs:
        try:
            found = runs.read()
        except NoCheckpoint:
            return None
    size = next(iter(found.tree["model"].values())).numel()
    assert digest(found.tree) == digest(state(found.step, size))
    assert found.tree["at"] == found.step
    return found.step


def gone(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.TimeoutExpired):
        process.wait(WITHIN_S)
        return True
    return False


def ended(process: psutil.Process) -> None:
    """Returns once it runs no more. Its parent, this process, is left to hear how it ended."""
    deadline = time.monotonic() + WITHIN_S
    with contextlib.suppress(ChildProcessError):  # that was quicker
        while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
            assert time.monotonic() < deadline
            time.sleep(0.001)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Every test leaves no process, no mapping of an arena and no thread of a save."""
    yield
    gc.collect()
    left = [one.pid for one in psutil.Process().children() if RESIDENT in " ".join(_cmdline(one))]
    assert left == []
    assert "checkpoint-arena" not in Path("/proc/self/maps").read_text()
    assert [one.name for one in threading.enumerate() if one.name.startswith("checkpoint-")] == []


def _cmdline(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


# A trainer in a process of its own. Its commands come in one line each: save N, and what the tests add.
TRAINER = """
import sys, threading
import checkpoint, checkpoint.background.staging
from tests.storage.test_async import state
url, size = sys.argv[1], int(sys.argv[2])
runs = checkpoint.Checkpointer(url, shard_bytes=2**20, keep=100)
print("claimed", runs.claim().number, flush=True)
for line in sys.stdin:
    command, step = line.split()
    if command == "hold":  # the next copy stops in the middle, for good
        move = checkpoint.background.staging._move
        def half(moves):
            move(moves[: len(moves) // 2])
            print("held", flush=True)
            threading.Event().wait()
        checkpoint.background.staging._move = half
    if command == "fork":
        import os, time
        child = os.fork()
        if child == 0:
            time.sleep(600)
        print("forked", child, flush=True)
    saving = runs.save(int(step), state(int(step), size), blocking=False) if command in ("save", "hold") else None
    if command == "save":
        print("staged", step, flush=True)
"""


class Trainer:
    """A training process that saves when it is told to."""

    def __init__(self, url: Path, size: int = 1000) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", TRAINER, str(url), str(size)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        assert self.hear()[0] == "claimed"

    def tell(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def hear(self) -> list[str]:
        assert self.process.stdout is not None
        return self.process.stdout.readline().split()

    def save(self, step: int) -> None:
        self.tell(f"save {step}")
        assert self.hear() == ["staged", str(step)]

    @property
    def writer(self) -> psutil.Process:
        [writer] = writers(self.process.pid)
        return writer

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=WITHIN_S)


@pytest.fixture
def trainer() -> Iterator[Callable[..., Trainer]]:
    started: list[Trainer] = []

    def start(*arguments: Any) -> Trainer:
        started.append(Trainer(*arguments))
        return started[-1]

    yield start
    for one in started:
        one.kill()


def test_a_save_beside_training_is_what_the_state_was_when_it_returned(tmp_path: Path, checkpointer: Make) -> None:
    runs = checkpointer(tmp_path, shard_bytes=5000)
    changing = state(1)
    savings = []
    for step in range(1, 8):
        savings.append(runs.save(step, changing, meta={"epoch": step}, blocking=False))
        assert savings[-1].step == step
        for name, tensor in changing["model"].items():
            tensor.copy_(state(step + 1)["model"][name])
        changing["at"] = step + 1
    commits = [saving.wait(WITHIN_S) for saving in savings]

    assert [commit.step for commit in commits] == list(range(1, 8))
    assert runs.latest() == commits[-1]
    assert commits[-1].objects > 10
    assert runs.read().meta == {"epoch": 7}
    assert newest(tmp_path) == 7
    runs.wait()
    assert [commit.step for commit in runs.list()] == [7, 6, 5]  # the rest was swept meanwhile


def test_every_kind_of_storage_can_be_saved_to_beside_training(
    place: tuple[str, dict[str, Any]], checkpointer: Make
) -> None:
    """What lives in this process only cannot be handed to another one: training waits there, and one line says so."""
    url, options = place
    lines: list[str] = []
    runs = checkpointer(url, storage_options=options, shard_bytes=9000, log=lines.append)
    runs.warm(state(1))
    for step in (1, 2, 3):
        runs.save(step, state(step), blocking=False)
    runs.wait()
    assert newest(url, storage_options=options) == 3
    said = [line for line in lines if "no saving in the background" in line]
    assert len(said) == (1 if url.startswith(("memory", "faulty")) else 0)


def test_blocking_saves_and_others_take_turns(tmp_path: Path, checkpointer: Make) -> None:
    runs = checkpointer(tmp_path, keep=100)
    for step in range(1, 9):
        runs.save(step, state(step), blocking=bool(step % 2))
    runs.wait()
    assert [commit.step for commit in runs.list()] == list(range(8, 0, -1))


def test_the_state_may_grow_shrink_and_change_its_text(tmp_path: Path, checkpointer: Make) -> None:
    """Another plan, a larger arena, or documents far larger than the spare room in it."""
    runs = checkpointer(tmp_path, keep=100)
    states = [
        state(1, 10),
        state(2, 50_000),
        state(3, 10),
        {"x": [0.5] * 500_000, "at": 4},
        {"nothing": 1},
        state(6, 9),
    ]
    for step, one in enumerate(states, 1):
        runs.save(step, one, blocking=False)
    runs.wait()
    assert [commit.step for commit in runs.list()] == [6, 5, 4, 3, 2, 1]
    for step, one in enumerate(states, 1):
        found = runs.read(step=step).tree
        assert digest(found) == digest(one)
        assert found.get("at") == one.get("at")
        assert found.get("x") == one.get("x")


def test_the_writer_process_never_loads_torch(tmp_path: Path) -> None:
    """It would cost each node 200 MB, and the first save 2 s."""
    program = (
        "import sys, checkpoint, checkpoint.background.resident, checkpoint.writer\n"
        "print([name for name in ('torch', 'numpy.random', 's3fs') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
    with Checkpointer(tmp_path) as runs:
        runs.save(1, state(1), blocking=False).wait(WITHIN_S)
        [writer] = writers()
        assert "libtorch" not in Path(f"/proc/{writer.pid}/maps").read_text()


def test_what_is_staged_is_committed_though_the_trainer_is_killed(
    tmp_path: Path, trainer: Callable[..., Trainer]
) -> None:
    one = trainer(tmp_path, 200_000)
    one.save(1)
    one.save(2)
    writer = one.writer
    one.kill()

    assert gone(writer)
    assert newest(tmp_path) == 2


def test_a_restart_goes_on_from_what_its_dead_predecessor_had_staged(tmp_path: Path) -> None:
    """However slow the storage is: going back further would repeat work that is about to be safe."""
    program = (
        "import os, signal, sys, checkpoint\n"
        "from checkpoint.testing import Delay, Plan\n"
        "from tests.storage.test_async import state\n"
        "slow = Plan(Delay(2.0, on='write', path='*/s000000002*')).document()\n"
        "options = {'target_protocol': 'file', 'target_options': {'auto_mkdir': True}, 'faults': slow}\n"
        "runs = checkpoint.Checkpointer('faulty://' + sys.argv[1], storage_options=options)\n"
        "runs.save(1, state(1), blocking=False).wait(60)\n"
        "runs.save(2, state(2), blocking=False)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    ended = subprocess.run(command, check=False, timeout=120, cwd=Path(__file__).parents[2])
    assert ended.returncode == -signal.SIGKILL
    options = {"target_protocol": "file", "target_options": {}, "faults": {"seed": 0, "rules": []}}
    here = state(9)
    with Checkpointer(f"faulty://{tmp_path}", storage_options=options) as runs:
        assert runs.load(here) == 2
    assert digest(here) == digest(state(2))


def test_a_fork_of_the_trainer_does_not_keep_its_writer(tmp_path: Path, trainer: Callable[..., Trainer]) -> None:
    """A data loader's worker outlives the trainer for a while, with all of its descriptors."""
    one = trainer(tmp_path)
    one.save(1)
    one.tell("fork 0")
    fork = psutil.Process(int(one.hear()[1]))
    writer = one.writer
    try:
        os.kill(one.process.pid, signal.SIGKILL)
        assert gone(writer)
    finally:
        fork.kill()


def test_of_a_save_that_was_being_staged_nothing_appears(tmp_path: Path, trainer: Callable[..., Trainer]) -> None:
    one = trainer(tmp_path)
    one.save(1)
    one.save(2)
    one.tell("hold 3")
    assert one.hear() == ["held"]
    writer = one.writer
    one.kill()

    assert gone(writer)
    assert newest(tmp_path) == 2
    assert sorted(path.name[:10] for path in (tmp_path / "data" / "c00000001").iterdir()) == [
        "s000000001",
        "s000000002",
    ]


def test_a_trainer_killed_at_any_moment_leaves_whole_checkpoints_only(
    tmp_path: Path, trainer: Callable[..., Trainer]
) -> None:
    random_moments = random.Random(SEED)
    for round in range(5):
        folder = tmp_path / str(round)
        one = trainer(folder, 20_000)
        one.save(1)
        for step in range(2, 30):
            one.tell(f"save {step}")
        time.sleep(random_moments.uniform(0, 1))
        writer = one.writer
        one.kill()
        assert gone(writer)
        with Checkpointer(folder) as runs:
            assert all(found.ok for found in runs.verify()), f"SEED={SEED}"
        assert newest(folder) or 0 >= 1, f"SEED={SEED}"


def test_a_writer_killed_at_any_moment_costs_at_most_what_was_under_way(tmp_path: Path, checkpointer: Make) -> None:
    """Whatever a save says, the storage agrees; and the save after it works."""
    random_moments = random.Random(SEED)
    runs = checkpointer(tmp_path, keep=3, shard_bytes=2**18, failures_max=1000, log=lambda line: None)
    runs.save(0, state(0, 50_000), blocking=False).wait(WITHIN_S)
    began_s = time.monotonic()
    runs.save(1, state(1, 50_000), blocking=False).wait(WITHIN_S)
    long_s = time.monotonic() - began_s
    last, failed = 1, 0
    for round in range(24):
        step = 2 + 2 * round
        saving = runs.save(step, state(step, 50_000), blocking=False)
        time.sleep(random_moments.uniform(0, 1.2 * long_s))
        for writer in writers():
            writer.kill()
            ended(writer)  # until then it may be given the next save
        with contextlib.suppress(CheckpointError):
            last = saving.wait(WITHIN_S).step
        if saving.error is not None:
            assert "SIGKILL" in str(saving.error), f"SEED={SEED}"
            failed += 1
        assert newest(tmp_path) == last, f"SEED={SEED} round {round}"
        last = runs.save(step + 1, state(step + 1, 50_000), blocking=False).wait(WITHIN_S).step
        assert newest(tmp_path) == last, f"SEED={SEED} round {round}"
    assert failed > 0, f"SEED={SEED}: no kill hit a save"


def test_signals_that_end_a_job_do_not_end_its_writer(tmp_path: Path, checkpointer: Make) -> None:
    runs = checkpointer(tmp_path)
    runs.save(1, state(1), blocking=False).wait(WITHIN_S)
    [writer] = writers()
    assert os.getsid(writer.pid) == writer.pid != os.getsid(0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        writer.send_signal(number)
    runs.save(2, state(2), blocking=False).wait(WITHIN_S)
    assert [one.pid for one in writers()] == [writer.pid]


def test_closing_finishes_what_is_staged_and_leaves_nothing(tmp_path: Path) -> None:
    def held() -> tuple[int, int]:
        gc.collect()
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    before = held()
    shared = len(os.listdir("/dev/shm"))
    for step in range(1, 7, 2):
        with Checkpointer(tmp_path) as runs:
            runs.warm(state(1))
            runs.save(step, state(step), blocking=False)
            runs.save(step + 1, state(step + 1), blocking=False)
            [writer] = writers()
        assert not writer.is_running()
        assert newest(tmp_path) == step + 1
        assert held() == before
    assert len(os.listdir("/dev/shm")) == shared

    runs = Checkpointer(tmp_path)
    runs.save(9, state(9), blocking=False).wait(WITHIN_S)
    [writer] = writers()
    del runs  # nobody closes it: everything goes with the object
    assert gone(writer)
    deadline_s = time.monotonic() + WITHIN_S
    while held() != before and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert held() == before


def test_a_forked_child_has_a_writer_of_its_own_or_none(tmp_path: Path, checkpointer: Make) -> None:
    """It must not write into its parent's arena; here its parent's claim stops it."""
    runs = checkpointer(tmp_path)
    runs.save(1, state(1), blocking=False).wait(WITHIN_S)
    child = os.fork()
    if child == 0:
        try:
            runs.save(2, state(2), blocking=False)
            os._exit(1)
        except CheckpointError:
            runs.close()
            os._exit(0)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert runs.save(3, state(3), blocking=False).wait(WITHIN_S).step == 3


def arenas(process: int) -> int:
    """Bytes of arenas that a process has mapped."""
    lines = [line for line in Path(f"/proc/{process}/maps").read_text().splitlines() if "checkpoint-arena" in line]
    spans = [line.split()[0].split("-") for line in lines]
    return sum(int(end, 16) - int(start, 16) for start, end in spans)


def test_an_arena_that_became_too_small_is_kept_by_nobody(tmp_path: Path, checkpointer: Make) -> None:
    """With the old one in the writer or in a data loader's worker, there would too soon be no room for the new one."""
    runs = checkpointer(tmp_path)
    runs.save(1, state(1, 50_000), blocking=False).wait(WITHIN_S)
    child = os.fork()
    if child == 0:
        time.sleep(600)
    try:
        small = arenas(os.getpid())
        runs.save(2, state(2, 100_000), blocking=False).wait(WITHIN_S)
        [writer] = writers()
        large = arenas(os.getpid())
        assert 8 * 100_000 * 20 < large < 2 * small
        assert arenas(writer.pid) == large
        assert arenas(child) == 0
        assert not any("checkpoint-arena" in os.readlink(fd) for fd in Path(f"/proc/{child}/fd").iterdir())
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU, where memory cannot be pinned")
def test_where_memory_cannot_be_pinned_training_waits_and_the_log_says_why(
    tmp_path: Path, checkpointer: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("checkpoint.background.saves.on_gpu", lambda tensors: True)
    lines: list[str] = []
    runs = checkpointer(tmp_path, log=lines.append)
    for step in (1, 2):
        assert runs.save(step, state(step), blocking=False).done
    [line] = lines
    assert "training waits for each commit" in line
    assert "cannot be locked for the GPU to copy into" in line
    assert newest(tmp_path) == 2


# What happens when saves are due faster than they can be written


@pytest.fixture
def slow(s3: S3Server) -> Iterator[Gate]:
    """A gate before the S3 server."""
    port = urlsplit(s3.endpoint_url).port
    assert port is not None
    with gate(port) as one:
        yield one


def behind(slow: Gate, s3: S3Server) -> dict[str, Any]:
    return {**s3.options, "endpoint_url": f"http://127.0.0.1:{slow.port}"}


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
    monkeypatch.setattr("checkpoint.background.process._KILLED_S", 1.0)
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


def test_waiting_behind_another_save_does_not_count_as_being_slow(tmp_path: Path, checkpointer: Make) -> None:
    """Two saves of 2.5 s each, the second staged at once, where each may take 4 s."""
    slow = Plan(Delay(2.5, on="write", path="*/data/*")).document()
    options = {"target_protocol": "file", "target_options": {"auto_mkdir": True}, "faults": slow}
    runs = checkpointer(f"faulty://{tmp_path}", storage_options=options, finish_s=4.0, log=lambda line: None)
    savings = [runs.save(step, state(step), blocking=False) for step in (1, 2)]
    assert [saving.wait(WITHIN_S).step for saving in savings] == [1, 2]


# Failures


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
    assert [f"step {step} could not be saved" in line for step, line in zip((2, 3, 4), lines, strict=True)] == [
        True
    ] * 3
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
        "import sys, checkpoint\n"
        "from tests.storage.test_async import state\n"
        "with checkpoint.Checkpointer(sys.argv[1], shard_bytes=2**19, log=print) as runs:\n"
        "    runs.warm(state(1, 50_000))\n"
        "    for step in (1, 2): print(runs.save(step, state(step, 50_000), blocking=False).wait(60).step)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=True, cwd=Path(__file__).parents[2]
    )
    [said, *steps] = done.stdout.splitlines()
    assert "training waits for each commit" in said
    assert "bytes of shared memory are needed" in said
    assert steps == ["1", "2"]
    assert newest(tmp_path) == 2


def test_what_a_writer_process_cannot_be_told_is_saved_in_the_foreground(tmp_path: Path, checkpointer: Make) -> None:
    lines: list[str] = []
    for place in (
        checkpointer(open_storage(tmp_path / "a"), log=lines.append),
        checkpointer(tmp_path / "b", storage_options={"session": object()}, log=lines.append),
    ):
        assert place.save(1, state(1), blocking=False).wait(WITHIN_S).step == 1
        assert place.save(2, state(2), blocking=False).done
    assert ["object of this process" in line or "cannot be told" in line for line in lines] == [True, True]


def test_credentials_reach_the_writer_by_no_command_line_and_no_environment(
    s3: S3Server, tmp_path: Path, checkpointer: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="checkpoint")
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


def test_bad_arguments_are_refused_at_once() -> None:
    with pytest.raises(CheckpointError, match="'wait', 'skip' or 'replace'"):
        Checkpointer("memory://x", when_busy="later")  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match="must be positive"):
        Checkpointer("memory://x", failures_max=0)


def test_a_handle_of_a_finished_save_answers_at_once(tmp_path: Path, checkpointer: Make) -> None:
    saving = checkpointer(tmp_path).save(1, state(1), blocking=False)
    commit = saving.wait(WITHIN_S)
    assert isinstance(saving, Saving)
    assert saving.done
    assert saving.error is None
    assert saving.wait(0) is commit


def test_a_writer_process_finds_this_package_and_nothing_else_by_its_path(tmp_path: Path) -> None:
    """Also where a script found the package by a path of its own; and its modules stand in for no other package."""
    with Checkpointer(tmp_path / "run") as runs:
        runs.save(1, state(1), blocking=False).wait(WITHIN_S)
        (writer,) = writers()
        first = Path(writer.environ()["PYTHONPATH"].split(os.pathsep)[0])
    assert (first / "checkpoint" / "__init__.py").exists()


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


def test_a_save_is_committed_where_no_thread_is_left_to_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "checkpoint-sweep":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with Checkpointer(tmp_path / "run") as runs:
        for step in (1, 2, 3, 4):
            assert runs.save(step, state(step), blocking=False).wait(WITHIN_S).step == step
    assert newest(tmp_path / "run") == 4


def test_an_answer_that_comes_too_late_answers_no_other_question(tmp_path: Path) -> None:
    rules = Rules("wait", 3, WITHIN_S, 2**28)
    underway = Underway(open_storage(tmp_path), rules, print, patience_s=WITHIN_S)
    opening = {"url": str(tmp_path), "options": {}, "retry_s": 1.0}
    workshop = Workshop(opening, rules, underway, unusable=None, log=print)
    workshop.started().send({"kind": "drop_arena"})  # as a question that nobody waits for any more
    assert "addresses" in workshop.meet({"kind": "centre", "size": 2})
    workshop.close(WITHIN_S)


def test_a_log_may_take_a_lock_that_who_waits_for_saves_holds(tmp_path: Path) -> None:
    """It is called without any lock of ours, so waiting ends, and then the line is logged."""
    busy, lines = threading.Lock(), []

    def log(line: str) -> None:
        with busy:
            lines.append(line)

    with Checkpointer(tmp_path / "run", log=log, retry_s=0.1) as runs:
        runs.save(1, state(1), blocking=False).wait(WITHIN_S)
        (tmp_path / "run" / "data").rename(tmp_path / "away")
        (tmp_path / "run" / "data").write_text("no folder")
        with busy:
            runs.save(2, state(2), blocking=False)
            waiting = threading.Thread(target=settled, args=(runs,), daemon=True)
            waiting.start()
            waiting.join(WITHIN_S)
            assert not waiting.is_alive()
    assert any("step 2 could not be saved" in line for line in lines)


def settled(runs: Checkpointer) -> None:
    with contextlib.suppress(StorageError):
        runs.wait()
