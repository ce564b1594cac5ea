"""A file of one line, which says that a job has left before its end, and why: for whoever starts jobs.

It is whole whenever it is there.
"""

from __future__ import annotations

import os
from pathlib import Path


class ExitFile:
    """The file at a path, by which a job says that it has left."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)

    def write(self, reason: str) -> None:
        """Write the reason as one line, which is there whole or not at all. Raises OSError."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        new = self._path.with_name(f"{self._path.name}.{os.getpid()}.new")  # every node may write, into one folder
        new.write_text(" ".join(reason.split()) + "\n")
        new.replace(self._path)

    def remove(self) -> None:
        """Remove the file of an earlier start. Raises OSError."""
        self._path.unlink(missing_ok=True)
