"""Which records can a report be made of? A bit that flipped on a disk may leave a line that is JSON and yet no record.

Lenient where it costs nothing: events and facts that are not declared stay, and so do records that lack a fact which
nobody looks at. What is left out is counted, for a total that lacks something must not look like one that does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from elastic.events.declarations import COMMON, DECLARED, matches
from elastic.events.event import Event

_LATEST_S = 253_402_300_799.0  # the year 9999
_GREATEST = 2**53
_STEPS_MAX = 10_000_000  # that one rollback may have taken back

_READ: dict[str, tuple[str, ...]] = {
    "view_formed": ("workers",),
    "loaded": ("step", "epoch"),
    "step_applied": ("step", "epoch"),
    "passed_over": ("step", "first", "epoch", "why"),
    "not_finite": ("step", "why"),
    "example_left_out": ("step", "epoch", "index", "error"),
    "peer_lost": ("step",),
    "fault_detected": ("lost", "cause"),
    "hang": ("lost",),
    "redo": ("step",),
    "transfer": ("bytes", "seconds"),
    "saved": ("bytes", "seconds"),
    "save_failed": ("step", "error"),
    "notice": ("signal",),
    "hint": ("why",),
    "cut_short": ("step", "at", "why"),
    "repeated_failure": ("why",),
    "ended": ("why",),
    "error": ("error",),
    "finished": ("step", "digest"),
    "folded": tuple(fact.name for fact in DECLARED["folded"].facts if not fact.optional),
}
"""event -> the facts that reports look at, and that have been there from the first version on"""


_COMMON = {fact.name: fact.kind for fact in COMMON} | {"age_s": "float|null"}  # of any event: an account begins there
_KINDS = {name: {**_COMMON, **{fact.name: fact.kind for fact in event.facts}} for name, event in DECLARED.items()}


def sound(events: Sequence[Event]) -> tuple[list[Event], int]:
    """Return the records that can be read, in their order, and how many cannot."""
    kept = [event for event in events if is_sound(event)]
    return kept, len(events) - len(kept)


def is_sound(event: Mapping[str, Any]) -> bool:
    """Return whether a record has what reports look at, in types and bounds that can be."""
    name = event.get("event")
    if not isinstance(name, str) or not isinstance(event.get("worker"), str):
        return False
    kinds = _KINDS.get(name, _COMMON)
    if not all(key in event for key in ("t", *_READ.get(name, ()))):
        return False
    if not all(matches(value, kinds[key]) and _sane(value) for key, value in event.items() if key in kinds):
        return False
    t, age_s, deeper = float(event["t"]), float(event.get("age_s") or 0.0), _FACT_CHECKS.get(name)
    return 0 <= t - age_s <= t <= _LATEST_S and (deeper is None or deeper(event))


def _sane(value: Any) -> bool:
    """Return whether a number is one that a clock, a counter or a size may give; other values are."""
    return not isinstance(value, (int, float)) or (math.isfinite(value) and abs(value) <= _GREATEST)


def _view(event: Mapping[str, Any]) -> bool:
    return all(isinstance(worker, str) for worker in event["workers"])


def _applied(event: Mapping[str, Any]) -> bool:
    return "values" not in event or ("count" in event and _are_values(event["values"]))


def _passed_over(event: Mapping[str, Any]) -> bool:
    indices = all(matches(index, "int") for index in event.get("examples", ()))
    return indices and bool(0 <= event["step"] - event["first"] < _STEPS_MAX)


def _folded(event: Mapping[str, Any]) -> bool:
    first, last = event["first"], event["last"]
    counted = all(matches(count, "int") and _sane(count) for count in event["records"].values())
    saved = all(matches(t, "float") and _sane(t) for t in event["saved_t"])
    curve = all(
        isinstance(point, list)
        and [matches(fact, kind) for fact, kind in zip(point, ("int", "int", "dict"), strict=False)] == [True] * 3
        and _are_values(point[2])
        for point in event["curve"]
    )
    spans = (first is None and last is None) or (
        first is not None and last is not None and 0 <= last - first < max(1, event["steps"])
    )
    return counted and saved and curve and spans


def _are_values(values: Mapping[str, Any]) -> bool:
    """Return whether all are numbers, those that are not finite as text."""
    return all(value in ("nan", "inf", "-inf") or matches(value, "float") for value in values.values())


_FACT_CHECKS: dict[str, Callable[[Mapping[str, Any]], bool]] = {
    "view_formed": _view,
    "step_applied": _applied,
    "passed_over": _passed_over,
    "folded": _folded,
}
