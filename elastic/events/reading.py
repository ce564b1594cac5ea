"""The records of a run as they are read afterwards: of all workers, merged by time."""

from __future__ import annotations

import contextlib
import heapq
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from elastic.events.event import Event
from elastic.events.segments import current
from elastic.events.sinks import local_folder

_READERS = 8
ANSWER_S = 30.0  # of a storage, to whoever waits for a report
_LOOKS = 5  # a run that is under way may remove a segment between a look at the folder and the reading of it


def read_events(url: str | os.PathLike[str], *, storage_options: dict[str, Any] | None = None) -> list[Event]:
    """Return the records of all workers, merged by time; one worker's stay in the order in which it wrote them.

    A line that is no whole record (torn by a kill, a full disk) is passed over. No events: an empty list.
    """
    by_worker: dict[str, list[Event]] = {}
    for line in _lines(url, storage_options):
        if (record := record_in(line)) is not None:
            by_worker.setdefault(record["worker"], []).append(record)
    return list(heapq.merge(*by_worker.values(), key=lambda record: float(record["t"])))


def record_in(line: bytes) -> Event | None:
    """Return the record of a line; None: it is no whole one."""
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(line)
        if isinstance(found, dict) and _is_record(found):
            return found
    return None


def _is_record(found: Event) -> bool:
    t = found.get("t")
    named = isinstance(found.get("worker"), str) and isinstance(found.get("event"), str)
    return named and isinstance(t, (int, float)) and math.isfinite(t)


def _lines(url: str | os.PathLike[str], storage_options: dict[str, Any] | None) -> Iterator[bytes]:
    """Yield the lines of a run's events, from a folder or from storage."""
    folder = local_folder(url)
    if folder is not None:
        events = folder / "events"
        yield from _each(
            lambda: {path.name: 0 for path in events.glob("[!.]*.jsonl")}, lambda name: (events / name).read_bytes()
        )
        return
    from elastic_checkpoint.storage import open_storage

    storage = open_storage(str(url), storage_options, retry_s=ANSWER_S, answer_s=ANSWER_S)
    yield from _each(
        lambda: {key.removeprefix("events/"): size for key, size in storage.list("events").items()},
        lambda name: bytes(storage.get(f"events/{name}")),
    )


def _each(look: Callable[[], Mapping[str, int]], read: Callable[[str], bytes]) -> Iterator[bytes]:
    """Yield the lines of worker after worker, in order. Where a segment has gone, its worker is looked at again."""
    from elastic_checkpoint.storage import Missing

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
