"""Says of a worker that ended out of order whether another one takes its place, and when, or whether it is a bug.

Pure but for what it remembers.

Promises  a bug is not a fault: the same kind of failure at the same step, twice, is one (`repeated`).
          Kills from outside are replaced, however many come; where they come at one step every time, later and later,
          until that is one, too (kills.py).
          One that asks to be started again is, as long as the run gets on.
Leaves    whether a bug ends the run, or the run goes on without that worker, to the hub.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from elastic.membership.exit_statuses import AGAIN
from elastic.membership.messages.messages import Exited, Failed
from elastic.membership.rules.kills import Kills, Replace, Slot

KILLED = "SIGKILL"
LEAVES = ("SIGTERM", "SIGINT", "SIGUSR1")  # whom one of them ended before it could leave in order was told to go
EVICTED = "elastic.errors.Evicted"
SAVES_FAILED = "elastic.errors.SavesFailed"
MISMATCH = "elastic.errors.CollectiveMismatch"
BAD_STEP = "elastic.errors.BadStep"
NOT_FINITE = "elastic.errors.WeightsNotFinite"
WRONG = "elastic.errors.ComputesWrongly"
NOT_LET_IN = "elastic.errors.NotLetIn"
_AGAIN_MAX = 20  # of one slot, while the run gets nowhere


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A worker that was not to end, and did.

    what           see Failure
    step           where; None before its first, or where nobody knows
    killed         by SIGKILL, and by no doing of its own
    asks           to be started again
    stopped        its agent has killed it, because somebody had stopped it
    lived_s        since it was started
    kernel         what the kernel says of its memory, for people
    out_of_memory  the kernel has killed something for want of memory while it lived
    """

    worker: str
    slot: Slot
    what: str
    step: int | None
    killed: bool = False
    asks: bool = False
    stopped: bool = False
    lived_s: float = 0.0
    kernel: str | None = None
    out_of_memory: bool = False


def what_failed(said: Exited, failed: Failed | None) -> str:
    """Return what a repetition of the failure is known by; failed: what the worker said of it."""
    return failed.error if failed else "hang" if said.hung else said.signal or f"exit status {said.code}"


def ended(said: Exited, failed: Failed | None, *, slot: Slot, lived_s: float) -> Ended:
    """Return the Ended of a worker that was not to end."""
    return Ended(
        worker=said.worker,
        slot=slot,
        what=what_failed(said, failed),
        step=failed.step if failed else said.step,
        killed=said.signal == KILLED and not said.hung and not failed,
        asks=said.code == AGAIN and not failed,
        stopped=said.stopped,
        lived_s=lived_s,
        kernel=said.kernel,
        out_of_memory=said.out_of_memory,
    )


@dataclass(frozen=True)
class Bug:
    """A bug: why it is one, and what failed; of_place: and not of the run, which can go on without a worker there."""

    why: str
    what: str = ""
    of_place: bool = False

    def __str__(self) -> str:
        return f"{self.why}: {self.what}" if self.what else self.why

    @property
    def in_a_line(self) -> str:
        """Return its first line, for where a trace follows, which has all of it."""
        return str(self).partition("\n")[0]


class Endings:
    """The endings of one run's workers. restarts_max, window_s: see repeated.

    farthest  how many steps are applied, since the run last went back to what is saved
    """

    def __init__(self, *, restarts_max: int, window_s: float) -> None:
        self._restarts_max = restarts_max
        self._window_s = window_s
        self._failures: list[Failure] = []
        self._kills = Kills()
        self._again: Counter[Slot] = Counter()  # since the run got on
        self._counted: set[str] = set()  # workers
        self._wrong: list[tuple[float, Slot, str]] = []  # when, where, and how
        self.farthest = -1
        self._most = -1  # ever, whatever the run has gone back to since

    def applied(self, step: int) -> None:
        """Note that some worker has applied so many steps."""
        if step > self.farthest:
            self.farthest = step
            self._again.clear()
        self._most = max(self._most, step)

    def goes_back(self) -> None:
        """Note that the run goes back to what is saved."""
        self.farthest = -1

    def happened(self, now_s: float, ended: Ended, *, age_s: float) -> None:
        """Count an end from before this hub was the run's: what followed from it has followed."""
        if ended.worker not in self._counted:
            self.follows(now_s - age_s, ended)

    def follows(self, now_s: float, ended: Ended) -> Replace | Bug:
        """Return whether a worker that ended is replaced, and when, or why that is a bug."""
        self._counted.add(ended.worker)
        if ended.step is not None:
            self._most = max(self._most, ended.step)
        if ended.killed:
            return Replace(0.0) if ended.stopped else self._killed(ended)
        if ended.asks:
            self._again[ended.slot] += 1
            if self._again[ended.slot] <= _AGAIN_MAX:
                return Replace(0.0)
        failure = Failure(worker=ended.worker, what=ended.what, step=ended.step, at_s=now_s)
        if failure.kind in (WRONG, NOT_LET_IN):
            return self._wrong_in(now_s, ended, failure.kind)
        bug = repeated(self._failures, failure, restarts_max=self._restarts_max, window_s=self._window_s)
        self._failures.append(failure)
        return Replace(0.0) if bug is None else Bug(bug, ended.what)

    def _wrong_in(self, now_s: float, ended: Ended, kind: str) -> Replace | Bug:
        """Return Replace, or why it is a bug, for a worker whose bits are not those of the others."""
        self._wrong = [one for one in self._wrong if now_s - one[0] <= self._window_s]
        self._wrong.append((now_s, ended.slot, kind))
        times = Counter(slot for _, slot, _ in self._wrong)
        if times[ended.slot] > self._restarts_max:  # a machine, without which the run goes on
            return Bug(f"wrong {times[ended.slot]} times in this place", ended.what, of_place=True)
        # many places are a script, unless they have only tried to join
        places = Counter(slot for _, slot, one in self._wrong if one == kind == WRONG)
        if sum(count for count in places.values() if count <= self._restarts_max) > self._restarts_max:
            return Bug("one worker after the other is found wrong, in several places: it is the script", ended.what)
        return Replace(0.0)

    def _killed(self, ended: Ended) -> Replace | Bug:
        """Return Replace, or why it is a bug, for a worker that was killed from outside."""
        follows = self._kills.killed(
            ended.slot,
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
        """Return what failed without an exception's text."""
        # addresses, process numbers and names of temporary files are new every time
        return self.what.partition(":")[0]


def repeated(failures: Sequence[Failure], newest: Failure, *, restarts_max: int, window_s: float) -> str | None:
    """Return why the newest failure is a bug that a restart does not help; None: replace the worker.

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
    if newest.kind == BAD_STEP:
        return "a step is bad, and would be again"
    if newest.kind == NOT_FINITE:
        return "the weights are not finite"
    recent = [failure for failure in failures if newest.at_s - failure.at_s <= window_s]
    before = recent if newest.step is None else failures
    if any(failure.kind == newest.kind and failure.step == newest.step for failure in before):
        where = "before its first step" if newest.step is None else f"at step {newest.step}"
        return f"the same failure twice {where}"
    repeats = 1 + sum(failure.what == newest.what for failure in recent)
    if repeats > restarts_max:
        times = "once" if repeats == 1 else f"{repeats} times"
        return f"the same failure {times} within {window_s:.0f} s, more than --max-restarts allows"
    return None
