"""The agent hears of a worker's death from the kernel, before the worker's process is gone."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from elastic.launch.processes import children, robust_mutex
from elastic.launch.processes.robust_mutex import RobustMutex
from elastic.launch.workers.death_watch import DeathWatch, Dying
from elastic_checkpoint import linux
from elastic_checkpoint.net import event_loop

AT = 64
WITHIN_S = 30.0
Die = Callable[[], None]


def dies(how: Die) -> tuple[int, int]:
    """A process that holds the mutex in the memory of a descriptor, and then does that. Returns both."""
    fd = os.memfd_create("mutex")
    os.ftruncate(fd, AT + robust_mutex.BYTES)
    RobustMutex.make(fd, AT)
    held, holds = os.pipe()
    pid = os.fork()
    if pid == 0:
        robust_mutex.hold(fd, AT)
        os.write(holds, b"x")
        how()
        os._exit(99)
    os.read(held, 1)
    os.close(held)
    os.close(holds)
    return pid, fd


def stays() -> None:
    time.sleep(600)


@pytest.fixture
def heard() -> Iterator[tuple[DeathWatch, Callable[[float], list[str]]]]:
    """A watch, and what it says within so many seconds."""
    loop, found = selectors.DefaultSelector(), list[str]()
    watch = DeathWatch(loop, found.append)

    def until(within_s: float) -> list[str]:
        deadline_s = time.monotonic() + within_s
        while not found and time.monotonic() < deadline_s:
            event_loop.run_once(loop, 0.1)
        return found

    yield watch, until
    watch.close()
    loop.close()


def killed_by(number: int) -> Die:
    return lambda: os.kill(os.getpid(), number)


@pytest.mark.parametrize(
    ("how", "ended"),
    [
        (killed_by(signal.SIGKILL), children.Ended(None, "SIGKILL")),
        (killed_by(signal.SIGTERM), children.Ended(None, "SIGTERM")),
        (lambda: os._exit(3), children.Ended(3, None)),
        (lambda: os._exit(0), children.Ended(0, None)),
    ],
)
def test_a_death_is_heard_with_its_status(
    heard: tuple[DeathWatch, Callable[[float], list[str]]], how: Die, ended: children.Ended
) -> None:
    watch, until = heard
    begin, begins = os.pipe()

    def waits_then_dies() -> None:
        os.read(begin, 1)
        how()

    pid, fd = dies(waits_then_dies)
    mutex = RobustMutex(fd, AT)
    assert mutex.is_held
    assert children.ending(pid) is None, "it lives"
    watch.watch("it", mutex)
    os.write(begins, b"x")
    assert until(WITHIN_S) == ["it"]
    assert children.ending(pid) == ended
    os.waitpid(pid, 0)
    assert children.ending(pid) is None, "there is no such process"
    for one in (fd, begin, begins):
        os.close(one)


def test_the_death_of_a_fork_of_a_worker_is_none_of_its_own(
    heard: tuple[DeathWatch, Callable[[float], list[str]]], tmp_path: Path
) -> None:
    """As of its loader processes."""
    watch, until = heard
    forked = tmp_path / "forked"

    def forks() -> None:
        child = os.fork()
        if child == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(child, 0)
        forked.touch()
        stays()

    pid, fd = dies(forks)
    watch.watch("it", RobustMutex(fd, AT))
    while not forked.exists():
        time.sleep(0.01)
    assert until(0.3) == []
    os.kill(pid, signal.SIGKILL)
    assert until(WITHIN_S) == ["it"]
    os.waitpid(pid, 0)
    os.close(fd)


def test_a_worker_that_becomes_another_program_lives(heard: tuple[DeathWatch, Callable[[float], list[str]]]) -> None:
    """The mutex is given back then, too."""
    watch, until = heard
    pid, fd = dies(lambda: os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(600)"]))
    watch.watch("it", RobustMutex(fd, AT))
    assert until(WITHIN_S) == ["it"]
    assert children.ending(pid) is None
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(fd)


def test_a_place_is_free_once_its_last_process_is_gone() -> None:
    process = subprocess.Popen(["sleep", "600"])
    dying = Dying()
    dying.begins(1, process.pid)
    assert not dying.is_to_wait([0])
    assert dying.is_to_wait([1])
    assert (dying.reap(), [*dying.awaited]) == ([], [1])
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert (dying.reap(), [*dying.awaited], [*dying.pids]) == ([1], [], [])
    assert linux.process_stat(process.pid) is None
    process.returncode = 0


def test_the_places_of_a_replica_are_free_once_all_its_processes_are_gone() -> None:
    """A worker that began while a mate of the one before it still holds a GPU's memory would find none."""
    processes = [subprocess.Popen(["sleep", "600"]) for _ in range(2)]
    dying = Dying(2)
    for local_rank, process in enumerate(processes, start=2):
        dying.begins(local_rank, process.pid)
    assert not dying.is_to_wait([0, 1])
    assert dying.is_to_wait([2, 3])
    for process, free in zip(processes, ([], [2]), strict=True):
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert dying.reap() == free
        process.returncode = 0
    assert not dying.awaited
