"""Where a worker's records go: a file that grows (here), or objects (remote_sink.py). segments.py says what both keep.

Nothing here raises for what a disk or a storage does: it is said once, through `logging`, and training goes on.
"""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path
from typing import Protocol

from elastic.events.event import Event
from elastic.events.segments import SEGMENT_BYTES, PastSegments

log = logging.getLogger("elastic.events")


class Sink(Protocol):
    """A place to which an EventLog writes its records."""

    def write(self, record: Event, line: bytes) -> None: ...
    def keep_uncompacted(self) -> None: ...
    def flush(self, *, wait: bool) -> None: ...
    def close(self) -> None: ...


class FileSink:
    """Appends to one file, a whole line per write: a SIGKILL loses nothing that was written."""

    def __init__(self, folder: Path, worker_id: str) -> None:
        self._folder = folder
        self._worker_id = worker_id
        self._lock = threading.Lock()
        self._past = PastSegments()
        self._bounded = True
        self._number = 0
        self._size = 0
        self._fd: int | None = None
        self._torn = False
        self._complained = False
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._open()
        except OSError as error:
            self._complain(error)

    def write(self, record: Event, line: bytes) -> None:
        with self._lock:
            if self._fd is None:
                return
            whole = b"\n" + line if self._torn else line  # a line of its own behind a torn end
            try:
                written = os.write(self._fd, whole)
                self._torn = written < len(whole)  # a full disk may take a part
                self._size += written
                if self._bounded:
                    self._past.compaction.add(record)
                    if self._size >= SEGMENT_BYTES:
                        self._next()
            except OSError as error:
                self._complain(error)

    def keep_uncompacted(self) -> None:
        self._bounded = False

    def flush(self, *, wait: bool) -> None:
        """Do nothing: every line was written when it was emitted."""

    def close(self) -> None:
        with self._lock:
            fd, self._fd = self._fd, None
            if fd is not None:
                os.close(fd)

    def _open(self) -> None:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._fd = os.open(self._path(self._number), flags, 0o644)
        self._size = os.fstat(self._fd).st_size
        self._torn = self._size > 0 and os.pread(self._fd, 1, self._size - 1) != b"\n"

    def _next(self) -> None:
        """Begin a new segment; the oldest goes. A crash between two of these lines leaves what `current` skips."""
        before, number = self._fd, self._number
        self._number += 1
        self._open()
        if before is not None:
            os.close(before)
        oldest = self._past.full(number)
        if oldest is None:
            return
        past = self._folder / f"{self._worker_id}.past.{oldest:06d}.jsonl"
        unfinished = self._folder / f".{past.name}"
        unfinished.write_bytes(self._past.data())
        unfinished.replace(past)
        # From here on the past counts, and not the segments that it stands for.
        self._path(oldest).unlink(missing_ok=True)
        if oldest > 0:
            (self._folder / f"{self._worker_id}.past.{oldest - 1:06d}.jsonl").unlink(missing_ok=True)

    def _path(self, number: int) -> Path:
        return self._folder / (f"{self._worker_id}.{number:06d}.jsonl" if number else f"{self._worker_id}.jsonl")

    def _complain(self, error: OSError) -> None:
        if not self._complained:
            self._complained = True
            log.warning("events are not being recorded in %s: %s; training goes on", self._folder, error)


def local_folder(url: str | os.PathLike[str]) -> Path | None:
    """Return the folder that `url` names, or None if it is not on a local file system."""
    text = os.fspath(url)
    for scheme in ("file://", "local://"):
        if text.startswith(scheme):
            return Path(text[len(scheme) :])
    return None if "://" in text else Path(text)
