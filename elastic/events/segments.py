"""The segments of a worker's log: their names, what is kept of them, and what stands for those that are removed. Pure.

    <worker>.jsonl, <worker>.000001.jsonl, …     segments, the newest of which grows
    <worker>.past.000003.jsonl                   what segments 0 to 3 added up to, which are removed

Promises  a worker keeps SEGMENTS full segments, the one that grows, and PAST_BYTES of what was before them.
          At every instant a reader finds each record in one place: a past that is there counts, and not the segments
          that it stands for (`current`), whether they are removed yet or not.
"""

from __future__ import annotations

import json
import re
import sys
from collections import deque
from collections.abc import Collection, Mapping
from typing import Any

from elastic.events.compaction import Compaction, forget, joined
from elastic.events.event import Event

SEGMENT_BYTES = 512 << 10
SEGMENTS = 4
PAST_BYTES = 256 << 10

_NAME = re.compile(r"(?P<worker>.+?)(?P<past>\.past)?(?:\.(?P<number>\d{6,}))?\.jsonl", re.ASCII)


def current(names: Collection[str]) -> dict[str, list[str]]:
    """Return by worker the names, in order, that hold all that is known of it."""
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
        # A past that is there counts, and not the segments that it stands for, whether they are removed yet or not.
        order[worker] = past + [name for at, name in sorted(segments.get(worker, {}).items()) if at > through]
    return order


def encoded(record: Mapping[str, Any]) -> bytes:
    return _encode(record).encode() + b"\n"


class PastSegments:
    """Full segments and what is before them, for a sink that removes the oldest."""

    def __init__(self) -> None:
        self.compaction = Compaction()
        self._full: deque[tuple[int, Compaction]] = deque()
        self._items: list[Event] = []

    def full(self, number: int) -> int | None:
        """Take in that segment `number` is full; return the one to be removed: `data` stands for it then."""
        self._full.append((number, self.compaction))
        self.compaction = Compaction(since=self.compaction.until)
        if len(self._full) <= SEGMENTS:
            return None
        oldest, compaction = self._full.popleft()
        self._items = joined([*self._items, *compaction.items])
        self._items = _bounded(self._items)
        return oldest

    def data(self) -> bytes:
        return b"".join(map(encoded, self._items))


def _bounded(items: list[Event]) -> list[Event]:
    """Fold the oldest items where all take more than PAST_BYTES, so that half of that is free."""
    sizes = [len(encoded(item)) for item in items]
    excess = sum(sizes) - PAST_BYTES
    if excess <= 0:
        return items
    count = 0
    while count < len(items) and excess > -PAST_BYTES // 2:
        excess -= sizes[count]
        count += 1
    return forget(items, count)


def _plain(value: Any) -> Any:
    """Return a NumPy scalar's value, and anything else's str(): JSON can say neither."""
    # Without NumPy there are none.
    numpy = sys.modules.get("numpy")
    return value.item() if numpy is not None and isinstance(value, numpy.generic) else str(value)


_encode = json.JSONEncoder(separators=(",", ":"), default=_plain).encode
