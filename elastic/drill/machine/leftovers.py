"""What did a launch leave on the machine: shared memory and temporary files? Others use the same machine meanwhile."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from elastic.data.scratch import CHILD

SHARED_MEMORY = Path("/dev/shm")
_NAMED = re.compile(r"torch_(\d+)_")
OF_LOADERS = "elst-"
_GONE_S, _LOOK_S = 5.0, 0.1
TORCH_S_OWN = "torchinductor_"  # the folder of torch's compile cache, which an optimizer makes in every script


@dataclass(frozen=True)
class Snapshot:
    """What there was before a launch."""

    shared: frozenset[str] = frozenset()
    temporary: frozenset[str] = frozenset()

    @classmethod
    def take(cls, folder: Path) -> Snapshot:
        """folder  the drill's, whose tmp/ is the launch's TMPDIR"""
        return cls(_names(SHARED_MEMORY), _names(folder / "tmp"))

    def new(self, folder: Path, pids: Collection[int], *, killed: bool = False) -> list[str]:
        """What is there now and was not, in words.

        killed  workers were: what each of them kept for its loader processes' sockets, and what those left in shared
                memory, is removed by the next worker that starts on the machine (data/scratch.py), so it is no leak
                once its lock is free
        pids    of the launch's processes. Shared memory that names another process, or that a living process holds,
              is somebody else's; so is what is gone soon: semaphores of a program that has ended are removed by
              multiprocessing's resource tracker, which maps none of them
        """
        files = sorted(_names(folder / "tmp") - self.temporary)
        removable = {name for name in files if killed and _next_worker_removes(folder / "tmp" / name)}
        files = [name for name in files if name not in removable]
        temporary = [f"temporary file {name}" for name in files if not name.startswith(TORCH_S_OWN)]
        noted = {child for name in removable for child in _names(folder / "tmp" / name) if child.startswith(CHILD)}
        candidates = [name for name in sorted(_names(SHARED_MEMORY) - self.shared) if _may_be_of(name, pids)]
        candidates = [name for name in candidates if f"{CHILD}{_pid_in(name)}" not in noted]
        until_s = time.monotonic() + _GONE_S
        while candidates := [name for name in candidates if (SHARED_MEMORY / name).exists()]:
            held = _held()
            candidates = [name for name in candidates if name not in held]
            if time.monotonic() >= until_s:
                break
            time.sleep(_LOOK_S)
        return temporary + [f"shared memory {SHARED_MEMORY / name}" for name in candidates]

    def remove(self, pids: Collection[int]) -> None:
        """The shared memory that names these processes, which have ended, and was not there before."""
        for name in _names(SHARED_MEMORY) - self.shared:
            if (named := _NAMED.match(name)) is not None and int(named[1]) in pids:
                (SHARED_MEMORY / name).unlink(missing_ok=True)


def _names(folder: Path) -> frozenset[str]:
    with contextlib.suppress(FileNotFoundError):
        return frozenset(os.listdir(folder))
    return frozenset()


def _next_worker_removes(path: Path) -> bool:
    """Whether the next worker that starts will remove it: a folder for sockets that nobody holds any more."""
    if not path.name.startswith(OF_LOADERS):
        return False
    try:
        lock = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(lock)
    return True


def _may_be_of(name: str, pids: Collection[int]) -> bool:
    """torch names its files torch_<pid>_<random>_<number>; other names tell nothing."""
    named = _NAMED.match(name)
    return named is None or int(named[1]) in pids


def _pid_in(name: str) -> str:
    named = _NAMED.match(name)
    return named[1] if named is not None else ""


def _held() -> set[str]:
    """The names in shared memory that living processes map or have open."""
    held = set()
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                held |= set(re.findall(rf"{SHARED_MEMORY}/(\S+)", (process / "maps").read_text()))
                held |= {Path(os.readlink(fd)).name for fd in (process / "fd").iterdir()}
    return held
