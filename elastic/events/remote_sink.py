"""A worker's records in object storage: a thread uploads them once a minute and when asked to.

Objects cannot be appended to, so that of the newest segment is written over as it grows. What a worker that is killed
had not uploaded is lost. While storage does not answer, records wait in memory; beyond PENDING_BYTES_MAX they are
folded, so that totals stay right.
"""

from __future__ import annotations

import threading
from typing import Any

from elastic.events.compaction import Compaction
from elastic.events.event import Event
from elastic.events.segments import SEGMENT_BYTES, PastSegments, encoded
from elastic.events.sinks import log

UPLOAD_S = 60.0
PENDING_BYTES_MAX = 64 << 20


class RemoteSink:
    """A sink that uploads; see the module's docstring."""

    def __init__(self, url: str, storage_options: dict[str, Any] | None, worker_id: str) -> None:
        from elastic_checkpoint.storage import open_storage

        self._storage = open_storage(url, storage_options)
        self._worker_id = worker_id
        self._lock = threading.Lock()
        self._uploading = threading.Lock()
        self._past = PastSegments()
        self._overflow: Compaction | None = None
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
        """Take a record in; where too much waits to be uploaded, only fold it."""
        with self._lock:
            if self._size + len(line) > PENDING_BYTES_MAX:
                self._overflow = self._overflow or Compaction(since=self._past.compaction.until)
                self._overflow.add(record)
                return
            self._take_overflow()
            self._take(record, line)

    def keep_uncompacted(self) -> None:
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
        if self._put():
            self._put()  # what was folded because storage had not answered; else there is nothing to do

    def _take_overflow(self) -> None:
        overflow, self._overflow = self._overflow, None
        for item in overflow.items if overflow is not None else ():
            self._take(item, encoded(item))

    def _take(self, record: Event, line: bytes) -> None:
        self._lines.append(line)
        self._size += len(line)
        if self._bounded:
            self._past.compaction.add(record)

    def _upload(self) -> None:
        while not self._closing:
            self._asked.wait(UPLOAD_S)
            self._asked.clear()
            if not self._closing:
                self._put()

    def _put(self) -> bool:
        """Upload what waits; tell whether all is there. A failure is said once, and made up for at the next time."""
        with self._uploading:
            with self._lock:
                data, full = b"".join(self._lines), self._size >= SEGMENT_BYTES
                if len(data) == self._uploaded:
                    return True
                if full:  # what comes meanwhile goes into the next one
                    self._lines, self._size = [], 0
                    compaction = self._past.compaction
                    self._past.compaction = Compaction(since=compaction.until)
            try:
                self._put_segment(data)
            except Exception as error:  # whatever storage raises, training is worth more than its log
                if not self._complained:
                    self._complained = True
                    log.warning("events of %s were not uploaded: %s; tried again later", self._worker_id, error)
                if full:
                    with self._lock:
                        self._lines, self._size = [data, *self._lines], len(data) + self._size
                        newer, self._past.compaction = self._past.compaction, compaction
                        self._past.compaction.items += newer.items
                        self._past.compaction.until = newer.until
                return False
            self._uploaded = 0 if full else len(data)
            if full:
                self._next(compaction)
                with self._lock:
                    self._take_overflow()
            return True

    def _put_segment(self, data: bytes) -> None:
        """Put the segment under the next free number, and from then on over what is there."""
        from elastic_checkpoint.storage import AlreadyThere

        while not self._begun:
            try:
                # `put_new` knows bytes that its own retry has put there.
                self._storage.put_new(self._key(self._number), data)
                self._begun = True
                return
            except AlreadyThere:
                self._number += 1
        self._storage.put(self._key(self._number), data)  # an object cannot be appended to

    def _next(self, compaction: Compaction) -> None:
        """Begin a new segment, and remove the oldest, as FileSink does."""
        number = self._number
        self._number, self._begun = number + 1, False
        if not self._bounded:
            return
        with self._lock:
            newer, self._past.compaction = self._past.compaction, compaction
            oldest = self._past.full(number)
            self._past.compaction = newer
        if oldest is None:
            return
        try:
            self._storage.put(f"events/{self._worker_id}.past.{oldest:06d}.jsonl", self._past.data())
            self._storage.delete(self._key(oldest))
            if oldest > 0:
                self._storage.delete(f"events/{self._worker_id}.past.{oldest - 1:06d}.jsonl")
        except Exception as error:
            log.info("old events of %s were not removed: %s", self._worker_id, error)

    def _key(self, number: int) -> str:
        return f"events/{self._worker_id}.{number:06d}.jsonl"
