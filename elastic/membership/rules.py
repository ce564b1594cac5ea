"""Who is in the next view, and in which order? And does a failure end the run? Pure.

Promises  workers of one node stand together, so that sums are added inside a node before they cross the network.
          While one worker of the last view survives, a survivor is rank 0: the coordinator keeps its storage.
          A newcomer joins only at a boundary between steps, where it has missed nothing.
          A bug is not a fault: the same kind of failure at the same step, twice, ends the run; a kill never does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

BOUNDARY = "boundary"
EVICTED = "elastic.errors.Evicted"
SAVES_FAILED = "elastic.errors.SavesFailed"
MISMATCH = "elastic.errors.CollectiveMismatch"
STANDSTILL_VIEWS = 3


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A worker that could be in the next view.

    shares  V of its run: a view holds no more workers
    at      where a survivor stands, BOUNDARY for one between two steps; None for a newcomer
    """

    worker: str
    node: str
    shares: int
    at: str | None


def next_view(survivors: Sequence[Candidate], newcomers: Sequence[Candidate]) -> list[Candidate]:
    """The workers of the next view in rank order.

    survivors  of the last view, in its rank order: all of them go on
    newcomers  in the order in which they join; those for whom there is no room stay outside
    """
    joining = newcomers if all(survivor.at == BOUNDARY for survivor in survivors) else ()
    room = min((candidate.shares for candidate in survivors or joining), default=0)
    blocks: dict[str, list[Candidate]] = {}
    for candidate in (*survivors, *joining[: max(0, room - len(survivors))]):
        blocks.setdefault(candidate.node, []).append(candidate)
    return [candidate for block in blocks.values() for candidate in block]


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A worker that ended by its own doing.

    what  "ValueError: …", "exit status 3", "SIGSEGV", "hang": what a repetition is known by
    step  where, None before the first or where nobody knows
    """

    worker: str
    what: str
    step: int | None
    at_s: float

    @property
    def kind(self) -> str:
        """Without an exception's text: addresses, process numbers and names of temporary files are new every time."""
        return self.what.partition(":")[0]


def repeated(failures: Sequence[Failure], newest: Failure, *, restarts_max: int, window_s: float) -> str | None:
    """Why the newest failure is a bug that a restart does not help, or None: replace the worker.

    failures      the earlier ones
    restarts_max  how often one failure may repeat, at whatever steps, within `window_s`
    A step is repeated whenever the run goes back to it; a failure before the first step has only time to go by.
    """
    if newest.kind == EVICTED:
        return "another job has taken this run over"
    if newest.kind == SAVES_FAILED:
        return "nothing can be saved any more"
    if newest.kind == MISMATCH:
        return "the script does not do the same on all workers"
    recent = [failure for failure in failures if newest.at_s - failure.at_s <= window_s]
    before = recent if newest.step is None else failures
    if any(failure.kind == newest.kind and failure.step == newest.step for failure in before):
        where = "before its first step" if newest.step is None else f"at step {newest.step}"
        return f"the same failure twice {where}"
    repeats = 1 + sum(failure.what == newest.what for failure in recent)
    if repeats > restarts_max:
        return f"the same failure {repeats} times within {window_s:.0f} s, more than --max-restarts allows"
    return None


@dataclass(frozen=True)
class Standstill:
    """Views in which the very same workers lost each other at the very same place, one after the other."""

    workers: tuple[str, ...] = ()
    step: int = -1
    views: int = 0

    def broken(self, workers: tuple[str, ...], step: int) -> Standstill:
        """A view of these workers was broken, and all of them are here again; none is past `step`."""
        again = set(workers) == set(self.workers) and step == self.step
        return Standstill(workers, step, self.views + 1 if again else 1)

    @property
    def is_one(self) -> bool:
        """A lost connection does not come again and again while nobody is lost: another view would not help."""
        return self.views >= STANDSTILL_VIEWS
