"""A folder for the sockets of loader processes that does not pile up when workers are killed.

multiprocessing makes a folder per child, `pymp-…`, and removes it when the child exits; a killed child
leaves it behind. Here the worker makes one for all its children, removes it when it ends them, and
removes those of killed workers when it starts. Whose worker lives is told by a lock on the folder, which
the kernel drops when the last process that holds it is gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing
import os
import tempfile
import time
from pathlib import Path

_AGE_S = 1.0  # a younger folder may be one that its worker has made and not locked yet
_PREFIX = "elst-"  # as short as multiprocessing's own: a socket's path has 107 bytes in all


class Scratch:
    """The folder, while this lives in the worker that made it. Children that are forked meanwhile use it."""

    def __init__(self) -> None:
        _remove_abandoned()
        self.folder, self._lock = _locked_folder()
        # multiprocessing has no public way to say where its sockets go; a child copies this from its parent.
        multiprocessing.current_process()._config["tempdir"] = str(self.folder)  # type: ignore[attr-defined]

    def close(self) -> None:
        """Removes the folder. Call it when the children are gone."""
        config = multiprocessing.current_process()._config  # type: ignore[attr-defined]
        if config.get("tempdir") == str(self.folder):
            del config["tempdir"]
        _remove(self.folder)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _locked_folder() -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        try:
            lock = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:
            continue  # this process stood still so long that another worker took the folder for abandoned
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():
            return folder, lock
        os.close(lock)  # the same, one line later


def _remove_abandoned() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            if time.time() - folder.stat().st_mtime < _AGE_S:
                continue
            descriptor = os.open(folder, os.O_RDONLY)
        except OSError:
            continue  # somebody else's, or just removed
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(folder)
        except BlockingIOError:
            pass  # its worker lives
        finally:
            os.close(descriptor)


def _remove(folder: Path) -> None:
    """Removes sockets and the folder; one that holds anything else is not ours and stays."""
    with contextlib.suppress(OSError):
        for socket in folder.glob("listener-*"):
            socket.unlink()
        folder.rmdir()
