"""`elastic.Preemption`: ranks of a loop of one's own agree, at one step, on a notice that one of them has."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

import elastic
from elastic.errors import RendezvousTimeout
from tests.kit.launch import Launch
from tests.kit.ranks import Raised, run_ranks

pytestmark = pytest.mark.nightly(sample=5, of="notices to a loop of one's own")

WITHIN_S = 120.0


def _join(rank: int, world_size: int, folder: Path) -> None:
    """As under torchrun, whose store is a TCPStore, too."""
    os.environ["LOCAL_RANK"] = str(rank)
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        (folder / "port.new").write_text(str(store.port))
        (folder / "port.new").rename(folder / "port")
    else:
        while not (folder / "port").exists():
            time.sleep(0.01)
        store = dist.TCPStore("127.0.0.1", int((folder / "port").read_text()), is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)


def _train(rank: int, world_size: int, folder: Path) -> dict[str, Any]:
    """Rank 0 watches a file: a hint in step 3, and after the save on it a notice. Nobody else is told."""
    _join(rank, world_size, folder)
    saved: list[int] = []
    until_s = time.monotonic() + WITHIN_S
    with elastic.Preemption(notices=f"file:{folder / 'leave'}", timeout_s=WITHIN_S) as preemption:
        step = 0
        while time.monotonic() < until_s:
            step += 1
            if rank == 0 and step == 3:
                (folder / "leave").write_text("hint the price goes up")
            if preemption.agreed():
                break
            if preemption.hinted:
                saved.append(step)
                if rank == 0:
                    (folder / "leave").write_text("leave 90 the price went up")
        left_s = preemption.deadline_s
        return {
            "step": step,
            "saved": saved,
            "reason": preemption.reason,
            "who": preemption.who,
            "in_time": left_s is not None and 0 < left_s <= 90,
            "again": preemption.agreed(),
        }


def test_a_notice_that_one_rank_hears_is_agreed_on_by_all_at_one_step_and_a_hint_too(tmp_path: Path) -> None:
    first, *others = run_ranks(_train, 3, tmp_path, within_s=2 * WITHIN_S)
    assert not isinstance(first, Raised), first
    assert others == [first, first]
    assert len(first["saved"]) == 1
    assert first["saved"][0] < first["step"]
    assert first["reason"] == f"{tmp_path / 'leave'} says leave: the price went up"
    assert (first["who"], first["in_time"], first["again"]) == (os.uname().nodename, True, True)


def _absent(rank: int, world_size: int, folder: Path) -> Any:
    """The last rank does not come to the second agreement. All stay until the others said so: rank 0 has the store."""
    _join(rank, world_size, folder)
    with elastic.Preemption(notices="none", timeout_s=5.0) as preemption:
        assert not preemption.agreed()
        said: Any = "was away"
        if rank < world_size - 1:
            try:
                said = preemption.agreed()
            except RendezvousTimeout as timeout:
                said = timeout.missing, str(timeout)
            (folder / f"said-{rank}").touch()
        while len(list(folder.glob("said-*"))) < world_size - 1:
            time.sleep(0.05)
    return said


def test_a_rank_that_does_not_come_is_named_by_the_deadline(tmp_path: Path) -> None:
    *here, away = run_ranks(_absent, 3, tmp_path, within_s=WITHIN_S)
    assert away == "was away"
    for missing, text in here:
        assert missing == [2], text
        assert "  next     call it on every rank" in text


def _alone(rank: int, world_size: int) -> Any:
    before = signal.getsignal(signal.SIGTERM)
    with elastic.Preemption(notices="none") as preemption:
        assert not preemption.agreed()
        os.kill(os.getpid(), signal.SIGTERM)
        while not preemption.leaving:
            time.sleep(0.01)
        return preemption.agreed(), preemption.reason, preemption.deadline_s, signal.getsignal(signal.SIGTERM) != before


def test_without_a_process_group_sigterm_is_a_notice_and_ends_nothing() -> None:
    (answer,) = run_ranks(_alone, 1, within_s=WITHIN_S)
    assert answer == (True, "SIGTERM", None, True)


def _with_helper(rank: int, world_size: int) -> Any:
    """A process of the script's own is ended, as multiprocessing does, and leaves the with-block itself."""
    with elastic.Preemption(notices="none") as preemption:
        helper = multiprocessing.get_context("fork").Process(target=time.sleep, args=(WITHIN_S,))
        helper.start()
        helper.terminate()
        helper.join(WITHIN_S)
        if os.fork() == 0:
            preemption.__exit__(None, None, None)
            os._exit(0)
        os.wait()
        told_falsely = preemption.agreed()
        os.kill(os.getpid(), signal.SIGTERM)
        until_s = time.monotonic() + WITHIN_S
        while not preemption.leaving and time.monotonic() < until_s:
            time.sleep(0.01)
        return helper.exitcode, told_falsely, preemption.leaving


def test_a_forked_helper_ends_at_its_own_sigterm_which_is_no_notice_to_the_loop() -> None:
    (answer,) = run_ranks(_with_helper, 1, within_s=WITHIN_S)
    assert answer == (-signal.SIGTERM, False, True)


def _deaf(ready: Any, lock: Any) -> None:
    """Waits in C when the signal comes, and is not woken by it: as if it had come just ahead of the wait."""
    threading.Thread(target=time.sleep, args=(WITHIN_S,), daemon=True).start()  # which the kernel gives the signal to
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    ready.set()
    lock.acquire()


def _with_deaf_helper(rank: int, world_size: int) -> Any:
    fork = multiprocessing.get_context("fork")
    with elastic.Preemption(notices="none"):
        ready, lock = fork.Event(), fork.Lock()
        lock.acquire()
        helper = fork.Process(target=_deaf, args=(ready, lock), daemon=True)
        helper.start()
        ready.wait(WITHIN_S)
        helper.terminate()
        helper.join(WITHIN_S / 4)
        ended = helper.exitcode
        helper.kill()
        return ended


def test_a_helper_that_waits_at_a_lock_ends_when_its_parent_ends_it() -> None:
    """A pool's `terminate()` hung once in some hundred times, and so would an exit with a daemon."""
    (answer,) = run_ranks(_with_deaf_helper, 1, within_s=WITHIN_S)
    assert answer == -signal.SIGTERM


def _told_before_its_helpers(rank: int, world_size: int, to_all: bool) -> Any:
    """The parent hears SIGTERM, alone or twice with everybody, and then ends a pool and a helper itself."""
    fork = multiprocessing.get_context("fork")
    os.setpgrp()
    with elastic.Preemption(notices="none") as preemption:
        helper = fork.Process(target=time.sleep, args=(WITHIN_S,))
        helper.start()
        with fork.Pool(2) as pool:
            assert pool.map(abs, [-1, -2]) == [1, 2]
            for _ in range(2):
                os.killpg(0, signal.SIGTERM) if to_all else os.kill(os.getpid(), signal.SIGTERM)
            while not preemption.agreed():
                time.sleep(0.01)
            assert pool.map(abs, [-3]) == [3]
        helper.terminate()
        helper.join(WITHIN_S)
        return helper.exitcode


@pytest.mark.parametrize("to_all", [False, True])
def test_what_the_parent_ends_itself_ends_though_it_was_told_to_leave_just_before(to_all: bool) -> None:
    (answer,) = run_ranks(_told_before_its_helpers, 1, to_all, within_s=WITHIN_S)
    assert answer == -signal.SIGTERM


HANGS = """
import concurrent.futures, multiprocessing, os, signal, sys, time, elastic
from torch.utils.data import DataLoader

class Hangs:
    def __init__(self, writes):
        self.writes = writes
    def __len__(self):
        return 4
    def __getitem__(self, index):
        os.write(self.writes, b"!")
        while True:
            time.sleep(60)

os.setpgrp()
with elastic.Preemption(notices="none") as preemption:
    reads, writes = os.pipe()
    fork, hangs = multiprocessing.get_context("fork"), Hangs(writes)
    begun = {begun}
    os.read(reads, 1)
    os.killpg(0, signal.SIGTERM)
    while not preemption.agreed():
        time.sleep(0.01)
    time.sleep(0.5)
    assert multiprocessing.active_children(), "it has ended"
    {end}
    preemption.exit()
"""


@pytest.mark.parametrize(
    ("begun", "end"),
    [
        ("iter(DataLoader(hangs, num_workers=1))", ""),
        ("iter(DataLoader(hangs, num_workers=1))", "del begun"),
        ("iter(DataLoader(hangs, num_workers=1, persistent_workers=True))", ""),
        ("fork.Pool(1).map_async(hangs.__getitem__, [0])", ""),
        ("fork.Process(target=hangs.__getitem__, args=(0,)); begun.start()", "begun.terminate()"),
    ],
)
def test_what_is_forked_stays_at_its_groups_signal_even_where_it_hangs_and_ends_with_the_script(
    begun: str, end: str
) -> None:
    """As readers of data do, which the loop needs until all have agreed; and nothing is left when it has."""
    script = subprocess.run(
        [sys.executable, "-c", HANGS.format(begun=begun, end=end)],
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert script.returncode == 75, script.stderr
    assert "Traceback" not in script.stderr


@pytest.mark.nightly(sample=2)
@pytest.mark.parametrize(
    ("workers", "by_signal", "statuses"),
    [(None, False, {85}), (None, True, {85}), (2, False, {0}), (2, True, {0, 1})],
)
def test_who_starts_jobs_learns_that_this_one_has_left_and_why(
    tmp_path: Path, workers: int | None, by_signal: bool, statuses: set[int]
) -> None:
    """torchrun's own status says nothing: 0 where all workers have left, 1 where it was told itself.

    It passes the signal on to the whole process group of each worker, loader processes included.
    """
    note, says = tmp_path / "notes" / "left", tmp_path / "says"
    note.parent.mkdir()
    note.write_text("of an earlier start")
    with Launch(
        "tests.kit.programs.preempted",
        [tmp_path, 85],
        workers=workers,
        torchrun=("--standalone", "--max-restarts=3"),
        env={"ELASTIC_NOTICES": f"file:{says}"},
    ) as job:
        job.wait_for((tmp_path / "stepped").exists, "an agreement", within_s=WITHIN_S)
        assert not note.exists()
        if by_signal:
            job.send(signal.SIGTERM)
        else:
            says.write_text("leave 90 the price went up")
        assert job.finish(within_s=WITHIN_S) in statuses, job.output
        reason = "SIGTERM" if by_signal else f"{says} says leave: the price went up"
        assert note.read_text() == f"{os.uname().nodename} leaves: {reason}\n", job.output
        assert list(note.parent.iterdir()) == [note]
        said = f"{reason}; the same command goes on (status {0 if workers else 85})"
        assert job.output.count(said) == 1, job.output
