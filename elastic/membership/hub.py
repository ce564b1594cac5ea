"""Decides, for all nodes, which workers form which view. A state machine without sockets, processes or a clock.

    workers say "ready" or "over"; agents say "started" and "exited"
      ->  everyone who can be in the next view has answered, or is proven to be gone
      ->  one "view" to each of its workers, with the next generation

There is one hub in a run, in the agent of the first node, and views alone decide who is lost: a worker acts on
nothing but what it is told here and on the failure of its own collectives. Who is in a view and in which order, and
which failure ends a run, is rules.py's. Words and their directions:

    worker -> hub  ready, over, put, leaving, failed, finished
    agent  -> hub  hello, started, unstarted, exited
    hub -> worker  view, board, broken, regroup, keep, identity, released, end
    hub -> agent   start, status, over
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from elastic.membership.rules import Candidate, Failure, next_view, repeated
from elastic.membership.wire import Message

STARTING, DIFFERENT, READY, MEMBER, OVER, LEAVING, FINISHED = (
    "starting",
    "different",
    "ready",
    "member",
    "over",
    "leaving",
    "finished",
)
LEAVES = ("SIGTERM", "SIGINT")  # a worker that such a signal ended before it could leave in order was told to go
FAULTS = ("SIGKILL",)
_SHORT_S = 1.0  # a node whose workers are being replaced is back by then
_SILENT_S = 10.0  # a member that has not answered "broken" by then is named
_GONE_MAX = 64  # that a view tells of
_AGAIN_MAX = 20  # of one place, while the run gets nowhere
AGAIN = 75  # the exit status (EX_TEMPFAIL) of a worker that asks to be started again


@dataclass(frozen=True)
class Order:
    """A message to a worker of that node, or to its agent (worker is None)."""

    node: str
    worker: str | None
    message: Message


@dataclass
class _Worker:
    id: str
    node: str
    local_rank: int
    status: str = STARTING
    since_s: float = 0.0
    shares: int = 0
    identity: Any = None
    accepted: bool = False
    step: int = -1
    at: str | None = None
    saves: bool = True
    was_member: bool = False
    failed: Message | None = None
    told: str | None = None

    def candidate(self) -> Candidate:
        at = self.at if self.status == OVER else None
        return Candidate(worker=self.id, node=self.node, shares=self.shares, at=at)


class Hub:
    """One run's views.

    nodes_min     below it, those included who wait to join, no view is formed: the run waits, then ends
    nodes_first   how many nodes the first view waits for, `start_s` at most
    restarts_max  see rules.repeated
    beacon        what goes into every view for whoever claims the run's storage
    gather_s      how long a newcomer that is ready waits for others that are starting, once the run is under way
    start_s       the same in a run's first view
    below_min_s   how long the run waits for nodes
    ending_s      how long workers may take to come to a clean end
    """

    def __init__(
        self,
        *,
        nodes_min: int = 1,
        nodes_max: int = 1,
        nodes_first: int = 1,
        restarts_max: int = 3,
        window_s: float = 3600.0,
        beacon: Message | None = None,
        gather_s: float = 0.3,
        start_s: float = 120.0,
        below_min_s: float = 600.0,
        ending_s: float = 60.0,
    ) -> None:
        self.generation = 0
        self._nodes_min = nodes_min
        self._nodes_max = nodes_max
        self._nodes_first = nodes_first
        self._restarts_max = restarts_max
        self._window_s = window_s
        self._beacon = beacon
        self._gather_s = gather_s
        self._start_s = start_s
        self._below_min_s = below_min_s
        self._ending_s = ending_s
        self._nodes: list[str] = []
        self._awaited: list[tuple[str, int]] = []  # places whose worker was ordered and has not been started yet
        self._begun = False
        self._workers: dict[str, _Worker] = {}
        self._view: tuple[str, ...] = ()
        self._identity: Any = None
        self._failures: list[Failure] = []
        self._broken = False
        self._complained = 0  # in which generation
        self._asked = False
        self._finished = False
        self._again: Counter[tuple[str, int]] = Counter()  # of a place, since the run got on
        self._farthest = -1
        self._keeper: str | None = None  # who saves if all are told to leave now
        self._loss: str | None = None  # why the run will have failed if nobody goes on with it
        self._short_since_s: float | None = None
        self._short_said = False
        self._ending: str | None = None
        self._repeated = False  # one failure, which is why the run ends
        self._ending_since_s = 0.0
        self._over = False
        self._gone: list[Message] = []  # since the last view, and why
        self._orders: list[Order] = []

    def told(self, now_s: float, node: str, message: Message) -> list[Order]:
        """What follows from a message of that node's agent or of one of its workers (then with "worker")."""
        say = message["say"]
        handler: Callable[[float, str, Message], None] | None = getattr(self, f"_on_{say}", None)
        known = node in self._nodes and (say in ("started", "unstarted") or message.get("worker") in self._workers)
        if handler is not None and (known or say == "hello"):
            handler(now_s, node, message)
        return self._decided(now_s)

    def lost(self, now_s: float, node: str) -> list[Order]:
        """An agent's connection ended: its process is gone, and its workers go with it."""
        if node in self._nodes:
            self._nodes.remove(node)
            here = [worker for worker in self._workers.values() if worker.node == node]
            awaited = [place for place in self._awaited if place[0] == node]
            if not self._finished and (awaited or any(worker.status != LEAVING for worker in here)):
                self._loss = f"{node} was lost, and nobody is left"
            self._awaited = [place for place in self._awaited if place not in awaited]
            for worker in here:
                self._note_gone(worker, "its node was lost", {})
                del self._workers[worker.id]
        return self._decided(now_s)

    def tick(self, now_s: float) -> list[Order]:
        """What follows from time alone."""
        return self._decided(now_s)

    def _on_hello(self, now_s: float, node: str, message: Message) -> None:
        if self._over or (node not in self._nodes and len(self._nodes) >= self._nodes_max):
            why = "the run is over" if self._over else f"the run has its {self._nodes_max} nodes already"
            self._orders.append(Order(node, None, {"say": "over", "failed": False, "why": why}))
        elif node not in self._nodes:
            self._nodes.append(node)
            self._awaited += [(node, local_rank) for local_rank in range(message.get("places", 0))]

    def _on_started(self, now_s: float, node: str, message: Message) -> None:
        worker = _Worker(message["worker"], node, message["local_rank"], since_s=now_s)
        self._begun = True
        self._on_unstarted(now_s, node, message)
        self._workers[worker.id] = worker

    def _on_unstarted(self, now_s: float, node: str, message: Message) -> None:
        if (node, message["local_rank"]) in self._awaited:
            self._awaited.remove((node, message["local_rank"]))

    def _on_ready(self, now_s: float, node: str, message: Message) -> None:
        worker = self._workers[message["worker"]]
        if worker.status == FINISHED:
            self._loss = "the script began a second Run: under `elastic run` a script has one"
            self._say(worker, {"say": "end", "why": self._loss, "save": False})
            return
        worker.shares, worker.identity, worker.since_s = message["shares"], message.get("identity"), now_s
        worker.accepted, worker.status = bool(message.get("accepted")), READY
        self._compare(worker)

    def _compare(self, worker: _Worker) -> None:
        """One that is ready and differs from the run is asked whether it accepts that."""
        if self._identity not in (None, worker.identity) and not worker.accepted:
            worker.status = DIFFERENT
            self._say(worker, {"say": "identity", "identity": self._identity})

    def _on_over(self, now_s: float, node: str, message: Message) -> None:
        worker = self._workers[message["worker"]]
        if worker.status == MEMBER and message["generation"] == self.generation:
            worker.status, worker.at, worker.step = OVER, message["at"], message["step"]
            worker.saves = bool(message.get("saves", True))
            if worker.step > self._farthest:
                self._farthest = worker.step
                self._again.clear()
            self._broken |= bool(message.get("lost"))

    def _on_leaving(self, now_s: float, node: str, message: Message) -> None:
        worker = self._workers[message["worker"]]
        if worker.status == MEMBER and message["generation"] == self.generation:
            worker.status = LEAVING
            self._broken |= bool(message.get("lost"))
            self._loss = None  # whoever leaves in order has seen to it that the run can go on

    def _on_finished(self, now_s: float, node: str, message: Message) -> None:
        self._workers[message["worker"]].status = FINISHED
        self._finished = True

    def _on_failed(self, now_s: float, node: str, message: Message) -> None:
        self._workers[message["worker"]].failed = message

    def _on_put(self, now_s: float, node: str, message: Message) -> None:
        if message["generation"] == self.generation:
            told = {"say": "board", **{key: message[key] for key in ("generation", "key", "value")}}
            for worker in self._members():
                self._say(worker, told)

    def _on_exited(self, now_s: float, node: str, message: Message) -> None:
        worker = self._workers.pop(message["worker"])
        failed, signal, code, hung = worker.failed, message.get("signal"), message.get("code"), message.get("hung")
        if message.get("expected") or worker.status == LEAVING or signal in LEAVES:
            return
        what = failed["error"] if failed else "hang" if hung else signal or f"exit status {code}"
        self._note_gone(worker, what, message)
        if worker.status == FINISHED:
            if failed or code or hung or (signal and signal not in FAULTS):
                self._loss = self._loss or f"{worker.id} failed after the run had finished: {what}"
            return
        if code == 0 and not failed:
            return  # its script came to its end
        if code == AGAIN and not failed:
            self._again[node, worker.local_rank] += 1
        again = code == AGAIN and self._again[node, worker.local_rank] <= _AGAIN_MAX
        if (signal in FAULTS or again) and not hung and not failed:
            self._start(worker)
            return
        step = failed.get("step") if failed else message.get("step")
        failure = Failure(worker=worker.id, what=what, step=step, at_s=now_s)
        bug = repeated(self._failures, failure, restarts_max=self._restarts_max, window_s=self._window_s)
        self._failures.append(failure)
        farthest = max((member.step for member in self._members()), default=0)
        cannot_join = not worker.was_member or (step or 0) < farthest
        if bug is None:
            self._start(worker)
        elif cannot_join and self.generation > 0 and (self._workers or self._awaited):
            why = f"{worker.id} cannot join ({bug}: {what}); the run goes on without it"
            self._orders.append(Order(worker.node, None, {"say": "status", "text": why}))
        else:
            trace = failed.get("trace", "") if failed else ""
            self._repeated = True
            self._end(now_s, f"{bug}: {what}\n{trace}".rstrip())

    def _note_gone(self, worker: _Worker, cause: str, exited: Message) -> None:
        facts = {"t": exited.get("t"), "step": exited.get("step"), "stuck_s": exited.get("stuck_s")}
        if worker.status not in (LEAVING, FINISHED):
            self._gone = [*self._gone[-_GONE_MAX + 1 :], {"worker": worker.id, "cause": cause, **facts}]

    def _start(self, worker: _Worker) -> None:
        if worker.node in self._nodes and not self._finished and self._ending is None:
            self._awaited.append((worker.node, worker.local_rank))
            self._orders.append(Order(worker.node, None, {"say": "start", "local_rank": worker.local_rank}))

    def _end(self, now_s: float, why: str) -> None:
        if self._ending is None:
            self._ending, self._ending_since_s = why, now_s

    def _decided(self, now_s: float) -> list[Order]:
        if not self._over:
            self._decide(now_s)
        orders, self._orders = self._orders, []
        return orders

    def _decide(self, now_s: float) -> None:
        members = self._members()
        running = [worker for worker in members if worker.status == MEMBER]
        survivors = [worker for worker in members if worker.status == OVER]
        gone = any(id not in self._workers for id in self._view)
        if running and (gone or self._broken or self._ending is not None):
            self._tell_broken(now_s, running)
        if not running:
            self._release()
        if self._ending is not None:
            if not running or now_s - self._ending_since_s > self._ending_s:
                self._finish(survivors, failed=True, why=self._ending)
            return
        newcomers = self._newcomers()
        if running:
            self._ask_to_regroup(now_s, running, newcomers)
        elif survivors or (newcomers and self._gathered(now_s, newcomers, self._start_s)):
            self._form(now_s, survivors, newcomers)
        elif self._begun and not members and (self._finished or not (self._workers or self._awaited)):
            self._finish([], failed=self._loss is not None, why=self._loss or "")

    def _newcomers(self) -> list[_Worker]:
        """Those that are ready to join, node by node. A run that is finished needs none."""
        ready = [worker for worker in self._workers.values() if worker.status == READY and not self._finished]
        return sorted(ready, key=lambda worker: (self._nodes.index(worker.node), worker.local_rank))

    def _ask_to_regroup(self, now_s: float, running: list[_Worker], newcomers: list[_Worker]) -> None:
        """Members go on until a boundary that they agree on. Once per view."""
        room = min(worker.shares for worker in running) > len(self._members())
        short = len({worker.node for worker in running}) < self._nodes_min
        if newcomers and room and not self._asked and (short or self._gathered(now_s, newcomers, self._gather_s)):
            self._asked = True
            for worker in running:
                self._say(worker, {"say": "regroup", "generation": self.generation})

    def _form(self, now_s: float, survivors: list[_Worker], newcomers: list[_Worker]) -> None:
        """Nobody trains: the next view, if there are nodes enough.

        Newcomers count as there even if they cannot join yet: then the survivors finish their step without them.
        """
        there = (*survivors, *newcomers)
        nodes = len({worker.node for worker in there})
        if nodes < self._nodes_min and not self._finished:
            self._name_keeper(survivors)
            self._wait_for_nodes(now_s, there)
            return
        waited_s = now_s - min(worker.since_s for worker in there)
        if self.generation == 0 and nodes < self._nodes_first and waited_s < self._start_s:
            return
        if not survivors:
            self._farthest = -1  # the run goes back to what is saved
        chosen = next_view([worker.candidate() for worker in survivors], [worker.candidate() for worker in newcomers])
        self._publish(now_s, [self._workers[candidate.worker] for candidate in chosen])
        self._decide(now_s)

    def _name_keeper(self, survivors: list[_Worker]) -> None:
        """Who saves if all are told to leave while they wait: the one that is farthest; the coordinator may be lost."""
        best = _farthest(survivors)
        if best is not None and self._keeper not in [worker.id for worker in survivors]:
            self._keeper = best.id
            self._say(best, {"say": "keep", "generation": self.generation})

    def _gathered(self, now_s: float, newcomers: list[_Worker], patience_s: float) -> bool:
        """Whether newcomers need not wait for more of them: nobody is starting, or they waited long enough."""
        starting = any(worker.status in (STARTING, DIFFERENT) for worker in self._workers.values())
        waited_s = now_s - min(worker.since_s for worker in newcomers)
        return not (starting or self._awaited) or waited_s >= patience_s

    def _wait_for_nodes(self, now_s: float, there: Iterable[_Worker]) -> None:
        needed, nodes = self._nodes_min, sorted({worker.node for worker in there})
        if self._short_since_s is None:
            self._short_since_s, self._short_said = now_s, False
        elif now_s - self._short_since_s > _SHORT_S and not self._short_said:
            self._short_said = True
            text = f"{len(nodes)} of at least {needed} nodes are here ({', '.join(nodes)}); waiting for the others"
            self._orders.append(Order(self._nodes[0], None, {"say": "status", "text": text}))
        elif now_s - self._short_since_s > self._below_min_s:
            self._end(
                now_s,
                f"{len(nodes)} of at least {needed} nodes were here for {self._below_min_s:.0f} s\n"
                f"  found  {', '.join(nodes)}\n"
                "  state  what was done is saved\n"
                "  next   start the missing nodes with the same command, or allow fewer with --nnodes=MIN:MAX",
            )

    def _publish(self, now_s: float, chosen: list[_Worker]) -> None:
        """With it goes who is gone since the last view, and how long the run was short of nodes."""
        self.generation += 1
        gone, self._gone = self._gone, []
        short_s = now_s - self._short_since_s if self._short_since_s is not None else 0.0
        self._short_since_s = self._keeper = None
        self._broken = self._asked = False
        if not self._finished:
            self._loss = None
        view = {
            "say": "view",
            "generation": self.generation,
            "workers": [worker.id for worker in chosen],
            "nodes": [worker.node for worker in chosen],
            "local_ranks": [worker.local_rank for worker in chosen],
            "one_node": len({worker.node for worker in chosen}) == 1,
            "beacon": self._beacon,
            "short_s": short_s,
            "gone": gone,
        }
        for worker in chosen:
            worker.status, worker.was_member = MEMBER, True
            self._say(worker, view)
        self._view = tuple(worker.id for worker in chosen)
        if self._identity is None:
            self._identity = chosen[0].identity
            for worker in self._newcomers():
                self._compare(worker)

    def _release(self) -> None:
        for worker in self._members():
            if worker.status == LEAVING and worker.told != "released":
                worker.told = "released"
                self._say(worker, {"say": "released"})

    def _tell_broken(self, now_s: float, running: list[_Worker]) -> None:
        gone = [id for id in self._view if id not in self._workers]
        why = f"{', '.join(gone)} {'is' if len(gone) == 1 else 'are'} gone" if gone else "a worker lost a peer"
        for worker in running:
            if worker.told != f"broken {self.generation}":
                worker.told = f"broken {self.generation}"
                worker.since_s = now_s
                self._say(worker, {"say": "broken", "generation": self.generation, "why": why})
        silent = [worker for worker in running if now_s - worker.since_s > _SILENT_S]
        if silent and self._complained != self.generation:
            self._complained = self.generation
            who = ", ".join(f"{worker.id} on {worker.node}" for worker in silent)
            text = f"{why}, and the next view waits for {who}: busy between two collectives, saving, or stuck"
            self._orders.append(Order(self._nodes[0], None, {"say": "status", "text": text}))

    def _finish(self, survivors: list[_Worker], *, failed: bool, why: str) -> None:
        """Tells everyone. Of the survivors the one that is farthest saves what it holds."""
        self._over = True
        self._release()
        best = _farthest(survivors)
        for worker in self._workers.values():
            if worker.status not in (FINISHED, LEAVING):
                self._say(worker, {"say": "end", "why": why, "save": worker is best, "repeated": self._repeated})
        for node in self._nodes:
            self._orders.append(Order(node, None, {"say": "over", "failed": failed, "why": why}))

    def _members(self) -> list[_Worker]:
        """Those of the present view that live, in rank order."""
        return [self._workers[id] for id in self._view if id in self._workers]

    def _say(self, worker: _Worker, message: Message) -> None:
        self._orders.append(Order(worker.node, worker.id, message))


def _farthest(survivors: Iterable[_Worker]) -> _Worker | None:
    """Of those who stand where they may save."""
    return max((worker for worker in survivors if worker.saves), key=lambda worker: worker.step, default=None)
