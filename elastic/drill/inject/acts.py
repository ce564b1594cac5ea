"""Carries out one fault, here and now, in the process that it strikes or beside it. The signals and limits are real."""

from __future__ import annotations

import gc
import os
import resource
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import torch

from checkpoint.format.names import COMMITS, CommitId, commit_id
from checkpoint.linux import command_line, process_stat
from elastic.drill.faults import (
    Disk,
    Fault,
    Flip,
    Hold,
    Join,
    Kill,
    KillAgent,
    KillAll,
    KillChild,
    KillTogether,
    LeaveNode,
    OutOfMemory,
    Raise,
    Slow,
    StickLoader,
    Stop,
    Terminate,
)
from elastic.drill.machine import disk
from elastic.drill.machine.processes import WRITER, children, kill_marked, marked

_FLIPPED = "flipped"
_LOOK_S = 0.02
_SPARE_BYTES = 256 << 20  # what may still be had under the limit, for whoever clears up
_FORKED_ONLY = 0x40  # the kernel's PF_FORKNOEXEC
_COMMANDS = {"writer": WRITER, "warm": b"elastic.launch.warm"}


class OnPurpose(Exception):
    """What a plan made the script raise."""


def act(fault: Fault, folder: Path, *, storage: Path | None, peers: Callable[[], Iterable[int]], let_go: Path) -> None:
    """
    folder  the drill's
    storage the run's, where it is a local folder
    peers   pids of those whom KillTogether hits beside this process
    let_go  the file that ends a Hold
    Kinds that go on for a while (Slow, StickLoader where the dataset itself is to hang) are the caller's.
    """
    match fault:
        case Kill():
            os.kill(os.getpid(), signal.SIGKILL)
        case KillTogether():
            for pid in peers():
                os.kill(pid, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        case KillAll():
            kill_marked(folder)
            os.kill(os.getpid(), signal.SIGKILL)
        case Stop():
            os.kill(os.getpid(), signal.SIGSTOP)
        case Raise():
            raise OnPurpose(str(fault))
        case OutOfMemory():
            _run_out_of_memory()
        case Terminate():
            os.kill(os.getpid(), signal.SIGTERM)
        case KillAgent():
            os.kill(os.getppid(), signal.SIGKILL)
        case LeaveNode():
            os.kill(os.getppid(), signal.SIGTERM)
        case KillChild():
            for pid in helpers(fault, folder)[:1]:
                os.kill(pid, signal.SIGKILL)
        case StickLoader():
            for pid in loader_processes():
                os.kill(pid, signal.SIGSTOP)
        case Disk():
            assert storage is not None
            disk.strike(storage, fault.how)
        case Flip():
            _flip(storage, folder)
        case Hold():
            gc.collect()  # what only waits for that is not held for good
            while not let_go.exists():
                time.sleep(_LOOK_S)
        case Join() | Slow():
            """The cluster starts the node; the observer slows the worker down."""


def possible(fault: Fault, folder: Path, storage: Path | None) -> bool:
    """Whether there is at this moment what the fault would hit."""
    if isinstance(fault, Disk):
        return storage is not None and storage.is_mount()
    if isinstance(fault, Flip):
        return len(_commits(storage)) > 1 and disk.writable(storage)
    return not isinstance(fault, KillChild) or bool(helpers(fault, folder))


def flipped(folder: Path) -> set[str]:
    """The names of the checkpoints that Flip has damaged in this drill."""
    try:
        return set((folder / _FLIPPED).read_text().split())
    except FileNotFoundError:
        return set()


def helpers(fault: KillChild, folder: Path) -> list[int]:
    """The pids of what a KillChild means, seen from the worker that it strikes."""
    if fault.of == "loader":
        return loader_processes()
    parent = os.getppid() if fault.of == "warm" else os.getpid()
    return [pid for pid in children(parent) if _COMMANDS[fault.of] in command_line(pid) and not _only_forked(pid)]


def loader_processes() -> list[int]:
    """This process's own forks."""
    own = command_line(os.getpid())
    return [pid for pid in children(os.getpid()) if command_line(pid) == own]


def _run_out_of_memory() -> None:
    """Raises what torch raises for a tensor that the kernel has no memory for."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + _SPARE_BYTES
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    try:
        torch.empty(2 * _SPARE_BYTES, dtype=torch.uint8)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _commits(storage: Path | None) -> list[CommitId]:
    """Of what is committed there, in order."""
    names = (storage / COMMITS).glob("*") if storage is not None else ()
    found = (commit_id(f"{COMMITS}/{path.name}") for path in names)
    return sorted(id for id in found if id is not None)


def _flip(storage: Path | None, folder: Path) -> None:
    """One bit in the middle of the newest checkpoint's first object."""
    assert storage is not None
    newest = _commits(storage)[-1]
    data = min((storage / newest.data_folder).iterdir())
    with data.open("r+b") as file:
        file.seek(data.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    with (folder / _FLIPPED).open("a") as file:
        file.write(f"{newest}\n")


def _only_forked(pid: int) -> bool:
    """Whether its command is that of the process which it was forked from, as a worker's is the warm process's."""
    stat = process_stat(pid)
    return stat is not None and bool(stat.flags & _FORKED_ONLY)


def alive_among(pids: Iterable[int], folder: Path) -> list[int]:
    """Those that still run and belong to the drill."""
    living = marked(folder)
    return [pid for pid in pids if pid in living]
