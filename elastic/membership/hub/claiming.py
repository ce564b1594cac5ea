"""Finds out whether this side may go on, and has a worker take the run's next claim where it needs that.

What is asked of whom going_on.py decides. Here a worker is told to take the claim, its answer is heard, and people
learn why nobody goes on meanwhile.

The coordinator of a view gives heartbeats in the run's storage once all have met in it, and before that who took the
claim (elastic_checkpoint/runs/heartbeat.py). Workers that hold no state take the next claim, and begin anew, once
they have seen none for a grace of 15 s. So those who are left when the last one who gave them has gone, however that
was, may only go on without another claim if they do so before that time can be over.
"""

from __future__ import annotations

from collections.abc import Collection

from elastic.membership.hub.nodes import Nodes
from elastic.membership.hub.orders import Outbox
from elastic.membership.hub.run_end import RunEnd
from elastic.membership.hub.workers import Workers
from elastic.membership.messages.messages import Claimed, MovedOn, TakeClaim, TakeNote
from elastic.membership.messages.wire import Message
from elastic.membership.succession.going_on import GoingOn
from elastic.membership.succession.node_report import number_of
from elastic.membership.succession.succession import GoOn, KnownView, NeedsClaim, Stay

_SILENT_S = 10.0  # who has not noted the next view by then is named
_HANGS_S = 5.0  # a storage that has not answered by then is
# Of the 15 s of elastic_checkpoint/runs/holder.py: the last sign may have been 5 s old when its giver went
# (elastic_checkpoint/runs/heartbeat.py), and all have to meet before the next one.
_LAST_S = 3.0


class Claiming:
    """Asks for the run's next claim where this side needs it, and tells people who is waited for.

    liveness  for whoever takes the claim
    wait_s  how long a side stands still, before the run ends
    takes_over  from another hub
    """

    def __init__(
        self,
        going_on: GoingOn,
        nodes: Nodes,
        workers: Workers,
        end: RunEnd,
        out: Outbox,
        *,
        liveness: Message | None,
        wait_s: float,
        takes_over: bool,
    ) -> None:
        self._going_on = going_on
        self._nodes = nodes
        self._workers = workers
        self._end = end
        self._out = out
        self._liveness = liveness
        self._wait_s = wait_s
        self._signs = Heartbeats(workers, takes_over=takes_over)
        self._stays: str | None = None  # and why
        self._complained = 0  # of which question to note a view
        self._storage_said: str | None = None  # of why it could not be asked, people know

    def look(self, now_s: float) -> None:
        """Bring up to date who gives heartbeats, whenever something was heard, or time goes by."""
        going_on, workers = self._going_on, self._workers
        view = going_on.known_view(workers.generation, workers.nodes)
        self._signs.look(now_s, number_of(going_on.claim), view, departed=going_on.departed)

    def may_go_on(self, now_s: float, generation: int) -> bool:
        """Return whether nobody trains elsewhere who would be in our way, now that nobody does here.

        Where that is open, it asks for the claim, or waits.

        generation  of the next view
        """
        survivors = {worker.id: worker.node for worker in self._workers.survivors() if worker.has_a_step}
        holding = set(survivors.values())
        signs = self._nodes.most == 1 or self._signs.last(now_s)  # a run of one node does not go on without it
        verdict = self._going_on.verdict(now_s, self._nodes, holding=holding, signs=signs)
        if isinstance(verdict, GoOn) or (isinstance(verdict, NeedsClaim) and not survivors):
            self._stays = None
            return True  # newcomers claim the run's storage as they begin from it
        if isinstance(verdict, NeedsClaim):
            ask = self._going_on.asks(now_s, generation, survivors)
            if ask is not None:
                words = TakeClaim(
                    generation=ask.generation,
                    nodes=sorted(ask.nodes),
                    liveness=self._liveness,
                    claim=self._going_on.claim,
                )
                self._out.say(self._workers[ask.worker], words)
            if self._stays is None and self._going_on.waits_s(now_s) > _HANGS_S:
                self._stays = verdict.why
                why = f"for {_HANGS_S:g} s the run's storage has not said who may go on: {verdict.why}"
                self._out.tell_people(f"{why}; its answer is waited for")
            self._wait_at_most(now_s, verdict.why)
        if isinstance(verdict, Stay):
            self._stay(now_s, verdict.why)
        elif isinstance(verdict, str) and self._stays is None:
            self._stays = verdict
            self._out.tell_people(f"{verdict}; the run's storage is asked who goes on")
        return False

    def is_noted(self, now_s: float, generation: int, nodes: Collection[str]) -> bool:
        """Return whether enough of those who are counted know of the next view; ask the others to note it."""
        found = self._going_on.to_note(now_s, self._nodes, generation=generation, nodes=nodes)
        if found is None:
            return True
        noting, to_ask = found
        self._out.tell_all(to_ask, TakeNote(number=noting.number, generation=generation, nodes=sorted(nodes)))
        waited_s = now_s - noting.since_s
        why = f"{', '.join(noting.awaited)} did not answer that the next view is known there"
        if waited_s > _SILENT_S and self._complained != noting.number:
            self._complained = noting.number
            self._out.tell_people(f"{why}; it is waited for")
        if waited_s > self._wait_s:
            remedy = "see to these nodes; the same command goes on from what is saved"
            self._end.begins(now_s, f"for {self._wait_s:.0f} s the run could not go on: {why}", remedy=remedy)
        return False

    def heard(self, now_s: float, said: Claimed) -> list[str]:
        """Take an answer about the claim; return nodes that the run has moved on from, while others here go on."""
        if said.claim is None and said.moved_on:
            if said.generation == self._workers.generation:
                self._moves_on(said.why)
        elif said.claim is None:
            self._going_on.failed(now_s, said.worker)
            if said.why != self._storage_said:
                self._storage_said = said.why
                why = f"the run's storage cannot be asked who may go on, and is asked again: {said.why}"
                self._out.tell_people(why)
        elif said.moved_on:
            return self._lost_to(said)
        else:
            has_won = self._going_on.won(said.worker, said.generation, said.claim)
            if said.claim == self._going_on.claim:
                self._signs.given_by(said.worker, number_of(said.claim))
            if not has_won and self._is_under_older_claim():
                self._workers.broken = True  # the next view is under it, or its saves would find a newer one
        return []

    def published(self) -> None:
        """Note that a view is published, so that this side goes on."""
        self._storage_said = None

    def _is_under_older_claim(self) -> bool:
        """Return whether the present view goes on, and under an older claim than the newest."""
        return bool(self._workers.running()) and number_of(self._going_on.claim) != self._workers.claim

    def _lost_to(self, said: Claimed) -> list[str]:
        """Note that others have the next claim; return nodes here that it does not name, where it names some."""
        assert said.claim is not None
        # those of this side that it names may ask again, for nobody goes on without them; from others it has moved on
        may_ask = self._going_on.lost_to(said.worker, said.claim)
        holding = {worker.node for worker in self._workers.survivors() if worker.has_a_step}
        if may_ask is None or not holding:
            return []
        if may_ask.isdisjoint(holding):
            self._moves_on(said.why)
            return []
        return [node for node in self._nodes.newest_first() if node in holding - may_ask]

    def _moves_on(self, why: str) -> None:
        """Have all nodes that are here look for those who go on with the run."""
        self._end.moves_on(why)
        self._out.tell_all(self._nodes.newest_first(), MovedOn(why=why))  # the hub's own last: it steps down

    def _stay(self, now_s: float, why: str) -> None:
        """Tell people once that the run stands still; end it where that takes too long."""
        if self._stays is None:
            self._out.tell_people(f"the run stands still: {why}\n  next  it goes on once they are back")
        self._stays = why
        self._wait_at_most(now_s, why)

    def _wait_at_most(self, now_s: float, why: str) -> None:
        """End the run once it could not go on for `wait_s`."""
        if self._going_on.waits_s(now_s) > self._wait_s:
            nobody_came = "nobody who was missing came"
            found = nobody_came if self._going_on.missing(self._nodes) else "the storage did not answer"
            self._end.begins(
                now_s,
                f"for {self._wait_s:.0f} s the run could not go on: {why}\n  found  {self._storage_said or found}",
                remedy="see to the nodes and to the run's storage; the same command goes on from what is saved",
            )


class Heartbeats:
    """Who gives heartbeats in the run's storage, and since when nobody does. Pure but for what it remembers.

    takes_over  from another hub, so that what was before is not known
    """

    def __init__(self, workers: Workers, *, takes_over: bool) -> None:
        self._workers = workers
        self._takes_over = takes_over
        self._giver: str | None = None  # the worker that is known to give them, as long as it lives,
        self._claim: int | None = None  # for this claim
        self._silent_since_s: float | None = None

    def given_by(self, worker: str, claim: int | None) -> None:
        """Note that a worker has taken that claim, and gives signs for it."""
        self._giver, self._claim, self._silent_since_s = worker, claim, None

    def look(self, now_s: float, claim: int | None, view: KnownView | None, *, departed: Collection[str]) -> None:
        """Find out whether signs are given, whenever something was heard, or time goes by.

        claim     the newest of the run, as far as is known: whose signs newcomers look for
        view      the present one, if it is known
        departed  nodes that have said that they go
        """
        workers = self._workers
        if not workers.view:
            return
        coordinator, is_under_it = workers.view[0], view is not None and view.claim == claim
        if view is not None and view.met and is_under_it and coordinator in workers:
            self.given_by(coordinator, claim)
        if self._giver is None:
            is_known = not self._takes_over or (is_under_it and workers.view_nodes[coordinator] in departed)
        else:
            is_known = self._claim == claim
        if is_known and self._giver is not None and self._giver in workers:
            self._silent_since_s = None
        elif self._silent_since_s is None or not is_known:
            self._silent_since_s = now_s if is_known else float("-inf")

    def last(self, now_s: float) -> bool:
        """Return whether nobody can have missed the signs yet."""
        return self._silent_since_s is None or now_s - self._silent_since_s < _LAST_S
