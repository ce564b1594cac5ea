"""A folder that appears whole or not at all: written under a temporary name beside it, fsynced, then renamed.

A crash before leaves a folder `.<name>.<12 digits>.tmp`; the next one that is to have this name removes it. One that is
being written is locked, by a lock that goes with its process.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from elastic_checkpoint.errors import CheckpointError


class ExportFailed(CheckpointError):
    """Nothing was exported: the folder is not there, or is as it was."""


@contextlib.contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Return an empty folder to write into, which becomes `out` if the block ends well and goes if it does not.

    Raises `ExportFailed` where `out` is anything but absent or an empty folder, or cannot be made.
    """
    target = Path(os.path.realpath(out.expanduser()))
    if os.path.lexists(target) and not target.is_dir():
        raise _refused(target, "is a file", "a new name, or an empty folder")
    try:
        if target.is_dir() and any(target.iterdir()):
            raise _refused(target, f"holds {sum(1 for _ in target.iterdir())} files", "a new name, or an empty folder")
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_remains(target)
        folder, lock = _locked_folder(target)
    except OSError as error:
        raise _refused(target, f"cannot be made: {error.strerror or error}", "a folder that may be written") from error
    try:
        yield folder
        _publish(folder, target)
    except OSError as error:
        raise _failed(target, error) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # nothing is there any more if it was renamed
        os.close(lock)


def _remove_remains(target: Path) -> None:
    """Remove folders of exports to this name whose processes are gone. One that cannot be locked is left alone."""
    made_by_us = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{12}}\.tmp")
    for folder in target.parent.iterdir():
        if made_by_us.fullmatch(folder.name):
            with contextlib.suppress(OSError), _locked(folder):
                shutil.rmtree(folder)


def _locked_folder(target: Path) -> tuple[Path, int]:
    """Return a new folder, and what holds its lock until it is closed."""
    while True:
        folder = target.parent / f".{target.name}.{secrets.token_hex(6)}.tmp"
        folder.mkdir()
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if folder.exists():
                return folder, lock
        except BlockingIOError:
            pass  # another export takes it for remains, and removes it
        except OSError as error:
            if error.errno not in (errno.EBADF, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
                os.close(lock)
                raise
            return folder, lock  # this filesystem has no locks, so nobody removes what is left on it
        os.close(lock)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Raise OSError where another process has it, or where it cannot be known."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(lock)


def _publish(folder: Path, target: Path) -> None:
    """Make the folder visible under its name, in one instant and for good."""
    for path in [*folder.iterdir(), folder]:
        _fsync(path)
    os.rename(folder, target)  # replaces an empty folder, and fails if somebody has filled it meanwhile
    _fsync(target.parent)


def _fsync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _refused(target: Path, found: str, expected: str) -> ExportFailed:
    return ExportFailed(
        f"{target} {found}\n  expected  {expected}\n"
        "  state     nothing was read or written\n  next      give another OUT, or remove what is there"
    )


def _failed(target: Path, error: OSError) -> ExportFailed:
    return ExportFailed(
        f"{target} could not be written: {error}\n"
        f"  state  nothing of it is left; the checkpoint is as it was\n"
        f"  next   see whether {target.parent} has room and may be written, then export again"
    )
