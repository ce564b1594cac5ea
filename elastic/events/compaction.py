"""What many records add up to, in one: how a log stays bounded while its totals stay right. Pure.

Records of steps, saves and what a drill notes fold into one `folded` record for each unbroken run of them, in its place
among the others, which are kept as they are: losses, views and loads are few. Only where even those are too many, the
oldest are folded too, and the result says that it stands for what is no longer known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from elastic.events.event import Event
from elastic.events.timing import SPENT

FOLDS = frozenset({"step_applied", "save_begun", "staged", "saved", "reads", "weights"})
_COMMON = ("worker", "generation", "rank", "world_size", "claim", "replica")
_POINTS = 32  # of a curve, in what was folded at once
_POINTS_MAX = 512
_SAVES_MAX = 128


class Compaction:
    """The records of one stretch of a worker's history, folded as they come.

    since  unix seconds: where it begins, if that is not its first record
    """

    def __init__(self, since: float | None = None) -> None:
        self.items: list[Event] = []
        self.until = since
        self._stride = 1

    def add(self, record: Mapping[str, Any]) -> None:
        """Fold a record that is of FOLDS; keep any other as it is."""
        t = float(record["t"])
        if record["event"] not in FOLDS:
            self.items.append(dict(record))
        else:
            # What happens between two steps stays a record of its own, so a folded one stands on either side of it.
            if not self.items or self.items[-1]["event"] != "folded":
                self.items.append(_blank(record, t if self.until is None else self.until))
                self._stride = 1
            self._fold(self.items[-1], record)
        self.until = t

    def _fold(self, into: Event, record: Mapping[str, Any]) -> None:
        _absorb(into, record)
        if record["event"] == "step_applied" and "values" in record and record["step"] % self._stride == 0:
            into["curve"].append([record["step"], record["count"], record["values"]])
            if len(into["curve"]) > _POINTS:
                into["curve"] = into["curve"][::2]  # half of it stays; of steps to come, half as many are taken
                self._stride *= 2


def joined(items: Iterable[Event]) -> list[Event]:
    """Join the items of consecutive compactions, where neighbouring folded ones become one."""
    found: list[Event] = []
    for item in items:
        if found and found[-1]["event"] == item["event"] == "folded" and _same_place(found[-1], item):
            found[-1] = _merged(found[-1], item)
        else:
            found.append(item)
    return found


def forget(items: list[Event], count: int) -> list[Event]:
    """Merge the first `count` items into one, which says that it stands for more than steps and saves."""
    if count < 2:
        return items
    whole = _as_folded(items[0])
    for item in items[1:count]:
        whole = _merged(whole, _as_folded(item))
    return [whole, *items[count:]]


def _blank(record: Mapping[str, Any], since: float) -> Event:
    """Return a folded record that stands for nothing yet, in the place of `record`."""
    common = {name: record[name] for name in _COMMON if name in record}
    zeros = {"steps": 0, "first": None, "last": None, "redone": 0, "count": 0, "saved_bytes": 0, "stall_s": 0.0}
    return {
        "t": float(record["t"]),
        "worker": record["worker"],
        "event": "folded",
        **common,
        "since": min(since, float(record["t"])),
        "records": {},
        **zeros,
        "saved_t": [],
        "curve": [],
        "unknown": False,
    }


def _absorb(into: Event, record: Mapping[str, Any]) -> None:
    """Add what a record says to a folded one."""
    name = record["event"]
    into["t"] = max(into["t"], float(record["t"]))
    into["records"][name] = into["records"].get(name, 0) + 1
    for spent in SPENT:
        if spent in record:
            into[spent] = round(into.get(spent, 0.0) + record[spent], 6)
    if name == "step_applied":
        into["steps"] += 1
        into["first"] = record["step"] if into["first"] is None else into["first"]
        into["last"] = record["step"]
        into["redone"] += record.get("attempt", 0) > 0
        into["count"] += record.get("count", 0)
    elif name == "saved":
        into["saved_bytes"] += record.get("bytes", 0)
        into["saved_t"] = _thinned([*into["saved_t"], into["t"]], _SAVES_MAX)
        into["stall_s"] = round(into["stall_s"] + record.get("stall", record.get("seconds", 0.0)), 6)


def _as_folded(item: Event) -> Event:
    """Return an item as a folded one, which is `unknown` unless it was folded before."""
    if item["event"] == "folded":
        return item
    alone = _blank(item, float(item["t"]))
    _absorb(alone, item)
    alone["unknown"] = True
    return alone


def _merged(a: Event, b: Event) -> Event:
    """Merge two folded records into one; b follows a."""
    both = {**a, **b, "since": a["since"], "t": max(a["t"], b["t"])}
    for name in ("steps", "redone", "count", "saved_bytes", "stall_s"):
        both[name] = a[name] + b[name]
    for name in SPENT:
        if name in a or name in b:
            both[name] = round(a.get(name, 0.0) + b.get(name, 0.0), 6)
    both["first"] = a["first"] if a["first"] is not None else b["first"]
    both["last"] = b["last"] if b["last"] is not None else a["last"]
    names = {*a["records"], *b["records"]}
    both["records"] = {name: a["records"].get(name, 0) + b["records"].get(name, 0) for name in sorted(names)}
    both["curve"] = _thinned([*a["curve"], *b["curve"]], _POINTS_MAX)
    both["saved_t"] = _thinned([*a["saved_t"], *b["saved_t"]], _SAVES_MAX)
    both["unknown"] = a["unknown"] or b["unknown"]
    return both


def _thinned(items: list[Any], most: int) -> list[Any]:
    return items if len(items) <= most else items[::2]


def _same_place(a: Event, b: Event) -> bool:
    return all(a.get(name) == b.get(name) for name in _COMMON)
