"""Workers that wait to leave get their answer: they are released, asked to save first, or take part in one more view.

Which of these is leaving.py's to say. Here it is said to them, each once; to the members of a replica alike.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from elastic.membership.hub.orders import Outbox
from elastic.membership.hub.run_end import RunEnd, Shortage
from elastic.membership.hub.workers import Worker, Workers, WorkerStatus
from elastic.membership.messages.messages import Released, Save
from elastic.membership.rules.leaving import see_off
from elastic.membership.succession.going_on import GoingOn

_LEAVER_S = 30.0  # one that waits so long for others, who are busy, may save and go


class Release:
    """Answers the workers of one run that wait to leave."""

    def __init__(self, workers: Workers, going_on: GoingOn, shortage: Shortage, end: RunEnd, out: Outbox) -> None:
        self._workers = workers
        self._going_on = going_on
        self._shortage = shortage
        self._end = end
        self._out = out

    def while_others_train(self, now_s: float) -> None:
        """Answer those that have waited too long for others, who are busy."""
        if any(now_s - leaver.since_s > _LEAVER_S for leaver in self._workers.leavers()):
            self._answer([], go_on=False)

    def before_next_view(self, newcomers: Sequence[Worker]) -> bool:
        """Answer those that leave, as nobody trains; return whether all others wait for one that saves first."""
        return self._answer(newcomers, go_on=True)

    def saves_at_the_end(self) -> bool:
        """Ask one of those who are left to save, before all go; return whether one has to."""
        holdings = self._workers.holdings((*self._workers.leavers(), *self._workers.survivors()))
        parting = see_off(holdings, [], go_on=False, saved=self._end.saved)
        if parting.saves is not None:
            self._ask_to_save(parting.saves)
        return parting.saves is not None

    def save_for_the_wait(self, survivors: Sequence[Worker]) -> None:
        """Have the next coordinator save, before a wait for nodes: those here may be all that hold the state."""
        parting = see_off(self._workers.holdings(survivors), [], go_on=False, saved=self._end.saved)
        # it goes on saving; where others are ahead of it, nobody is asked
        if survivors and parting.saves == survivors[0].id:
            self._ask_to_save(parting.saves, waits=True)

    def at_the_end(self) -> None:
        """Release all that wait, as safe where what they hold is saved: what could be is by now."""
        leavers = self._workers.to_release()
        self._release([worker for worker in leavers if worker.step <= self._end.saved], safe=True)
        self._release([worker for worker in leavers if worker.step > self._end.saved], safe=False)

    def _answer(self, newcomers: Sequence[Worker], *, go_on: bool) -> bool:
        """Answer each worker that leaves; return whether all wait for one of them that saves first."""
        while leavers := self._workers.leavers():
            survivors = self._workers.survivors()
            parting = see_off(
                self._workers.holdings(leavers),
                self._workers.holdings(survivors),
                go_on=go_on and self._shortage.enough({worker.node for worker in (*survivors, *newcomers)}),
                saved=self._end.saved,
            )
            self._release(self._those_of(parting.go, leavers), safe=True)
            self._release(self._those_of(parting.lost, leavers), safe=False)
            if parting.stays is not None:
                for member in self._workers.replica(self._workers[parting.stays]):
                    member.status = WorkerStatus.BETWEEN_VIEWS
            elif parting.saves is not None:
                self._ask_to_save(parting.saves)
                return True
        return False

    def _those_of(self, ids: Collection[str], leavers: Iterable[Worker]) -> list[Worker]:
        """Return the leavers of the replicas that these workers are of."""
        named = {member.id for id in ids for member in self._workers.replica(self._workers[id])}
        return [leaver for leaver in leavers if leaver.id in named]

    def _ask_to_save(self, id: str, *, waits: bool = False) -> None:
        """Ask the workers of this one's replica to save what they hold, unless they were asked so in this view."""
        generation = self._workers.generation
        for worker in self._workers.replica(self._workers[id]):
            if worker.asked_to_save != (generation, waits):
                worker.asked_to_save = generation, waits
                # it may have been cut off before it was told of the present view
                self._out.say(worker, Save(generation=worker.within, claim=self._going_on.claim, waits=waits))

    def _release(self, workers: Iterable[Worker], *, safe: bool) -> None:
        """Release workers; safe: what they hold is not lost with them."""
        for worker in workers:
            worker.released, worker.safe = True, safe
            self._out.say(worker, Released(safe=safe))
            if safe:
                self._end.goes_on()  # from what it held
