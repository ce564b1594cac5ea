"""What did a launch leave on the machine: shared memory and temporary files? Others use the same machine meanwhile.

Temporary files are the launch's where they lie in its TMPDIR. Shared memory is one place for all programs, and is the
launch's where its name tells one of the launch's processes, as that of torch's batches does. Other names tell nothing,
and nothing of ours has one: semaphores of multiprocessing have no name once they are made, and one that a kill has left
within sem_open is nobody's to remove.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from elastic.data.scratch import CHILD
from elastic_checkpoint import linux

SHARED_MEMORY = Path("/dev/shm")
SEMAPHORE = "sem."  # so sem_open's file in shared memory begins
_NAMED = re.compile(r"torch_(\d+)_")
OF_LOADERS = "elst-"
TORCH_S_OWN = "torchinductor_"  # the folder of torch's compile cache, which an optimizer makes in every script


@dataclass(frozen=True)
class Snapshot:
    """The names in shared memory and in TMPDIR that there were before a launch."""

    shared: frozenset[str] = frozenset()
    temporary: frozenset[str] = frozenset()

    @classmethod
    def take(cls, folder: Path) -> Snapshot:
        """Return the names that there are now. folder: the drill's, whose tmp/ is the launch's TMPDIR."""
        return cls(_names(SHARED_MEMORY), _names(folder / "tmp"))

    def new(self, folder: Path, pids: Collection[int], *, killed: bool = False) -> list[str]:
        """Return, in words, what the launch has left: it is there now, and was not before.

        killed  workers were: what each of them kept for its loader processes' sockets, and what those left in shared
                memory, is removed by the next worker that starts on the machine (data/scratch.py), so it is no leak
                once its lock is free
        pids    of the launch's processes, which have ended: what a living process holds is somebody else's
        """
        files = sorted(_names(folder / "tmp") - self.temporary)
        removable = {name for name in files if killed and _next_worker_removes(folder / "tmp" / name)}
        files = [name for name in files if name not in removable]
        temporary = [f"temporary file {name}" for name in files if not name.startswith(TORCH_S_OWN)]
        noted = {child for name in removable for child in _names(folder / "tmp" / name) if child.startswith(CHILD)}
        shared = [name for name in self._shared_of(pids) if f"{CHILD}{pid_in_name(name)}" not in noted]
        held = _held() if shared else set()
        return temporary + [f"shared memory {SHARED_MEMORY / name}" for name in shared if name not in held]

    def remove(self, pids: Collection[int]) -> None:
        """Remove the shared memory that names these processes, which have ended, and was not there before."""
        for name in self._shared_of(pids):
            (SHARED_MEMORY / name).unlink(missing_ok=True)

    def _shared_of(self, pids: Collection[int]) -> list[str]:
        """Return the new names in shared memory that tell one of these processes."""
        return [name for name in sorted(_names(SHARED_MEMORY) - self.shared) if pid_in_name(name) in pids]


def _names(folder: Path) -> frozenset[str]:
    with contextlib.suppress(FileNotFoundError):
        return frozenset(os.listdir(folder))
    return frozenset()


def _next_worker_removes(path: Path) -> bool:
    """Return whether the next worker removes what lies there: a folder for sockets that nobody holds any more."""
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


def pid_in_name(name: str) -> int | None:
    """Return the pid in the name of a file in shared memory of torch's: torch_<pid>_<random>_<number>; else None."""
    named = _NAMED.match(name)
    return int(named[1]) if named is not None else None


def _held() -> set[str]:
    """Return the names in shared memory that living processes map or have open."""
    held = set()
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                held |= set(re.findall(rf"{SHARED_MEMORY}/(\S+)", (process / "maps").read_text()))
                held |= {os.path.basename(link) for link in linux.descriptors(process.name).values()}
    return held
