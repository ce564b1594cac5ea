"""The ends of undisturbed runs, each made once in a test session, also where pytest-xdist spreads it over processes.

Those share a folder of the session, which they alone can write to: what is read there was written by one of them.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import pickle
from collections.abc import Callable
from pathlib import Path

from elastic.drill.end import End


class UndisturbedEnds:
    """folder: of the whole session, for all its processes; None: there is one process."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._known: dict[str, End] = {}

    def get(self, key: str, make: Callable[[], End]) -> End:
        """What `make` returned for that key, here or in another process. Who makes it is waited for."""
        if key not in self._known:
            self._known[key] = make() if self._folder is None else self._shared(self._folder, key, make)
        return self._known[key]

    def _shared(self, folder: Path, key: str, make: Callable[[], End]) -> End:
        path = folder / f"undisturbed-{hashlib.sha256(key.encode()).hexdigest()}"
        with path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the kernel lets go of it for a process that is killed
            if path.exists():
                end: End = pickle.loads(path.read_bytes())  # noqa: S301  written by a process of this session
                return end
            end = make()
            written = path.with_suffix(f".{os.getpid()}")
            written.write_bytes(pickle.dumps(end))
            written.rename(path)
            return end
