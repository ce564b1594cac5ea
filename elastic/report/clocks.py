"""Whose clock is wrong, and by how much? Pure: from what the workers of several hosts did at the same moment.

Workers form a view together and apply a step together, so their records of it should bear one time. Where those of a
host differ from the others' by half a step or more, in the median of all such moments, its clock does: a report that
took it at its word would tell losses before their causes, recoveries by the difference too long, and of two hosts the
step of the one whose clock is ahead. Less may be the work of a slow host, and puts nothing out of order.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median, median_low
from typing import Any

from elastic.events.event import Event
from elastic.report.curves import step_seconds

LEAST_S = 0.5
_MOMENTS = 3  # fewer in common say nothing


def offsets(events: Sequence[Event]) -> dict[str, float]:
    """Return host -> seconds that its clock is ahead of the hosts' middle one, if by LEAST_S and half a step."""
    hosts = _hosts(events)
    moments: defaultdict[Any, dict[str, float]] = defaultdict(dict)
    for event in events:
        if (moment := _moment(event)) is not None:
            at, host, t = moments[moment], hosts[event["worker"]], float(event["t"])
            at[host] = min(t, at.get(host, t))
    apart: dict[tuple[str, str], list[float]] = defaultdict(list)
    for at in moments.values():
        first, *others = sorted(at)
        for other in others:
            apart[first, other].append(at[other] - at[first])
    ahead = _relative({pair: median(seconds) for pair, seconds in apart.items() if len(seconds) >= _MOMENTS})
    pace = step_seconds(events)
    least_s = max(LEAST_S, 0.5 * pace[0]) if pace else LEAST_S
    middle = median_low(ahead.values()) if ahead else 0.0
    return {host: seconds - middle for host, seconds in ahead.items() if abs(seconds - middle) >= least_s}


def aligned(events: Sequence[Event], ahead: Mapping[str, float]) -> list[Event]:
    """Return the events as they would be, in order, had all clocks been the middle one; ahead: what `offsets` gave."""
    if not ahead:
        return list(events)
    hosts = _hosts(events)
    by_worker: dict[str, list[Event]] = {}
    for event in events:
        seconds = ahead.get(hosts[event["worker"]], 0.0)
        moved: Event = {**event, "t": event["t"] - seconds}
        match event["event"]:
            case "folded":
                moved["since"] = event["since"] - seconds
                moved["saved_t"] = [t - seconds for t in event["saved_t"]]
            case "fault_detected" if event.get("died_t") is not None:  # by the clock of the agent that saw it
                moved["died_t"] = event["died_t"] - ahead.get(_host(event["lost"], hosts), 0.0)
        by_worker.setdefault(event["worker"], []).append(moved)
    return list(heapq.merge(*by_worker.values(), key=lambda event: float(event["t"])))


def _hosts(events: Sequence[Event]) -> dict[str, str]:
    """Return worker -> its host."""
    hosts = {event["worker"]: event["host"] for event in events if event["event"] == "run_started" and "host" in event}
    return {event["worker"]: _host(event["worker"], hosts) for event in events}


def _host(worker: str, hosts: Mapping[str, str]) -> str:
    """Return the host that a worker has named, else the one in its id."""
    return hosts.get(worker) or worker.rsplit("-", 2)[0]  # its id is its host, its process id and a token


def _moment(event: Event) -> Any:
    """Return what its worker did at the same moment as others; None: nothing."""
    match event["event"]:
        case "view_formed":
            return event.get("generation") or 0, *event["workers"]
        case "step_applied" | "passed_over":
            return event.get("claim") or 0, event.get("generation") or 0, event["step"]
    return None


def _relative(apart: Mapping[tuple[str, str], float]) -> dict[str, float]:
    """Return host -> seconds ahead of one of them, as far as they hang together with it."""
    near: dict[str, dict[str, float]] = defaultdict(dict)
    for (first, other), seconds in apart.items():
        near[first][other], near[other][first] = seconds, -seconds
    if not near:
        return {}
    start = max(sorted(near), key=lambda host: len(near[host]))  # it has moments in common with most others
    ahead, waiting = {start: 0.0}, [start]
    while waiting:
        host = waiting.pop(0)
        for other, seconds in near[host].items():
            if other not in ahead:
                ahead[other] = ahead[host] + seconds
                waiting.append(other)
    return ahead
