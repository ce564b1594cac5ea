"""Events of one kind, of one worker, of one step: in groups."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import TypeVar

from elastic.events.event import Event

Key = TypeVar("Key")


def grouped(events: Iterable[Event], key: Callable[[Event], Key]) -> dict[Key, list[Event]]:
    """Return events in groups, in the order of each one's first event. A key that no event has gives an empty list."""
    groups: dict[Key, list[Event]] = defaultdict(list)
    for event in events:
        groups[key(event)].append(event)
    return groups


def by_fact(events: Iterable[Event], fact: str) -> dict[str, list[Event]]:
    """Group by a fact that all of them have: `event`, `worker`."""
    return grouped(events, itemgetter(fact))
