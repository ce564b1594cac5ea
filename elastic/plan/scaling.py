"""What do more workers bring, where is the knee, and which V suits a fleet? Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from elastic.plan.job import Job

_SHOWN_MAX = 16
_ENOUGH, _MULTIPLES = 2.5, 6  # V is three to six times the usual fleet


@dataclass(frozen=True)
class Size:
    """A number of workers, and what it brings against one worker.

    balance     V / (W * ceil(V / W)): the share of computing in which all workers have work
    efficiency  the share of all workers' time that one worker alone would need: it has balance in it
    """

    workers: int
    communication_s: float
    step_s: float
    speedup: float
    efficiency: float
    balance: float


def balance(shares: int, workers: int) -> float:
    """Return V / (W * ceil(V / W)), 0 to 1: the share of computing in which all workers have work."""
    return shares / (workers * -(-shares // workers))


def sizes(job: Job) -> list[Size]:
    """Return a Size for every number of workers from 1 to the most; one alone is what the others are compared with."""
    alone_s = job.batch_s
    found = []
    for workers in range(1, job.workers + 1):
        step_s = job.step_s(workers)
        speedup = alone_s / step_s
        share = balance(job.virtual_workers, workers)
        found.append(Size(workers, job.communication_s(workers), step_s, speedup, speedup / workers, share))
    return found


def knee(found: Sequence[Size]) -> Size:
    """Return the size at which efficiency over step time, that is speed-up squared over workers, is largest.

    With more workers, each gains less than it costs.
    Source: Eager, Zahorjan and Lazowska (1989), doi:10.1109/12.21127
    """
    return max(found, key=lambda size: (size.speedup**2 / size.workers, -size.workers))


def has_knee(found: Sequence[Size]) -> bool:
    """Tell whether the knee is below the most workers."""
    return knee(found).workers < found[-1].workers


def table_rows(found: Sequence[Size], per_node: int) -> list[Size]:
    """Choose few enough for a table: all, or powers of two and whole nodes; the knee and the last one always."""
    if len(found) <= _SHOWN_MAX:
        return list(found)
    steps = -(-len(found) // per_node // (_SHOWN_MAX // 2)) or 1
    named = {2**power for power in range(20)} | set(range(0, len(found) + 1, per_node * steps))
    named |= {knee(found).workers, len(found)}
    return [size for size in found if size.workers in named]


@dataclass(frozen=True)
class Candidate:
    """A candidate for V. balance: the mean over the fleet's time; worst: of a size that it has for long."""

    virtual_workers: int
    balance: float
    worst: float


def candidates(seconds_by_workers: Mapping[int, float], workers_max: int) -> list[Candidate]:
    """Return, for each multiple of the most workers, the V near it that suits the fleet best, in mean over its time.

    seconds_by_workers  how long the fleet has so many
    """
    visited = {workers: seconds for workers, seconds in seconds_by_workers.items() if workers > 0 and seconds > 0}
    total_s = sum(visited.values())
    often = [workers for workers, seconds in visited.items() if seconds >= 0.02 * total_s]

    def of(shares: int) -> Candidate:
        mean = sum(seconds * balance(shares, workers) for workers, seconds in visited.items()) / total_s
        return Candidate(shares, mean, min(balance(shares, workers) for workers in often or visited))

    found = []
    for multiple in range(1, _MULTIPLES + 1):
        middle = multiple * workers_max
        near = range(max(workers_max, middle - workers_max // 2), middle + workers_max // 2 + 1)
        found.append(max(map(of, near), key=lambda shares: (round(shares.balance, 9), -shares.virtual_workers)))
    return sorted({one.virtual_workers: one for one in found}.values(), key=lambda shares: shares.virtual_workers)


def suggest(found: Sequence[Candidate], workers_max: int) -> Candidate:
    """Return the smallest V, of some three times the most workers on, that is within a hundredth of the best."""
    # V is chosen once, and the next fleet is another one; but each share is a forward and a backward pass of its own.
    enough = [one for one in found if one.virtual_workers >= _ENOUGH * workers_max] or list(found)
    best = max(one.balance for one in enough)
    return next(one for one in enough if one.balance >= best - 0.01)
