"""A node of a run without processes: an agent, and workers that obey their protocol.

A worker is a generator that follows elastic/run.py and session.py: every `yield` is a moment at which it may be
killed, stopped or told something.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from random import Random
from typing import Any, Protocol

from elastic.loop.restoring.transfer import roles
from elastic.loop.run_state import StateSummary
from elastic.membership.exit_statuses import AGAIN
from elastic.membership.hub.orders import Order
from elastic.membership.messages.messages import TO_HUB, parse
from elastic.membership.messages.wire import Message
from elastic.membership.rules.next_view import BOUNDARY
from elastic.membership.succession.node_report import NodeReport
from tests.kit.simulated_group import Group, Lost

Moments = Generator[None, None, Any]

LEAVE, REGROUP, SAVE = 1, 2, 4
STEPS, EVALUATE_EVERY, SAVE_EVERY = 9, 3, 2
COLLECTIVES = ("summaries", "claim", "side_state", "transfer", "exchange", "evaluation", "save", "finish", "leave")
SAVING = "saving"  # a trap, too: it kills a worker that has begun to save


class Ended(Exception):
    """membership.live.RunEnded"""


class Exit(Exception):
    def __init__(self, code: int, error: str | None = None) -> None:
        super().__init__(code)
        self.code, self.error = code, error


class Surroundings(Protocol):
    """What a worker is in: the chance that rules it, what its script is like, and what it leaves behind.

    bug_at      the step at which the script fails, whoever runs it
    strands     how likely a state cannot be rewound
    storage     the newest step that is saved
    replica_size  so many workers of a node hold one copy of the state together
    over_at     where a worker has left the view of a generation
    leaving_in  who has said so, in which generation
    """

    random: Random
    shares: int
    replica_size: int
    has_run: bool
    bug_at: int | None
    strands: float
    storage: int
    exceptions: int
    groups: dict[tuple[object, ...], Group]
    over_at: dict[tuple[int, str], str]
    leaving_in: set[tuple[int, str]]

    def chance(self, p: float) -> bool: ...

    def identity(self, worker: Worker) -> str: ...

    def saved(self, step: int) -> None: ...

    def springs(self, name: str, group: Group) -> None: ...

    def springs_at_save(self, worker: Worker) -> None: ...


class Worker:
    def __init__(self, world: Surroundings, node: Node, local_rank: int, number: int) -> None:
        self.world, self.node, self.local_rank = world, node, local_rank
        self.id = f"{node.name}-{number}"
        self.up: deque[Message] = deque()
        self.down: deque[Message] = deque()
        self.moments = self.life()
        self.alive, self.stopped, self.hung, self.expected, self.is_ready = True, False, False, False, False
        self.exit: tuple[int | None, str | None] = (None, None)
        self.departed = False  # by its own will, or as it was told: nobody replaces it
        self.leave = self.raises = self.breaks = self.quits = self.cannot_save = False
        # membership/worker/live.py
        self.view: Message | None = None
        self.generation = self.broken = self.regroup = 0
        self.board: dict[tuple[int, str], str] = {}
        self.released: Message | None = None
        self.other = False
        self.asked = 0
        self.asked_waits = False
        self.end: Message | None = None
        # elastic/run.py
        self.group: Group | None = None
        self.round = 0
        self.step = -1
        self.agreed: list[int] | None = None
        self.agreed_by: list[str] = []
        self.agreements: list[str] = []
        self.wished = 0
        self.updating = False
        self.at_boundary = True
        self.needed = False
        self.evaluations = 0
        self.finished = False

    def say(self, say: str, **facts: Any) -> None:
        self.up.append({"say": say, **facts})

    def hear(self, message: Message) -> None:
        match message["say"]:
            case "view":
                self.view = message
            case "board":
                assert message["generation"] >= self.generation
                self.board.update(((message["generation"], key), value) for key, value in message["entries"].items())
            case "broken":
                self.broken = max(self.broken, message["generation"])
                if self.broken >= self.generation:
                    self.abort()
            case "regroup":
                self.regroup = message["generation"]
            case "identity":
                self.other = True
            case "released":
                self.released = message
            case "leave":
                self.leave = True
            case "end":
                self.end = message
                self.abort()
            case "save":
                self.asked, self.asked_waits = message["generation"], message["waits"]
            case say:
                raise AssertionError(say)

    def abort(self) -> None:
        if self.group is not None:
            self.group.hung_up.add(self.id)

    def collective(self, name: str, value: Any = None) -> Moments:
        group, at = self.group, self.round
        assert group is not None
        self.round += 1
        vote = at, (self.node.name, self.replica)
        if self.id in group.hung_up and vote not in group.votes:
            group.votes[vote] = False
        if group.votes.get(vote) is False:
            raise Lost
        given = group.give(at, name, self.id, value)
        while True:
            yield
            whole, lost = len(given) == len(group.members), bool(group.hung_up)
            if vote not in group.votes:  # a replica comes through as one: its members have asked each other
                if self.id in group.hung_up or (lost and (not whole or self.world.chance(0.5))):
                    group.votes[vote] = False
                elif whole:
                    group.votes[vote] = True
            if group.votes.get(vote) is False:
                raise Lost
            if vote in group.votes:
                self.world.springs(name, group)
                return [given[member] for member in group.members]

    def life(self) -> Moments:
        try:
            yield from self.script()
            self.ends(0)
        except Exit as exit:
            if exit.error is not None:
                self.say("failed", error=exit.error, trace="", step=self.at_step)
            self.ends(exit.code)

    def ends(self, code: int | None, signal: str | None = None) -> None:
        self.alive, self.exit = False, (code, signal)
        self.abort()

    @property
    def replica(self) -> int:
        return self.local_rank // self.world.replica_size

    def mates(self) -> list[Worker]:
        """The other workers of its replica that live."""
        others = self.node.workers.values()
        return [one for one in others if one is not self and one.replica == self.replica and one.alive]

    @property
    def at_step(self) -> int | None:
        return max(self.step, 0) if self.generation > 0 else None

    def computes(self) -> Moments:
        for _ in range(self.world.random.randrange(1, 4)):
            yield
            if self.raises or self.world.bug_at == self.step:
                self.world.exceptions += 1
                number = 0 if self.world.bug_at == self.step else self.world.exceptions
                raise Exit(1, f"Error{number}: something")
            if self.quits:
                self.departed = True
                raise Exit(0)

    def script(self) -> Moments:
        if not self.world.has_run:
            return (yield from self.computes())
        for _ in range(self.world.random.randrange(1, 6)):
            yield
        self.say("ready", shares=self.world.shares, identity=self.world.identity(self), accepted=False)
        self.is_ready = True
        yield from self.enters_first()
        self.finished = self.step >= STEPS
        while not self.finished:
            yield from self.one_step()
            if self.step % EVALUATE_EVERY == 0:
                self.evaluations += 1
                yield from self.agree(f"evaluation {self.evaluations}", "evaluating")
            self.at_boundary = True
            if self.breaks:
                yield from self.goes(lost=True, joins=False)
                return
            yield from self.boundary()
        yield from self.agree("finish", "finishing")
        self.say("finished", step=self.step)
        for _ in range(self.world.random.randrange(3)):
            yield

    def one_step(self) -> Moments:
        index = self.step
        while True:
            yield from self.computes()
            self.wished = (LEAVE if self.leave else 0) | (REGROUP if self.regroup >= self.generation > 0 else 0)
            self.wished |= SAVE if self.world.chance(0.1) else 0
            try:
                wishes = yield from self.collective(f"exchange {index}", self.wished)
                break
            except Lost:
                yield from self.next_view(f"in the exchange of step {index}", lost=True)
                if self.step > index:
                    return
        self.updating, self.at_boundary = True, False
        yield
        if self.raises:
            self.world.exceptions += 1
            raise Exit(1, f"Error{self.world.exceptions}: in the update")
        self.step += 1
        self.updating = False
        self.evaluations = 0
        assert self.group is not None
        self.agreed, self.agreed_by, self.agreements = wishes, list(self.group.members), []

    def boundary(self) -> Moments:
        assert self.agreed is not None
        leaving = [id for id, wish in zip(self.agreed_by, self.agreed, strict=True) if wish & LEAVE]
        wishes = 0
        for wish in self.agreed:
            wishes |= wish
        self.finished = self.step >= STEPS
        if self.finished:
            return
        if leaving and len(leaving) == len(self.agreed):
            yield from self.agree("save", "saving")
            yield from self.agree("leave", "saving on leaving")
            self.says_leaving(saved=True)
            self.leaves_for_good()
        if wishes & SAVE or self.step % SAVE_EVERY == 0:
            yield from self.agree("save", "saving")
            if self.coordinates:
                yield from self.saves()
        if leaving or wishes & REGROUP:
            only_for = None if wishes & REGROUP else leaving
            yield from self.regroups(leaves=bool(self.wished & LEAVE), only_for=only_for)

    def regroups(self, *, leaves: bool, only_for: list[str] | None) -> Moments:
        while "regroup" not in self.agreements:
            yield from self.agree("to regroup", "regrouping", only_for=only_for)
            if "regroup" in self.agreements:
                return
            if leaves:
                if (yield from self.goes(lost=self.needed)):
                    self.leaves_for_good()
                self.needed = True
            else:
                self.agreements.append("regroup")
            yield from self.next_view(BOUNDARY, lost=False)

    def goes(self, *, lost: bool = False, joins: bool = True) -> Moments:
        """Whether it may; else it is in the next view."""
        self.says_leaving(saved=False, lost=lost, joins=joins)
        while True:
            if self.released is not None:
                if not self.released["safe"]:
                    self.departed = True
                    raise Exit(1)
                self.departed = True
                return True
            if self.end is not None:
                raise Exit(1)
            if self.asked == self.generation:
                yield from self.saves_for_all()
            elif self.view is not None and self.view["generation"] > self.generation:
                assert joins
                return False
            yield

    def says_leaving(self, *, saved: bool, lost: bool = False, joins: bool = True) -> None:
        assert not saved or self.world.storage >= self.step, (
            f"{self.id} leaves with step {self.step}, which is not saved"
        )
        holds = {"whole": self.is_whole, "torn": self.updating, "joins": joins}
        self.say("leaving", generation=self.generation, step=self.step, saved=saved, lost=lost, **holds)
        self.world.leaving_in.add((self.generation, self.id))

    def leaves_for_good(self) -> None:
        """As if all were well."""
        self.departed = True
        raise Exit(0)

    @property
    def is_whole(self) -> bool:
        return self.at_boundary and not self.updating

    @property
    def coordinates(self) -> bool:
        return self.group is not None and self.group.members[0] == self.id

    def saves(self) -> Moments:
        assert self.is_whole
        step = self.step
        self.world.springs_at_save(self)
        yield
        if self.cannot_save:
            self.world.exceptions += 1
            raise Exit(1, f"Error{self.world.exceptions}: cannot save")
        self.world.saved(step)

    def saves_for_all(self) -> Moments:
        if self.asked_waits and self.cannot_save:
            yield
            if self.asked_waits:  # else all are to go by now, and it is asked once more
                self.asked = 0
            return
        if self.coordinates or self.world.storage < self.step:  # else a peer has saved, and went
            yield from self.saves()
        self.asked = 0
        self.say("saved", generation=self.generation, step=self.step)

    def agree(self, name: str, doing: str, *, only_for: list[str] | None = None) -> Moments:
        while name not in self.agreements:
            try:
                assert self.group is not None
                if only_for is not None and set(only_for).isdisjoint(self.group.members):
                    self.agreements += ["regroup", name]
                    return
                if name in ("leave", "finish") and self.coordinates:
                    yield from self.saves()
                yield from self.collective(f"{name} after {self.step}")
                self.agreements.append(name)
            except Lost:
                yield from self.next_view(doing, lost=True)

    def next_view(self, at: str, *, lost: bool) -> Moments:
        while True:
            if lost:
                self.abort()
            self.says_over(at, lost=lost)
            try:
                yield from self.enters(holds=True)
                return
            except Lost:
                lost = True
            except Ended:
                raise Exit(AGAIN) from None

    def says_over(self, at: str, *, lost: bool) -> None:
        whole = self.is_whole and self.step >= 0
        self.say(
            "view_is_over",
            generation=self.generation,
            step=self.step,
            at=at,
            lost=lost,
            whole=whole,
            torn=self.updating,
        )
        self.world.over_at[self.generation, self.id] = at

    def enters_first(self) -> Moments:
        while True:
            try:
                return (yield from self.enters())
            except Lost:
                self.abort()
                self.says_over(BOUNDARY, lost=True)
            except Ended:
                raise Exit(AGAIN) from None

    def enters(self, *, holds: bool = False) -> Moments:
        while self.view is None or self.view["generation"] <= self.generation:
            if self.end is not None:
                raise Ended
            if holds and self.asked == self.generation:
                yield from self.saves_for_all()
            elif holds and self.leave and self.world.chance(0.02):  # it has waited long enough
                if (yield from self.goes()):
                    self.leaves_for_good()
                continue
            if self.other:
                self.other = False
                self.say("ready", shares=self.world.shares, identity=self.world.identity(self), accepted=True)
            yield
        if self.end is not None:
            raise Ended
        self.generation = self.view["generation"]
        members: list[str] = self.view["workers"]
        self.say("put", generation=self.generation, key=self.id, value="eA==")
        while not all((self.generation, member) in self.board for member in members):
            if self.broken >= self.generation or self.end is not None:
                raise Lost
            yield
        self.group = self.world.groups.setdefault((self.generation, *members), Group(members))
        self.round = 0
        if self.broken >= self.generation:
            self.abort()
        step = self.step if self.step >= 0 else None
        rewinds = not self.world.chance(self.world.strands)
        summary = StateSummary(step=step, agreements=len(self.agreements), torn=self.updating, rewinds=rewinds)
        summaries = yield from self.collective("summaries", summary)
        self.say("entered", generation=self.generation)
        parts = roles(summaries)
        rank = members.index(self.id)
        if parts is None:
            self.step = (yield from self.collective("claim", self.world.storage))[0]
        elif parts.need_side_state:
            if parts.stranded:
                raise Exit(AGAIN) if rank in parts.stranded else Lost
            mine = self.step, self.agreed, self.agreed_by, list(self.agreements)
            words = yield from self.collective("side_state", mine)
            if parts.need_state:
                yield from self.collective("transfer") if rank in parts.need_state else self.gives("transfer")
            if rank in parts.need_side_state:
                step, self.agreed, self.agreed_by, agreements = words[parts.donors[0]]
                self.evaluations = self.evaluations if step == self.step else 0
                self.step, self.agreements, self.updating = step, list(agreements), False
        assert not self.updating
        self.group.stands[self.id] = (self.step, self.agreements[:], self.agreed, self.agreed_by)
        assert all(self.group.stands[self.id] == other for other in self.group.stands.values()), self.group.stands

    def gives(self, name: str) -> Moments:
        """A donor's part: it does not wait for those that receive."""
        assert self.group is not None
        if self.id in self.group.hung_up:
            raise Lost
        self.group.give(self.round, name, self.id, None)
        self.round += 1
        yield


class Node:
    """An agent, with its connection to the hub."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.report = NodeReport()
        self.up: deque[Message] = deque()
        self.down: deque[Order] = deque()
        self.requests: deque[int] = deque()
        self.workers: dict[str, Worker] = {}
        self.slots = 0
        self.before: set[str] = set()  # its workers so far, when it came to another hub
        self.leaving = False
        self.admitted = True
        self.over: Message | None = None
        self.deadline_s = float("inf")
        self.waits_until_s: float | None = None  # for a place

    def tells(self, say: str, **facts: Any) -> None:
        """The hub, whichever it will be when it is heard."""
        message = {"say": say, **facts}
        self.report.note_said(parse(TO_HUB, message))
        self.up.append(message)

    @property
    def done(self) -> bool:
        nobody = not (self.workers or self.requests or self.up)
        return nobody and (self.leaving or (self.over is not None))
