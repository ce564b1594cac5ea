"""A worker ended otherwise than in order: is another one started in its place, and when, or is that a bug? Pure.

Promises  a bug is not a fault: a failure that repeats (rules.repeated) is one.
          Kills from outside are replaced, however many come; where they come at one step every time, later and later,
          until that is one, too (kills.py).
          One that asks to be started again is, as long as the run gets on.
Leaves    whether a bug ends the run, or the run goes on without that worker, to the hub.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from elastic.membership.kills import Kills, Replace, Slot
from elastic.membership.rules import Failure, repeated

AGAIN = 75  # the exit status (EX_TEMPFAIL) of a worker that asks to be started again
KILLED = "SIGKILL"
_AGAIN_MAX = 20  # of one place, while the run gets nowhere


@dataclass(frozen=True, kw_only=True)
class Ended:
    """
    what           see rules.Failure
    step           where; None before its first, or where nobody knows
    killed         by SIGKILL, and by no doing of its own
    asks           to be started again
    stopped        its agent has killed it, because somebody had stopped it
    lived_s        since it was started
    kernel         what the kernel says of its memory, for people
    out_of_memory  the kernel has killed something for want of memory while it lived
    """

    worker: str
    place: Slot
    what: str
    step: int | None
    killed: bool = False
    asks: bool = False
    stopped: bool = False
    lived_s: float = 0.0
    kernel: str | None = None
    out_of_memory: bool = False


@dataclass(frozen=True)
class Bug:
    """why  it is one   what  failed"""

    why: str
    what: str = ""

    def __str__(self) -> str:
        return f"{self.why}: {self.what}" if self.what else self.why

    @property
    def in_a_line(self) -> str:
        """For where a trace follows, which has all of it."""
        return str(self).partition("\n")[0]


class Endings:
    """Of one run. restarts_max, window_s: see rules.repeated

    farthest  how many steps are applied, since the run last went back to what is saved
    """

    def __init__(self, *, restarts_max: int, window_s: float) -> None:
        self._restarts_max = restarts_max
        self._window_s = window_s
        self._failures: list[Failure] = []
        self._kills = Kills()
        self._again: Counter[Slot] = Counter()  # since the run got on
        self.farthest = -1
        self._most = -1  # ever, whatever the run has gone back to since

    def applied(self, step: int) -> None:
        """Some worker has applied so many steps."""
        if step > self.farthest:
            self.farthest = step
            self._again.clear()
        self._most = max(self._most, step)

    def goes_back(self) -> None:
        """To what is saved."""
        self.farthest = -1

    def follows(self, now_s: float, ended: Ended) -> Replace | Bug:
        if ended.step is not None:
            self._most = max(self._most, ended.step)
        if ended.killed:
            return Replace(0.0) if ended.stopped else self._killed(ended)
        if ended.asks:
            self._again[ended.place] += 1
            if self._again[ended.place] <= _AGAIN_MAX:
                return Replace(0.0)
        failure = Failure(worker=ended.worker, what=ended.what, step=ended.step, at_s=now_s)
        bug = repeated(self._failures, failure, restarts_max=self._restarts_max, window_s=self._window_s)
        self._failures.append(failure)
        return Replace(0.0) if bug is None else Bug(bug, ended.what)

    def _killed(self, ended: Ended) -> Replace | Bug:
        follows = self._kills.killed(
            ended.place,
            step=ended.step,
            applied=self._most,
            lived_s=ended.lived_s,
            out_of_memory=ended.out_of_memory,
        )
        if isinstance(follows, Replace):
            return follows
        where = f"at step {ended.step}" if ended.step is not None else "before its first step"
        return Bug(
            f"{ended.worker} was killed ({ended.what}) {where}, as {follows.count - 1} before it in its place, and no "
            "step was applied meanwhile\n"
            f"  kernel  {ended.kernel or 'it says nothing of this node’s memory'}\n"
            "  state   what was committed is whole; the same command goes on from there\n"
            "  next    if memory is short: a smaller micro_batch_size, fewer workers per node (--nproc-per-node), or "
            "more memory; else see who kills it"
        )
