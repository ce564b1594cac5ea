"""A worker as the control plane sees it: what it says when, what it holds, and which claim it knows.

    starting -> ready -> (view -> board -> met -> trains) ... view_is_over -> waits -> ...

The order in which a waiting worker looks at what it was told is that of membership/worker/live.py (`wait_for_view`);
what becomes of a claim is loop/restoring/restorer.py's.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from elastic.membership.rules.next_view import BOUNDARY
from tests.kit.simulated_hosts.storage import Document, Refused

if TYPE_CHECKING:
    from tests.kit.simulated_hosts.agent import Agent
    from tests.kit.simulated_hosts.world import World

MID_STEP = "in the exchange"
STEP_S, SAVE_EVERY, TIMEOUT_S = 0.25, 4, 8.0
SIGNS_LAST_S = 10.0  # of the 15 s of elastic_checkpoint/runs/holder.py: the last one may be 5 s old


class Group:
    """The workers of one view, once they meet."""

    def __init__(self, world: World, view: dict[str, Any]) -> None:
        self._world = world
        self.view = view
        self.generation: int = view["generation"]
        self.ids: list[str] = view["workers"]
        self.members: dict[str, Worker] = {}
        self.hung_up: set[str] = set()
        self.met = self.from_storage = False
        self.trained = 0
        self._well_s = world.network.now_s

    @property
    def nodes(self) -> frozenset[str]:
        return frozenset(self.view["nodes"])

    def joins(self, worker: Worker) -> None:
        self.members[worker.id] = worker
        self.looks()

    def looks(self) -> None:
        """Whether all meet now."""
        if self.met or self.hung_up or len(self.members) < len(self.ids):
            return
        if not self._connected():
            if not self._times_out():
                self._world.network.after(0.2, self.looks)
            return
        self.met = True
        self.from_storage = all(worker.step < 0 for worker in self.members.values())
        ahead = max(self.members.values(), key=lambda worker: worker.step)
        step, claim = ahead.step, ahead.claim
        for worker in self.members.values():
            worker.agent.machine.after(self._world.network.delay_s(), partial(worker.meets, self, step, claim))

    def hangs_up(self, worker: Worker) -> None:
        """It is gone, or has lost a peer: the others learn of it as soon as anything gets there."""
        if worker.id in self.hung_up:
            return
        self.hung_up.add(worker.id)
        for other in self.members.values():
            self._tell(worker, other)

    def _tell(self, gone: Worker, other: Worker) -> None:
        def learns() -> None:
            if self._world.network.gets(gone.agent.name, other.agent.name):
                other.loses_peer(self)
            else:
                other.agent.machine.after(0.2, learns)

        other.agent.machine.after(self._world.network.delay_s(), learns)

    def steps(self) -> None:
        """One update, in which all take part."""
        if self.hung_up:
            return
        self._world.network.after(STEP_S, self.steps)
        there = all(worker.trains and worker.alive and not worker.agent.machine.is_frozen for worker in self._all())
        if not there or not self._connected():
            self._times_out()
            return
        self._well_s = self._world.network.now_s
        self.trained += 1
        self._world.trains(self)
        for worker in self._all():
            worker.step += 1
        first = self.members[self.ids[0]]
        if self.trained % SAVE_EVERY == 0:
            first.saves(self)
        leaving = [worker for worker in self._all() if worker.leaves]
        if leaving or any(worker.regroup >= self.generation for worker in self._all()):
            for worker in self._all():
                worker.agent.machine.after(0.01, partial(worker.at_boundary, self))

    def _times_out(self) -> bool:
        """Whether all have waited too long for those whom they do not hear."""
        if self._world.network.now_s - self._well_s < TIMEOUT_S:
            return False
        for worker in self._all():
            worker.agent.machine.after(0.0, partial(worker.loses_peer, self))
        return True

    def _all(self) -> list[Worker]:
        return list(self.members.values())

    def _connected(self) -> bool:
        gets = self._world.network.both_ways
        nodes = [worker.agent.name for worker in self._all()]
        return all(gets(one, other) for one in nodes for other in nodes) and all(w.alive for w in self._all())


class Worker:
    """claim: the newest that it knows to be the run's"""

    def __init__(self, world: World, agent: Agent, id: str) -> None:
        self._world = world
        self.agent = agent
        self.id = id
        self.alive = True
        self._ended_s = float("inf")
        self.up: deque[dict[str, Any]] = deque()
        self.step = -1
        self.claim: Document | None = None
        self.generation = self.broken = self.regroup = 0
        self.leaves = self.released = False
        self.trains = self.waits = self.busy = self.is_ready = False
        self._group: Group | None = None
        self._board: dict[tuple[int, str], str] = {}
        self._view: dict[str, Any] | None = None
        self._to_claim: dict[str, Any] | None = None
        self._asked = 0
        self._storage = world.storage_of(agent.name)

    # saying

    def says(self, say: str, **facts: Any) -> None:
        self.up.append({"say": say, "worker": self.id, **facts})
        self.agent.machine.after(self._world.chance.random() * 0.02, self.agent.catches_up)

    def is_up(self) -> None:
        """It has come to its `with Run(...)`."""
        if self.alive:
            self.is_ready = True
            newest = self._storage.claims[-1] if self._storage.claims and self._world.storage_answers() else None
            if newest is not None:
                self._world.reads(self.agent.name, newest["claim"])
            self.says("ready", shares=16, identity="one", newest=newest)
            self.waits = True

    def ends(self, code: int | None, signal: str | None = None, error: str | None = None) -> None:
        if not self.alive:
            return
        self.alive = self.trains = False
        self._ended_s = self._world.network.now_s
        if self._group is not None:
            self._group.hangs_up(self)
        if error is not None:
            self.says("failed", error=error, trace="", step=max(self.step, 0))
        self.agent.machine.after(0.05, lambda: self.agent.reaps(self, code, signal))

    # hearing

    def hears(self, message: dict[str, Any]) -> None:
        if not self.alive:
            return
        match message["say"]:
            case "view":
                self._view = message
            case "board":
                self._board.update(((message["generation"], k), v) for k, v in message["entries"].items())
                self._forms()
            case "broken":
                self.broken = max(self.broken, message["generation"])
                if self.broken >= self.generation and not self.waits:
                    self._loses_view()
            case "claim":
                self._to_claim = message
            case "hub_at":
                self._moves_liveness(f"liveness of {message['liveness']['hub']['host']}")
            case "regroup":
                self.regroup = message["generation"]
            case "moved_on":
                self.agent.machine.after(self._world.chance.random(), lambda: self.ends(1))
                self._aborts()
            case "leave":
                self.leaves = True
                if not self.generation:
                    self.ends(None, "SIGTERM")
            case "released":
                self.released = True
                self.ends(0 if message["safe"] else 1)
            case "end":
                self.ends(1)
            case "save":
                self._asked = message["generation"]
                self.claim = self._newer(message["claim"])
        self.agent.machine.after(0.0, self.looks)

    def looks(self) -> None:
        """membership/worker/live.py: wait_for_view"""
        if not (self.alive and self.waits) or self.busy:
            return
        if self._asked == self.generation > 0:
            self._asked = 0
            self._saves_and_says_so()
        elif self._to_claim is not None and self._is_current(self._to_claim):
            words, self._to_claim = self._to_claim, None
            self._takes(words)
        elif self._view is not None and self._view["generation"] > self.generation:
            self._enters(self._view)

    def _is_current(self, words: dict[str, Any]) -> bool:
        return self._view is None or words["generation"] > self._view["generation"]

    # claims

    def _takes(self, words: dict[str, Any]) -> None:
        assert self.claim is not None
        self.busy = True
        self.claim = self._newer(words["claim"])
        begun_s = self._world.network.now_s

        def tries() -> None:
            if not self.alive or self.claim is None:
                return
            facts: dict[str, Any] = {"generation": words["generation"], "claim": None}
            if self._world.storage_answers():
                try:
                    liveness = words["liveness"]["nonce"]
                    to = self.claim["claim"]
                    self.claim = self._storage.succeeds(self.lives, to, liveness=liveness, nodes=words["nodes"])
                    facts["claim"] = self.claim
                except Refused as refused:
                    facts |= {"claim": refused.newest, "moved_on": True, "why": str(refused)}
            elif self._world.network.now_s - begun_s < self._world.storage_fails_s:
                self.agent.machine.after(0.5, tries)
                return
            else:
                facts["why"] = "timed out"

            def answers() -> None:
                if self.alive:
                    self.busy = False
                    self.says("claimed", **facts)
                    self.looks()

            self.agent.machine.after(self._world.storage_s(), answers)

        self.agent.machine.after(self._world.storage_s(), tries)

    def saves(self, group: Group) -> None:
        """In the background."""
        claim, step = self.claim, self.step

        def commits() -> None:
            if not self._world.storage_answers() or claim is None:
                return
            if not self._storage.commits(self.lives, claim=claim["claim"], step=step):
                self.ends(1, error="elastic.errors.Evicted")

        if self._world.witness:
            self.agent.machine.after(self._world.storage_s(), commits)

    def _saves_and_says_so(self) -> None:
        self.busy = True

        def commits() -> None:
            if not self.alive:
                return
            self.busy = False
            claim = self.claim["claim"] if self.claim is not None else 0
            if not self._world.storage_answers() or (
                self._world.witness and not self._storage.commits(self.lives, claim=claim, step=self.step)
            ):
                self.ends(1, error="elastic.errors.Evicted")
                return
            self.says("saved", generation=self.generation, step=self.step)
            self.looks()

        self.agent.machine.after(self._world.storage_s(), commits)

    def lives(self) -> bool:
        """Its heartbeat in the storage is fresh. It renews it; who is only stopped is waited for longer than that
        lasts."""
        ended_s = min(self._ended_s, self.agent.machine.crashed_s)
        return self._world.network.now_s - ended_s < SIGNS_LAST_S

    def _moves_liveness(self, liveness: str) -> None:
        claim = self.claim["claim"] if self.claim is not None else 0
        self.agent.machine.after(self._world.storage_s(), lambda: self._storage.moves(liveness, claim=claim))

    def _newer(self, known: Document | None) -> Document | None:
        if known is None or (self.claim is not None and self.claim["claim"] >= known["claim"]):
            return self.claim
        return known

    # views

    def _enters(self, view: dict[str, Any]) -> None:
        self.waits = False
        self.generation = view["generation"]
        if self.broken >= self.generation:
            self._loses_view()
            return
        self.says("put", generation=self.generation, key=self.id, value="eA==")
        self._group = None
        self._forms()

    def _forms(self) -> None:
        view = self._view
        if self.waits or self._group is not None or view is None or view["generation"] != self.generation:
            return
        if all((self.generation, id) in self._board for id in view["workers"]):
            self._group = self._world.group(view)
            if self._group.hung_up:
                self._loses_view()
            else:
                self._group.joins(self)

    def meets(self, group: Group, step: int, claim: Document | None) -> None:
        """See StateRestorer.from_peers_or_storage. step, claim: of the one that is farthest"""
        if self._group is not group or self.waits or not self.alive:
            return
        known = group.view["claim"]
        has_newer = known is not None and self.claim is not None and self.claim["claim"] > known["claim"]
        if has_newer and group.view["witness"]:
            self._loses_view()
            return
        if group.from_storage:
            if group.ids[0] == self.id:
                self._begins(group)
            return
        if self.step < step:
            self.step, self.claim = step, claim
        self.says("entered", generation=self.generation)
        self.claim = self._newer(known)
        self.trains = True
        self._world.meets(group)
        if known is not None and not group.view["witness"]:
            self._reads_later(group)
        if group.ids[0] == self.id:
            self._storage.adopted(self.lives, claim=self.claim["claim"] if self.claim is not None else 0)
            self._moves_liveness(group.view["liveness"]["nonce"])
            group.steps()

    def _reads_later(self, group: Group) -> None:
        """See loop/storage/claim_lookup.py."""
        if not self.alive or self._group is not group:
            return
        if not self._world.storage_answers():
            self.agent.machine.after(0.5, partial(self._reads_later, group))
        elif group.view["claim"] in self._storage.claims:
            self._world.reads(self.agent.name, group.view["claim"]["claim"])
            self.agent.machine.after(self._world.storage_s(), partial(self._has_read, group))

    def _has_read(self, group: Group) -> None:
        if self.alive:
            self.says("has_read", claim=group.view["claim"])

    def _begins(self, group: Group) -> None:
        """The coordinator of a view of newcomers claims the storage, and all read it."""
        liveness = group.view["liveness"]["nonce"]

        def claims() -> None:
            if self._group is not group or self.waits or not self.alive:
                return
            if not self._world.storage_answers():
                self.ends(1, error="elastic_checkpoint.errors.StorageError")
                return
            if group.view["begun_elsewhere"] and not self._storage.claims:
                self.ends(1, error="elastic.errors.StartFailed")
                return
            try:
                answers = self._world.liveness_answers(self.agent.name)
                facts = {"liveness": liveness, "answers": answers, "unanswered": group.view["unanswered"]}
                claim = self._storage.begins(self.lives, **facts, nodes=sorted(group.nodes))
            except Refused as refused:
                self.ends(1, error=f"elastic_checkpoint.errors.ClaimHeld: {refused}")
                return
            step = self._storage.step
            for worker in group.members.values():
                worker.agent.machine.after(self._world.storage_s(), partial(worker.begins_from, group, claim, step))

        self.agent.machine.after(self._world.storage_s(), claims)

    def begins_from(self, group: Group, claim: Document, step: int) -> None:
        if self._group is not group or self.waits or not self.alive:
            return
        self.step, self.claim = step, claim
        self._world.begins(group)
        self._world.meets(group)
        self.says("entered", generation=self.generation)
        self.says("witness", generation=self.generation, claim=claim, agreed=False)
        if self._world.witness:

            def agree() -> None:
                if self._group is group and not self.waits and self.alive and not group.hung_up:
                    self._world.agree(group.nodes)
                    self.says("witness", generation=self.generation, claim=claim, agreed=True)
                    self.trains = True

            self.agent.machine.after(0.3, agree)
        else:
            self.trains = True
        if group.ids[0] == self.id:
            group.steps()

    def at_boundary(self, group: Group) -> None:
        if self._group is not group or not self.trains:
            return
        self._aborts()
        if self.leaves:
            self.says("leaving", generation=self.generation, step=self.step)
        else:
            self._says_over(BOUNDARY, lost=False)
        self.waits = True
        self.looks()

    def loses_peer(self, group: Group) -> None:
        if self._group is group and not self.waits and self.alive:
            self._loses_view()

    def _loses_view(self) -> None:
        self._aborts()
        self._says_over(MID_STEP, lost=True)
        self.waits = True
        self.looks()

    def _says_over(self, at: str, *, lost: bool) -> None:
        whole = self.step >= 0
        self.says("view_is_over", generation=self.generation, step=self.step, at=at, lost=lost, whole=whole, torn=False)

    def _aborts(self) -> None:
        self.trains = False
        if self._group is not None:
            self._group.hangs_up(self)
