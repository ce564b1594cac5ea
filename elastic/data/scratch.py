"""A folder for the sockets of loader processes that does not pile up when workers are killed.

multiprocessing makes a folder per child, `pymp-…`, and removes it when the child exits; a killed child
leaves it behind. Here the worker makes one for all its children, removes it when it ends them, and
removes those of killed workers when it starts. Whose worker lives is told by a lock on the folder, which
the kernel drops when the last process that holds it is gone.

It also tells which loader processes there were: one that is killed in the midst of handing over a batch leaves that in
shared memory, in a file that nobody else removes.

The kernel takes no socket's path above 107 bytes, and a TMPDIR may be longer than that (a batch system's, a test's):
then the folder is named by the descriptor that the worker has open on it, which is short.
"""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from elastic.errors import ConfigError

_AGE_S = 1.0  # a younger folder may be one that its worker has made and not locked yet
_PREFIX = "elst-"
CHILD = "child-"
_SHARED = Path("/dev/shm")  # where torch makes torch_<pid>_<…>, and takes the name away once it is open
_PATH_MAX = 107  # bytes of a socket's path
_SOCKET = "/listener-12345678"  # as multiprocessing names them


class Scratch:
    """The folder for sockets of loader processes, while this lives in the worker that made it."""

    def __init__(self) -> None:
        _remove_abandoned()
        self.folder, self._lock = _locked_folder()
        self._sockets_folder = self._short_name()

    @contextlib.contextmanager
    def for_children(self) -> Iterator[None]:
        """Have processes that are forked within this context use the folder."""
        # multiprocessing has no public way to say where its sockets go; a child copies this from its parent.
        config = multiprocessing.current_process()._config  # type: ignore[attr-defined]
        before = {"tempdir": config["tempdir"]} if "tempdir" in config else {}
        # Within the context only: a loader of the script's own may live longer than the folder does.
        config["tempdir"] = self._sockets_folder
        try:
            yield
        finally:
            del config["tempdir"]
            config.update(before)

    def note(self, pids: Iterable[int]) -> None:
        """Note the children's process ids, for whoever removes the folder."""
        for pid in pids:
            with contextlib.suppress(OSError):  # a full disk: what they might leave is not worth an error
                (self.folder / f"{CHILD}{pid}").touch()

    def close(self) -> None:
        """Remove the folder. Call it when the children are gone."""
        _remove(self.folder)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _short_name(self) -> str:
        """Return a name of the folder that is short enough for sockets in it. Raises ConfigError if there is none."""
        name = str(self.folder)
        if _fits(name):
            return name
        # Open as long as the folder is in use, here and in the children; any process of this user may follow it.
        name = f"/proc/{os.getpid()}/fd/{self._lock}"
        if os.path.isdir(name):
            return name
        self.close()
        raise ConfigError(
            f"the sockets of loader processes cannot lie in {self.folder}: their paths would be longer than the "
            f"{_PATH_MAX} bytes that the kernel takes\n"
            "  state  nothing is read yet\n"
            "  next   set TMPDIR to a shorter path"
        )


def _fits(folder: str) -> bool:
    return len(os.fsencode(folder + _SOCKET)) <= _PATH_MAX


def _locked_folder() -> tuple[Path, int]:
    """Make a folder and lock it; make another one where its lock came too late."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        try:
            lock = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:
            continue  # this process stood still so long that another worker took the folder for abandoned
        fcntl.flock(lock, fcntl.LOCK_EX)  # the kernel drops it with the last process that holds it
        if folder.exists():
            return folder, lock
        os.close(lock)  # the same, one line later


def _remove_abandoned() -> None:
    """Remove the folders of workers that do not live, which nobody locks."""
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
    """Remove sockets, what children left in shared memory, and the folder; one that holds anything else is not ours."""
    with contextlib.suppress(OSError):
        for child in folder.glob(f"{CHILD}*"):
            pid = child.name.removeprefix(CHILD)
            if pid.isdecimal() and not Path("/proc", pid).exists():
                for shared in _SHARED.glob(f"torch_{pid}_*"):
                    shared.unlink(missing_ok=True)
            child.unlink()
        for socket in folder.glob("listener-*"):
            socket.unlink()
        folder.rmdir()
