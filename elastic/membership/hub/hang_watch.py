"""Finds who hangs, by what the agents see from second to second, and how long everything stands still at one place.

    what an agent sees (Sighting)  ->  judged beside what the others saw lately (stalls.py)  ->  what is to be done

Promises  one that has given no sign for a while is judged beside all others of its view, and one outside of it alone,
          for it holds up nobody but itself.
          That all stand still is said once when it begins, and once when it is over; where it lasts too long, the run
          ends, and those who stand there are killed, so that their stacks are seen.
          Of those that stood still together one goes on first: the others have as long as ever from then on.
          Views that break one after the other at one place, while nobody is lost, end the run.
Leaves    what is to be done to the hub, and whether a worker has given a sign since to its agent. Pure but for what it
          remembers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from elastic.membership.stalls import FRESH_S, STORAGE, Hung, PhaseOfStep, Sighting, Stall, judge, of_replica

_KILLED_MAX = 64  # of which it is remembered where they stood
_VIEWS = 3  # that broke alike, and another one would, too


@dataclass(frozen=True)
class KillIt:
    """The finding that this worker is to be killed, unless it has given a sign since."""

    sighting: Sighting
    why: str


@dataclass(frozen=True)
class TellPeople:
    text: str


@dataclass(frozen=True)
class EndRun:
    why: str


Finding = KillIt | TellPeople | EndRun


class HangWatch:
    """Watches one run's workers for hangs. stall_s: how long all may stand still at one place, at least."""

    def __init__(self, stall_s: float) -> None:
        self._stall_s = stall_s
        self._sightings: dict[str, tuple[float, Sighting]] = {}  # when it came
        self._killed_at: list[PhaseOfStep] = []  # for standing there too long
        self._stall: Stall | None = None
        self._stalled: tuple[PhaseOfStep, float] | None = None  # where the last one was, and until when

    def saw(self, now_s: float, seen: Iterable[Sighting]) -> None:
        """Note what an agent has seen of its own workers."""
        for sighting in seen:
            self._sightings[sighting.worker] = now_s, sighting

    def forget(self, worker: str) -> None:
        """Drop the sighting of a worker that is gone."""
        self._sightings.pop(worker, None)

    def look(self, now_s: float, members: Sequence[Sequence[str]], *, ending: bool) -> Iterator[Finding]:
        """Yield what is to be done by the newest sightings.

        members  of the view, replica by replica
        ending   the run is to end
        """
        recent = {
            id: replace(one, quiet_s=one.quiet_s + now_s - at_s)  # KillHung acquits one that has given a sign since
            for id, (at_s, one) in self._sightings.items()
            if now_s - at_s <= FRESH_S
        }
        inside = {id for replica in members for id in replica}
        groups = [members, *([[id]] for id in recent if id not in inside)]
        for group in groups:
            seen = {
                first: of_replica(map(recent.get, (first, *mates))) if mates else recent.get(first)
                for first, *mates in group
            }
            verdict = judge(seen, killed_at=self._killed_at, stall_s=self._stall_s)
            if isinstance(verdict, Hung) and not self._just_stalled(now_s, verdict.sighting):
                yield KillIt(verdict.sighting, str(verdict.sighting))
                if verdict.sighting.phase in STORAGE:
                    self._killed_at = [*self._killed_at[-_KILLED_MAX + 1 :], verdict.sighting.at]
            if group is members:
                yield from self._note_stall(now_s, verdict if isinstance(verdict, Stall) else None, ending=ending)

    def goes_by(self, now_s: float, *, ending: bool) -> Iterator[Finding]:
        """Yield the end of a stall where nothing more is seen: nobody is quiet any more."""
        if self._stall is not None and now_s - max((at_s for at_s, _ in self._sightings.values()), default=0) > FRESH_S:
            yield from self._note_stall(now_s, None, ending=ending)

    def _just_stalled(self, now_s: float, sighting: Sighting) -> bool:
        """Return whether a stall at this place was over so lately that the worker's time begins anew."""
        if self._stalled is None or self._stalled[0] != sighting.at:
            return False
        return now_s - self._stalled[1] <= sighting.limit_s

    def _note_stall(self, now_s: float, stall: Stall | None, *, ending: bool) -> Iterator[Finding]:
        """Yield what people are told as a stall begins or is over, and the run's end where it lasts too long."""
        before, self._stall = self._stall, stall
        if stall is not None and stall.patience_s is None:
            self._stalled = stall.at, now_s  # as one of them goes on first, the others have as long as ever from then
        if stall is not None and stall.is_over_bound:
            yield EndRun(
                f"{stall.standing}, and that is as long as a run waits ({stall.bound_s:.0f} s, from --hang-limit)\n"
                "  state  nobody is at fault; what was saved is whole\n"
                "  next   look at what they wait for (above are the stacks of their threads): storage, or a service"
            )
            for id in stall.workers:
                yield KillIt(self._sightings[id][1], "the run ends")  # so that their stacks are seen
        elif stall is not None and (before is None or before.at != stall.at):
            yield TellPeople(str(stall))
        elif stall is None and before is not None and not ending:
            yield TellPeople(f"{before.where} goes on, after {before.quiet_s:.0f} s or a little more")


@dataclass(frozen=True)
class RepeatedBreaks:
    """Views in which the very same workers lost each other at the very same place, one after the other."""

    workers: tuple[str, ...] = ()
    step: int = -1
    views: int = 0

    def broken(self, workers: tuple[str, ...], step: int) -> RepeatedBreaks:
        """Return it with one more broken view of these workers; all are here again, and none is past `step`."""
        again = set(workers) == set(self.workers) and step == self.step
        return RepeatedBreaks(workers, step, self.views + 1 if again else 1)

    @property
    def is_one(self) -> bool:
        """Return whether another view would not help."""
        return self.views >= _VIEWS  # a lost connection does not come again and again while nobody is lost

    def sentence(self, workers: Iterable[str]) -> str:
        """Return for people why the run ends; workers: of each, where it is."""
        doing = "".join(f"  {worker}\n" for worker in workers)
        return (
            f"{self.views} views in a row broke at step {self.step}, and no worker was lost\n"
            f"{doing}"
            "  state  what was done is saved by the worker that is farthest, if its state is whole\n"
            "  next   the workers' own lines say what their exchanges failed of: a network that drops connections "
            "between\n         them, say, or an exchange that takes longer than timeout_s"
        )
