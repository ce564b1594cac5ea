"""A small disk for a run in a drill, which can be full or read-only for a while: a tmpfs. Linux, root.

Everything is real: writes end with ENOSPC or EROFS, in every process that has the folder. The run's evidence lies
elsewhere.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
from pathlib import Path

from elastic.errors import ConfigError
from elastic_checkpoint.linux import mounts

FULL = "full"
_SOURCE = "elastic-drill"  # what our disks are called among the machine's mounts
_BALLAST = ".ballast"
_ROOM = 64 << 20  # bytes, beside eight times what an undisturbed run holds
_WITHIN_S = 30.0
_ATTEMPTS = 20


def check() -> None:
    """Raise ConfigError if no disk can be made."""
    if os.geteuid() != 0:
        raise ConfigError(
            "--disk-full and --read-only mount a small disk of memory (tmpfs), which only root may\n"
            "  next  run the drill as root, in a container say, or use --storage-errors"
        )


def mount(folder: Path, *, like: Path) -> None:
    """Put a disk at `folder`, with room for a run that holds what the one at `like` does. Raises ConfigError."""
    held = sum(path.stat().st_size for path in like.rglob("*") if path.is_file())
    folder.mkdir(parents=True, exist_ok=True)
    refusal = _mount(["-t", "tmpfs", "-o", f"size={_ROOM + 8 * held},mode=755", _SOURCE, str(folder)])
    if refusal is not None:
        raise ConfigError(f"--disk-full and --read-only: no tmpfs can be mounted at {folder}: {refusal}")


def unmount(folder: Path) -> None:
    """Take the disk away, if there is one; what was on it is gone."""
    for _ in range(_mounted(folder)):
        _umount(folder)


def take_away(folder: Path, *, keep: bool) -> None:
    """Take the disk away, if there is one; with `keep`, copy what is on it to where it was."""
    if not folder.is_mount():
        return
    heal(folder)
    copy = folder.with_name(f"{folder.name}-copy")
    if keep:
        shutil.copytree(folder, copy)
    unmount(folder)
    if keep:
        folder.rmdir()
        copy.rename(folder)


def strike(folder: Path, how: str) -> None:
    """Make the disk full, or read-only, from now on."""
    if how == FULL:
        _fill(folder)
    else:
        _make_read_only(folder)


def heal(folder: Path) -> None:
    """Make the disk writable again, unless it is struck meanwhile."""
    for _ in range(1, _mounted(folder)):
        _umount(folder)
    _mount(["-o", "remount,bind,rw", str(folder)])  # a strike that came between its two calls has hit the disk itself
    with contextlib.suppress(OSError):
        (folder / _BALLAST).unlink(missing_ok=True)


def _fill(folder: Path) -> None:
    """Fill the disk. One that is read-only just now stays as it is: it takes nothing either."""
    try:
        ballast = (folder / _BALLAST).open("wb", buffering=0)
    except OSError as error:
        if error.errno == errno.EROFS:
            return
        raise
    with ballast as file:
        room = os.statvfs(folder)
        with contextlib.suppress(OSError):  # someone else took a part of the room meanwhile
            os.posix_fallocate(file.fileno(), 0, max(1, room.f_bavail * room.f_frsize))
        with contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))


def _make_read_only(folder: Path) -> None:
    """Mount the disk once more, read-only, on top: who opens a file there from now on gets EROFS.

    A disk that someone has a file open on for writing cannot be made read-only itself.
    """
    for _ in range(_ATTEMPTS):  # one may open a file between the two calls
        if _mount(["--bind", str(folder), str(folder)]) is not None:
            return
        if _mount(["-o", "remount,bind,ro", str(folder)]) is None:
            return
        _umount(folder)


def _mounted(folder: Path) -> int:
    """Return how many mounts of ours lie at the folder, one above the other. Nobody else's are touched."""
    where = os.path.realpath(folder)
    return sum(mount.folder == where and mount.source == _SOURCE for mount in mounts())


def _umount(folder: Path) -> None:
    subprocess.run(["umount", "-l", str(folder)], check=False, capture_output=True, timeout=_WITHIN_S)


def _mount(arguments: list[str]) -> str | None:
    """Call mount with these arguments; return why that failed, if it did."""
    try:
        done = subprocess.run(["mount", *arguments], check=False, capture_output=True, text=True, timeout=_WITHIN_S)
    except OSError as error:
        return str(error)
    return None if done.returncode == 0 else done.stderr.strip()
