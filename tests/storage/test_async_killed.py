"""Saves beside training survive whoever is killed, whenever, and leave nothing behind."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from elastic_checkpoint import (
    Checkpointer,
    CheckpointError,
    digest,
)
from tests.kit.forkserver import piped
from tests.kit.sampling import NIGHTLY
from tests.storage.beside import SEED, WITHIN_S, Make, Trainer, ended, gone, newest, state, writers

pytestmark = pytest.mark.usefixtures("nothing_is_left")


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
        "import os, signal, sys, elastic_checkpoint\n"
        "from elastic_checkpoint.testing import Delay, Plan\n"
        "from tests.storage.beside import state\n"
        "slow = Plan(Delay(2.0, on='write', path='*/s000000002*')).document()\n"
        "options = {'target_protocol': 'file', 'target_options': {'auto_mkdir': True}, 'faults': slow}\n"
        "runs = elastic_checkpoint.Checkpointer('faulty://' + sys.argv[1], storage_options=options)\n"
        "runs.save(1, state(1), blocking=False).wait(60)\n"
        "runs.save(2, state(2), blocking=False)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    with piped([sys.executable, "-c", program, str(tmp_path)]) as predecessor:
        assert predecessor.wait(timeout=120) == -signal.SIGKILL
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


@pytest.mark.nightly(sample=1, of="killed at any moment beside training")
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


@pytest.mark.nightly(sample=1, of="killed at any moment beside training")
def test_a_writer_killed_at_any_moment_costs_at_most_what_was_under_way(tmp_path: Path, checkpointer: Make) -> None:
    """Whatever a save says, the storage agrees; and the save after it works."""
    random_moments = random.Random(SEED)
    runs = checkpointer(tmp_path, keep=3, shard_bytes=2**18, failures_max=1000, log=lambda line: None)
    runs.save(0, state(0, 50_000), blocking=False).wait(WITHIN_S)
    began_s = time.monotonic()
    runs.save(1, state(1, 50_000), blocking=False).wait(WITHIN_S)
    long_s = time.monotonic() - began_s
    last, failed = 1, 0
    for round in range(24 if NIGHTLY else 12):
        step = 2 + 2 * round
        saving = runs.save(step, state(step, 50_000), blocking=False)
        if round % 6:  # else at once, which hits the save on a machine however busy
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
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        writer.send_signal(number)
    runs.save(2, state(2), blocking=False).wait(WITHIN_S)
    assert [one.pid for one in writers()] == [writer.pid]


def test_closing_finishes_what_is_staged_and_leaves_nothing(tmp_path: Path) -> None:
    def held() -> tuple[int, int]:
        gc.collect()
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    before = held()
    for step in range(1, 7, 2):
        with Checkpointer(tmp_path) as runs:
            runs.warm(state(1))
            runs.save(step, state(step), blocking=False)
            runs.save(step + 1, state(step + 1), blocking=False)
            [writer] = writers()
        assert not writer.is_running()
        assert newest(tmp_path) == step + 1
        assert held() == before
    assert [name for name in os.listdir("/dev/shm") if "checkpoint" in name] == []

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
