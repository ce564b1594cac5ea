"""What happened, as records that people, tests and the judge read afterwards. Code emits; prose is drawn from records.

One record per line of JSON, in segments per worker under <run>/events. In a folder every record is one O_APPEND write,
so a SIGKILL loses nothing that was emitted (a power cut may). Object storage cannot append: records wait in memory and
are uploaded by a thread once a minute and at saves, so a killed worker loses those since. A log that cannot be written
says so once, through `logging`, and never stops training.

A log is bounded (segments.py): of a long run's worker the newest steps are there one by one, and those before as sums
(folding.py). Which events there are, and what each says, is schema.py's.
"""

from __future__ import annotations

import contextlib
import hashlib
import heapq
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from elastic.observe.segments import current, encoded
from elastic.observe.sinks import File, Sink, log
from elastic.observe.uploads import Objects

Event = dict[str, Any]

_VALUES_MAX = 16
_READERS = 8
_LOOKS = 5  # a run that is under way may remove a segment between a look at the folder and the reading of it


class EventLog:
    """This worker's records. Safe to use from several threads; nothing here raises for what storage does.

    url              the run's folder or fsspec URL; None discards every record
    worker_id        names the files; one per process
    clock            unix seconds
    storage_options  as for the run's checkpoints
    """

    def __init__(
        self,
        url: str | os.PathLike[str] | None,
        *,
        worker_id: str,
        clock: Callable[[], float] = time.time,
        storage_options: dict[str, Any] | None = None,
    ) -> None:
        self._worker_id = worker_id
        self._clock = clock
        self._common: Event = {}
        self._sinks: list[Sink] = []
        self._hearing: list[Callable[[Event], None]] = []
        self._whole = False
        if url is not None:
            self.tee(url, storage_options=storage_options)

    def context(self, **facts: Any) -> None:
        """Sets facts that every later record carries; None removes one."""
        merged = {**self._common, **facts}
        self._common = {name: fact for name, fact in merged.items() if fact is not None}

    def emit(self, event: str, **facts: Any) -> None:
        """Records that `event` happened now. Facts are JSON values; of NumPy scalars the value, of others the str()."""
        if not self._sinks and not self._hearing:
            return
        record = {"t": self._clock(), "worker": self._worker_id, "event": event, **self._common, **facts}
        if self._sinks:
            line = encoded(record)
            for sink in self._sinks:
                sink.write(record, line)
        for hear in tuple(self._hearing):
            try:
                hear(record)
            except Exception:  # whatever it is, what people are shown must not end what it is about
                self._hearing.remove(hear)
                log.exception("what is shown of this run is out of date from here on; training goes on")

    def tee(self, url: str | os.PathLike[str], *, storage_options: dict[str, Any] | None = None) -> None:
        """From now on, records go to `url` as well: a drill keeps its evidence where a killed worker loses none."""
        folder = local_folder(url)
        sink: Sink = (
            Objects(str(url), storage_options, self._worker_id)
            if folder is None
            else File(folder / "events", self._worker_id)
        )
        if self._whole:
            sink.keep_all()
        self._sinks.append(sink)

    def hear(self, hear: Callable[[Event], None]) -> None:
        """From now on, hear(record) is called with each, in the thread that emits it; it must be quick."""
        self._hearing.append(hear)

    def keep_all(self) -> None:
        """Nothing is folded, however long the log: for evidence."""
        self._whole = True
        for sink in self._sinks:
            sink.keep_all()

    def flush(self, *, wait: bool = False) -> None:
        """Has what waits uploaded; wait: it has been tried on return."""
        for sink in self._sinks:
            sink.flush(wait=wait)

    def close(self) -> None:
        """Flushes and lets go; what is emitted afterwards is discarded."""
        sinks, self._sinks, self._hearing = self._sinks, [], []
        for sink in sinks:
            sink.close()


def read_events(url: str | os.PathLike[str], *, storage_options: dict[str, Any] | None = None) -> list[Event]:
    """The records of all workers, merged by time; one worker's stay in the order in which it wrote them.

    A line that is no whole record (torn by a kill, a full disk) is passed over. No events: an empty list.
    """
    by_worker: dict[str, list[Event]] = {}
    for line in _lines(url, storage_options):
        with contextlib.suppress(ValueError, RecursionError):
            record = json.loads(line)
            if isinstance(record, dict) and _is_record(record):
                by_worker.setdefault(record["worker"], []).append(record)
    return list(heapq.merge(*by_worker.values(), key=lambda record: float(record["t"])))


def _is_record(found: Event) -> bool:
    t = found.get("t")
    told = isinstance(found.get("worker"), str) and isinstance(found.get("event"), str)
    return told and isinstance(t, (int, float)) and math.isfinite(t)


def plain_values(sums: Mapping[str, Any]) -> dict[str, float | str]:
    """A step's global sums as numbers of nine digits, for people: scalars alone, and no more than a few."""
    values: dict[str, float | str] = {}
    for name, value in sums.items():
        if getattr(value, "ndim", 0) == 0 and len(values) < _VALUES_MAX:
            number = float(value)
            values[name] = float(f"{number:.9g}") if math.isfinite(number) else repr(number)
    return values


def digest_of_indices(indices: Iterable[int]) -> str:
    """SHA-256, hexadecimal, of example indices in order, each as a little-endian int64."""
    return hashlib.sha256(np.asarray(list(indices), dtype="<i8").tobytes()).hexdigest()


def digest_of_sums(sums: Mapping[str, Any], count: int) -> str:
    """SHA-256, hexadecimal, of the bits of a step's global sums (numbers or CPU tensors) by name, and of its count."""
    sha = hashlib.sha256(f"count {count}\n".encode())
    for name in sorted(sums):
        value = np.asarray(sums[name])
        sha.update(f"{len(name)}:{name} {value.dtype.str} {value.shape}\n".encode())
        sha.update(np.ascontiguousarray(value).tobytes())
    return sha.hexdigest()


def local_folder(url: str | os.PathLike[str]) -> Path | None:
    """The folder that `url` names, or None if it is not on a local file system."""
    text = os.fspath(url)
    for scheme in ("file://", "local://"):
        if text.startswith(scheme):
            return Path(text[len(scheme) :])
    return None if "://" in text else Path(text)


def _lines(url: str | os.PathLike[str], storage_options: dict[str, Any] | None) -> Iterator[bytes]:
    folder = local_folder(url)
    if folder is not None:
        events = folder / "events"
        yield from _each(
            lambda: {path.name: 0 for path in events.glob("[!.]*.jsonl")}, lambda name: (events / name).read_bytes()
        )
        return
    from checkpoint.storage import open_storage

    storage = open_storage(str(url), storage_options)
    yield from _each(
        lambda: {key.removeprefix("events/"): size for key, size in storage.list("events").items()},
        lambda name: bytes(storage.get(f"events/{name}")),
    )


def _each(look: Callable[[], Mapping[str, int]], read: Callable[[str], bytes]) -> Iterator[bytes]:
    """Worker by worker, in order. Where a segment is gone when it is to be read, its worker is looked at again."""
    from checkpoint.storage import Missing

    def read_worker(worker: str, names: list[str]) -> list[bytes]:
        for _ in range(_LOOKS):
            try:
                return [read(name) for name in names]
            except (FileNotFoundError, Missing):
                names = current(look()).get(worker, [])
        return []

    with ThreadPoolExecutor(_READERS) as readers:
        for segments in readers.map(lambda item: read_worker(*item), current(look()).items()):
            for data in segments:
                yield from data.splitlines()
