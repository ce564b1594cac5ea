"""Where a worker's records go: a file that grows, or objects that are written over until they are full.

    <run>/events/<worker>.jsonl, <worker>.000001.jsonl, …    segments, the newest of which grows
    <run>/events/<worker>.past.000003.jsonl                  what segments 0 to 3 added up to, which are removed

Promises  a worker keeps SEGMENTS full segments, the one that grows, and PAST_BYTES of what was before them.
          At every instant a reader finds each record in one place: a past that is there counts, and not the segments
          that it stands for (`current`), whether they are removed yet or not.
          Nothing here raises for what storage does: it is said once, through `logging`, and training goes on.
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
from collections import deque
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Protocol

from elastic.observe.folding import Folding, forget, joined

Event = dict[str, Any]

SEGMENT_BYTES = 512 << 10
SEGMENTS = 4
PAST_BYTES = 256 << 10
UPLOAD_S = 60.0
PENDING_BYTES_MAX = 64 << 20  # what waits for storage that does not answer; beyond it records are folded

_NAME = re.compile(r"(?P<worker>.+?)(?P<past>\.past)?(?:\.(?P<number>\d{6,}))?\.jsonl")
_log = logging.getLogger("elastic.events")


class Sink(Protocol):
    def write(self, record: Event, line: bytes) -> None: ...
    def keep_all(self) -> None: ...
    def flush(self, *, wait: bool) -> None: ...
    def close(self) -> None: ...


def current(names: Collection[str]) -> dict[str, list[str]]:
    """worker -> the names, in order, that hold all that is known of it."""
    segments: dict[str, dict[int, str]] = {}
    pasts: dict[str, dict[int, str]] = {}
    for name in names:
        if (found := _NAME.fullmatch(name)) is not None:
            into = pasts if found["past"] else segments
            into.setdefault(found["worker"], {})[int(found["number"] or 0)] = name
    order: dict[str, list[str]] = {}
    for worker in sorted({*segments, *pasts}):
        through = max(pasts.get(worker, {-1: ""}))
        past = [pasts[worker][through]] if worker in pasts else []
        order[worker] = past + [name for at, name in sorted(segments.get(worker, {}).items()) if at > through]
    return order


def encoded(record: Mapping[str, Any]) -> bytes:
    return _encode(record).encode() + b"\n"


class _Past:
    """Full segments and what is before them, for a sink that removes the oldest."""

    def __init__(self) -> None:
        self.folding = Folding()
        self._full: deque[tuple[int, Folding]] = deque()
        self._items: list[Event] = []

    def full(self, number: int) -> int | None:
        """Segment `number` is full. Returns the one that is to be removed: `data` stands for it then."""
        self._full.append((number, self.folding))
        self.folding = Folding(since=self.folding.until)
        if len(self._full) <= SEGMENTS:
            return None
        oldest, folding = self._full.popleft()
        self._items = joined([*self._items, *folding.items])
        self._items = _bounded(self._items)
        return oldest

    def data(self) -> bytes:
        return b"".join(map(encoded, self._items))


def _bounded(items: list[Event]) -> list[Event]:
    sizes = [len(encoded(item)) for item in items]
    excess = sum(sizes) - PAST_BYTES
    if excess <= 0:
        return items
    count = 0
    while count < len(items) and excess > -PAST_BYTES // 2:
        excess -= sizes[count]
        count += 1
    return forget(items, count)


class File:
    """Appends to one file, a whole line per write: a SIGKILL loses nothing that was written. Lines of a file whose end
    was torn start on a line of their own."""

    def __init__(self, folder: Path, worker_id: str) -> None:
        self._folder = folder
        self._worker_id = worker_id
        self._lock = threading.Lock()
        self._past = _Past()
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
            whole = b"\n" + line if self._torn else line
            try:
                written = os.write(self._fd, whole)
                self._torn = written < len(whole)  # a full disk may take a part
                self._size += written
                if self._bounded:
                    self._past.folding.add(record)
                    if self._size >= SEGMENT_BYTES:
                        self._next()
            except OSError as error:
                self._complain(error)

    def keep_all(self) -> None:
        self._bounded = False

    def flush(self, *, wait: bool) -> None:
        """Nothing waits: every line was written when it was emitted."""

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
        """A new segment; the oldest goes. A crash between two of these lines leaves what `current` passes over."""
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
        self._path(oldest).unlink(missing_ok=True)
        if oldest > 0:
            (self._folder / f"{self._worker_id}.past.{oldest - 1:06d}.jsonl").unlink(missing_ok=True)

    def _path(self, number: int) -> Path:
        return self._folder / (f"{self._worker_id}.{number:06d}.jsonl" if number else f"{self._worker_id}.jsonl")

    def _complain(self, error: OSError) -> None:
        if not self._complained:
            self._complained = True
            _log.warning("events are not being recorded in %s: %s; training goes on", self._folder, error)


class Objects:
    """Collects lines and uploads them in a thread of its own, every UPLOAD_S and when asked to.

    What a worker that is killed had not uploaded is lost. The object of the newest segment is written over as it grows.
    """

    def __init__(self, url: str, storage_options: dict[str, Any] | None, worker_id: str) -> None:
        from checkpoint.storage import open_storage

        self._storage = open_storage(url, storage_options)
        self._worker_id = worker_id
        self._lock = threading.Lock()
        self._uploading = threading.Lock()
        self._past = _Past()
        self._overflow: Folding | None = None
        self._bounded = True
        self._lines: list[bytes] = []  # of the newest segment
        self._size = 0
        self._uploaded = 0  # of its bytes
        self._number = 0
        self._begun = False  # its object is there
        self._complained = False
        self._asked = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._upload, name="elastic-events", daemon=True)
        self._thread.start()

    def write(self, record: Event, line: bytes) -> None:
        with self._lock:
            if self._size + len(line) > PENDING_BYTES_MAX:
                self._overflow = self._overflow or Folding(since=self._past.folding.until)
                self._overflow.add(record)
                return
            if self._overflow is not None:
                for item in self._overflow.items:
                    self._take(item, encoded(item))
                self._overflow = None
            self._take(record, line)

    def keep_all(self) -> None:
        self._bounded = False

    def flush(self, *, wait: bool) -> None:
        if wait:
            self._put()
        else:
            self._asked.set()

    def close(self) -> None:
        self._closing = True
        self._asked.set()
        self._thread.join(timeout=1.0)  # if it is in the middle of an upload that does not end, ours waits for it
        self._put()

    def _take(self, record: Event, line: bytes) -> None:
        self._lines.append(line)
        self._size += len(line)
        if self._bounded:
            self._past.folding.add(record)

    def _upload(self) -> None:
        while not self._closing:
            self._asked.wait(UPLOAD_S)
            self._asked.clear()
            if not self._closing:
                self._put()

    def _put(self) -> None:
        """A failure is said once, and made up for at the next time."""
        with self._uploading:
            with self._lock:
                data, full = b"".join(self._lines), self._size >= SEGMENT_BYTES
                if len(data) == self._uploaded:
                    return
                if full:  # what comes meanwhile goes into the next one
                    self._lines, self._size = [], 0
                    folding, self._past.folding = self._past.folding, Folding(since=self._past.folding.until)
            try:
                self._put_segment(data)
            except Exception as error:  # whatever storage raises, training is worth more than its log
                if not self._complained:
                    self._complained = True
                    _log.warning("events of %s were not uploaded: %s; tried again later", self._worker_id, error)
                if full:
                    with self._lock:
                        self._lines, self._size = [data, *self._lines], len(data) + self._size
                        newer, self._past.folding = self._past.folding, folding
                        self._past.folding.items += newer.items
                        self._past.folding.until = newer.until
                return
            self._uploaded = 0 if full else len(data)
            if full:
                self._next(folding)

    def _put_segment(self, data: bytes) -> None:
        """Under the next free number, and then over it. (`put_new` knows bytes that its own retry has put there.)"""
        from checkpoint.storage import AlreadyThere

        while not self._begun:
            try:
                self._storage.put_new(self._key(self._number), data)
                self._begun = True
                return
            except AlreadyThere:
                self._number += 1
        self._storage.put(self._key(self._number), data)

    def _next(self, folding: Folding) -> None:
        """As in File."""
        number = self._number
        self._number, self._begun = number + 1, False
        if not self._bounded:
            return
        with self._lock:
            newer, self._past.folding = self._past.folding, folding
            oldest = self._past.full(number)
            self._past.folding = newer
        if oldest is None:
            return
        try:
            self._storage.put(f"events/{self._worker_id}.past.{oldest:06d}.jsonl", self._past.data())
            self._storage.delete(self._key(oldest))
            if oldest > 0:
                self._storage.delete(f"events/{self._worker_id}.past.{oldest - 1:06d}.jsonl")
        except Exception as error:
            _log.info("old events of %s were not removed: %s", self._worker_id, error)

    def _key(self, number: int) -> str:
        return f"events/{self._worker_id}.{number:06d}.jsonl"


def _plain(value: Any) -> Any:
    """What JSON cannot say: a NumPy scalar's value, anything else's str()."""
    import numpy as np

    return value.item() if isinstance(value, np.generic) else str(value)


_encode = json.JSONEncoder(separators=(",", ":"), default=_plain).encode
