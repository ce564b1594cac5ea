"""Loader processes never outlive their worker, and hold nothing of it; nothing that they leave stays."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import select
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from elastic.data.loader import Loader
from elastic.errors import LoaderError
from elastic.events.observer import Observer
from tests.kit.loading import (
    Asked,
    Gated,
    Held,
    children,
    consecutive,
    forget_earlier_children,
    loader,
    read_all,
    request,
    settles_at,
)

pytestmark = pytest.mark.nightly(sample=5, of="processes of loaders")


@pytest.fixture(autouse=True)
def _children_of_earlier_tests() -> None:
    forget_earlier_children()


def test_a_loader_process_that_is_killed_is_an_error_where_a_batch_is_asked_for() -> None:
    """And nowhere else: DataLoader's own handler would raise in the middle of whatever runs, an update included."""
    with loader(Asked(lambda i: time.sleep(3600) if i == 9 else i), num_workers=1) as made:
        made.open([request(1), request(9)])
        made.next()
        (victim,) = children()
        end = os.pidfd_open(victim)
        os.kill(victim, signal.SIGKILL)
        assert select.select([end], [], [], 30)[0] == [end]  # SIGCHLD arrives in this line, and raises nothing
        os.close(end)
        with pytest.raises(LoaderError, match=r"1 of 1 died \(pid \d+, exit code -9\), while 1 examples \(9 of epoch"):
            made.next()


def test_nothing_is_left_after_closing() -> None:
    """A run of a month changes its view a thousand times."""
    started: list[int] = []
    with loader(Asked(lambda i: torch.full((1000,), i)), num_workers=2) as made:
        made.open(consecutive(20))  # what is set up once, such as multiprocessing's own helpers, is not counted
        made.next()
        started += children()
        made.close()
        before = Held.now(started)
        assert before.shared_memory == 0
        for _ in range(5):
            made.open(consecutive(20))
            made.next()
            started += children()
        made.close()
        settles_at(before, started)


def test_a_death_is_noticed_by_the_next_poll() -> None:
    """Out of memory, say. A worker that waits for a dead child holds all its peers up."""
    asked: list[list[int]] = []

    def kill_them() -> None:
        if not asked:
            for victim in children():
                end = os.pidfd_open(victim)
                os.kill(victim, signal.SIGKILL)
                assert select.select([end], [], [], 30)[0] == [end]
                os.close(end)
        asked.append(children())

    with Gated(1) as dataset, loader(dataset, num_workers=2, interrupt=kill_them) as made:
        made.open([request(1), request(2)])
        with pytest.raises(LoaderError, match="2 of 2 died"):
            made.next()
        # One poll may still bring the other child's result.
        assert len(asked) <= 2


def sockets_here() -> list[str]:
    families = []
    for name in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):
            found = socket.socket(fileno=int(name))
            families.append(found.family.name)
            found.detach()
    return families


def test_a_loader_process_holds_none_of_its_workers_connections() -> None:
    """One forked copy of a dead worker's gloo socket, and its peers wait for seconds instead of milliseconds."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as ours,
        listening.accept()[0] as theirs,
    ):

        def answer(_: int) -> Any:
            try:
                said = ours.send(b"x")
            except BrokenPipeError:
                said = -1
            return sockets_here(), (said, ours.recv(1)), torch.get_num_threads()

        with loader(Asked(answer), num_workers=1, collate_fn=list) as made:
            made.open([request(0)])
            families, hung_up, threads = made.next().batch[0]
            ours.close()
            theirs.settimeout(10)
            heard = theirs.recv(1)  # while the child lives

    assert set(families) <= {"AF_UNIX"}
    assert hung_up == (-1, b"")
    assert heard == b""
    assert threads == 1


@pytest.mark.parametrize("moment", ["just forked", "at work"])
def test_loader_processes_stay_through_signals_to_the_whole_group(moment: str) -> None:
    """Ctrl-C and a scheduler's SIGTERM reach them too; the worker still wants to finish its step (P8)."""
    with loader(Asked(lambda i: i), num_workers=2) as made:
        made.open(consecutive(100))
        if moment == "at work":
            made.next()
        for pid in children():
            for told in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGTERM):
                os.kill(pid, told)
        assert len(read_all(made)) == (99 if moment == "at work" else 100)


PARENT = """
    import os, sys, time, numpy as np
    from elastic.data.loader import Loader, Request
    from elastic.events.observer import Observer

    class Slow:
        def __len__(self): return 1000
        def __getitem__(self, index):
            if index >= 5: time.sleep(3600)
            return os.getpid()

    loader = Loader(Slow(), seed=0, observer=Observer(), num_workers=2)
    loader.open(Request(np.zeros(1, dtype=np.int64), np.array([i])) for i in range(100))
    print(*{int(loader.next().batch) for _ in range(2)}, flush=True)
"""


@pytest.mark.nightly(sample=2)
@pytest.mark.parametrize("way", ["killed", "told to leave", "finished", "failed", "os._exit"])
def test_loader_processes_are_gone_when_their_worker_is(way: str) -> None:
    """However it ends, and although they are stuck in a read. Left behind, they would hold memory and ports."""
    last = {"finished": "", "failed": "raise ValueError", "os._exit": "os._exit(0)"}.get(way, "time.sleep(3600)")
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PARENT) + last],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as parent:
        loaders: list[psutil.Process] = []
        try:
            assert parent.stdout is not None
            pids = parent.stdout.readline().split()
            assert len(pids) == 2
            for pid in map(int, pids):
                with contextlib.suppress(psutil.NoSuchProcess):  # a worker that has nothing left to do ends at once
                    loaders.append(psutil.Process(pid))
            if way in ("killed", "told to leave"):
                parent.send_signal(signal.SIGKILL if way == "killed" else signal.SIGTERM)
            _, said = parent.communicate(timeout=60)
            left_behind = psutil.wait_procs(loaders, timeout=30)[1]
        finally:
            parent.kill()
            for loader in loaders:
                with contextlib.suppress(psutil.NoSuchProcess):
                    loader.kill()

    assert left_behind == []
    assert ("ValueError" in said) == (way == "failed")
    assert said.count("Error") == (1 if way == "failed" else 0)


def test_the_folder_of_a_killed_worker_is_removed_by_the_next_one(tmp_path: Path) -> None:
    """A week of kills must not fill /tmp; and a living worker's folder must not be taken for a dead one's."""
    program = (
        "import sys, tempfile; tempfile.tempdir = sys.argv[1]\n"
        "from elastic.data.scratch import Scratch\n"
        "scratch = Scratch(); print(scratch.folder, flush=True); sys.stdin.read(); scratch.close()\n"
    )

    def worker() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def folder_of(process: subprocess.Popen[str]) -> Path:
        assert process.stdout is not None
        return Path(process.stdout.readline().strip())

    with worker() as killed, worker() as living:
        abandoned, used = folder_of(killed), folder_of(living)
        killed.kill()
        killed.wait(timeout=30)
        assert abandoned.exists()
        os.utime(abandoned, (0, 0))  # an hour later, say: a folder that was made just now is left alone
        with worker() as newcomer:
            own = folder_of(newcomer)
            assert sorted(tmp_path.iterdir()) == sorted([used, own])
            newcomer.communicate(timeout=30)
        living.communicate(timeout=30)
    assert list(tmp_path.iterdir()) == []


def test_processes_of_the_script_s_own_loader_may_outlive_the_run_s(capfd: pytest.CaptureFixture[str]) -> None:
    """As timm's for evaluation do, which persist: their sockets are none of those that go with the run's processes."""
    own: DataLoader[Any] = DataLoader(
        TensorDataset(torch.ones(40, 2)), batch_size=8, num_workers=1, persistent_workers=True
    )
    made = Loader(Asked(lambda i: torch.full((1000,), i)), seed=7, observer=Observer(), num_workers=1)
    made.open(consecutive(4))
    assert len(list(own)) == len(read_all(made)) + 1
    made.close()
    assert len(list(own)) == 5
    processes = multiprocessing.active_children()
    del own
    gc.collect()
    for process in processes:
        process.join(30)
    assert [process.exitcode for process in processes] == [0]
    assert "listener" not in capfd.readouterr().err


def test_a_batch_that_cannot_be_handed_over_is_an_error_and_not_waited_for(capfd: pytest.CaptureFixture[str]) -> None:
    """Python prints why a queue's thread could not pickle it, and drops it; whoever asked would wait for ever."""
    with loader(Asked(lambda i: threading.Lock() if i == 9 else i), num_workers=1, collate_fn=list) as made:
        made.open([request(1), request(9)])
        made.next()
        with pytest.raises(LoaderError, match=r"exit code 74: what it had read could not be handed over, as it says"):
            made.next()
    assert "cannot pickle '_thread.lock' object" in capfd.readouterr().err
