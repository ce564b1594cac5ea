"""What an agent sees of a worker in its record (membership/progress.py), and how long it lets it be. Pure.

A worker that hangs is told apart from those that wait for it: they say that they wait, and have a deadline of their
own. Whether one that is quiet for longer than it may is at fault is membership/stalls.py's to say, with what the other
agents see; one whose process is stopped is this agent's own affair.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from elastic.membership.progress import LIMITED, Phase, Record
from elastic.membership.stalls import Sighting

_STOPPED_LOOKS = 2  # one look may catch a debugger at work
_PATIENCE_MAX = 16.0  # a run of weeks must not lose its sight: what takes longer declares itself (run.long_section)
_REDONE = (Phase.COMPUTING, Phase.READING)  # by whoever takes the step over


@dataclass
class Patience:
    """What the looks at one worker have shown so far.

    sign        its last one
    held_up_s   see held_up
    """

    stopped_looks: int = 0
    sign: int = -1
    held_up_s: float = 0.0

    def stopped(self, state: str) -> bool:
        """Return whether somebody has stopped its process; state: as in /proc/<pid>/stat."""
        self.stopped_looks = self.stopped_looks + 1 if state == "T" else 0
        return self.stopped_looks >= _STOPPED_LOOKS

    def held_up(self, sign: int, held_up_s: float) -> float:
        """Return how long others had the processor since its last sign: no hang; held_up_s: since its start."""
        if sign != self.sign:
            self.sign, self.held_up_s = sign, held_up_s
        return held_up_s - self.held_up_s


def sighting(
    now_s: float, worker: str, record: Record, *, not_before_s: float, held_up_s: float = 0.0, patience: float = 1.0
) -> Sighting:
    """Return what a worker's record shows now.

    not_before_s  phases count from here at the earliest: the watcher itself was held up until then
    held_up_s     for so long since its last sign the worker was
    patience      limits count so many times
    """
    quiet_s = max(0.0, now_s - max(record.since_s, not_before_s) - held_up_s)
    limit_s = record.limit_s * patience
    return Sighting(
        worker=worker,
        phase=record.phase,
        step=record.at_step,
        sign=record.sequence,
        quiet_s=quiet_s,
        limit_s=limit_s,
    )


class Doubts:
    """How many times longer than its limit a worker may take, after others were killed for taking long, or nearly.

    Each kill doubles it, since that worker may only have been slow, and whoever takes the step over is no faster; and
    so does each that went on while its stacks were printed, for that one was only slow. Where
    the step is done sooner than the killed one took, it did hang, and the next one gets no more time than it did. That
    proves nothing where another one took about as long, since the step may be slow for all. Phases are counted apart:
    what a worker does between two steps is its script's own code, which nobody does again, so nothing is proven there.
    """

    def __init__(self) -> None:
        self._times = dict.fromkeys(LIMITED, 1.0)
        self._open: tuple[Phase, int | None, float, float] | None = None  # phase, step, when killed, how long it took

    def killed(self, now_s: float, record: Record, took_s: float, others: Iterable[Record] = ()) -> None:
        """Take note of a killed worker: its phase gets more time.

        took_s  since when the worker with this record had given no sign
        others  of the workers that live on: they wait for one that hangs
        """
        self._double(record.phase)
        if record.phase in _REDONE:
            alone = not any(other.phase in LIMITED and now_s - other.since_s > took_s / 2 for other in others)
            self._open = (record.phase, record.at_step, now_s, took_s) if alone else None

    def acquitted(self, phase: Phase) -> None:
        """Double this phase's time, as a worker that was to be killed in it has gone on."""
        self._double(phase)

    def patience(self, phase: Phase) -> float:
        """Return how many times the limit of this phase counts."""
        return self._times.get(phase, 1.0)

    def look(self, now_s: float, records: Iterable[Record]) -> None:
        """See whether a killed worker did hang, by the records of the workers that there are now."""
        if self._open is None:
            return
        phase, step, killed_s, took_s = self._open
        if now_s - killed_s > took_s:
            self._open = None
        elif any(_past(record, step) for record in records):
            self._open, self._times[phase] = None, 1.0

    def _double(self, phase: Phase) -> None:
        self._times[phase] = min(2 * self._times.get(phase, 1.0), _PATIENCE_MAX)


def _past(record: Record, step: int | None) -> bool:
    return record.at_step is not None and record.at_step > (-1 if step is None else step)
