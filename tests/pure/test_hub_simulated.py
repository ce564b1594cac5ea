"""Whatever happens to workers and nodes, and whenever: views are agreed on, nobody is forgotten, and the run ends.

Thousands of random runs of tests/kit/simulated.py. A failure prints its seed; `simulate(seed)` replays it.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from elastic.membership.hub.orders import Order
from elastic.membership.rules.next_view import BOUNDARY
from tests.kit.sampling import seeds
from tests.kit.simulated import World
from tests.kit.simulated_node import COLLECTIVES, SAVING, STEPS, Node

PATIENCE = 8_000  # moments, after the last fault
BELOW_MIN_S = 10_000.0


class Judge:
    """What must hold of every order, whatever happens."""

    def __init__(self) -> None:
        self.view: list[str] = []
        self.listed: list[str] = []  # in it, be they told of it or not
        self.generation = 0
        self.saving: list[tuple[str, bool]] = []  # in this generation, and whether it was asked while the run waits
        self.released: set[tuple[int, str]] = set()

    def __call__(self, world: World, orders: list[Order]) -> None:
        published: dict[int, list[Order]] = {}
        for order in orders:
            say = order.message["say"]
            if order.worker is not None:
                assert world.every[order.worker].node.name == order.node
                assert order.worker not in world.told_exited, f"{say} to a worker that is gone"
            if say == "view":
                published.setdefault(order.message["generation"], []).append(order)
            elif say in ("broken", "regroup", "board"):
                assert order.message["generation"] == self.generation or say in ("regroup", "board")
                assert order.worker in (published[max(published)][0].message["workers"] if published else self.listed)
            elif say == "released" and order.message["safe"]:
                self.judge_release(world, order.worker or "")
            elif say == "save":
                told = world.every[order.worker or ""].generation  # one that was never told of the present view
                assert order.message["generation"] in (self.generation, told)
                self.judge_save(world, order.worker or "", waits=order.message["waits"])
        for generation, views in sorted(published.items()):
            self.judge_view(world, generation, views)

    def moved(self, world: World) -> None:
        """To another hub, which knows the views that somebody was told of."""
        views = [node.report.view for node in world.nodes.values() if node.report.view is not None]
        newest = max(views, key=lambda view: view.generation, default=None)
        self.listed, self.generation = (newest.workers, newest.generation) if newest is not None else ([], 0)
        within = {id: one.generation for node in world.nodes.values() for id, one in node.report.workers.items()}
        self.view = [
            id for id in self.listed if within.get(id) != 0
        ]  # who was in none yet, and not told, is a newcomer still
        self.saving = []

    def judge_save(self, world: World, id: str, *, waits: bool) -> None:
        """One at a time, for the others wait for it.

        Who cannot save while the run waits does not say so. So it, and nobody else, is asked again before it goes, and
        then it answers or ends.
        """
        asked = [before for before in self.saving if before != (id, True) or waits]
        asked = [before for before in asked if not is_mate(world, before[0], id)]  # of a replica all save a part
        saving = [id for id, _ in asked if id not in world.told_exited and world.every[id].step > world.storage]
        assert not saving, f"{id} is asked to save while {saving} may still do so"
        self.saving.append((id, waits))

    def judge_release(self, world: World, id: str) -> None:
        """Nobody who leaves in order throws the newest state away. (Whom the hub takes for living may be dead, or die
        now: then the last copy was killed.)"""
        leaver = world.every[id]
        others = [world.every[other] for other in self.view if other not in world.told_exited and other != id]
        kept = [one.step for one in others if not one.updating and (self.generation, one.id) not in self.released]
        assert max([world.storage, *kept]) >= leaver.step, f"{id} goes with step {leaver.step}, which nobody has"
        self.released.add((self.generation, id))

    def judge_view(self, world: World, generation: int, orders: list[Order]) -> None:
        view = orders[0].message["workers"]
        assert generation == self.generation + 1 or (world.hubs > 1 and generation > self.generation)
        assert all(order.message == orders[0].message for order in orders)
        assert [order.worker for order in orders] == view
        assert 0 < len(view) <= world.shares * world.replica_size
        for first in range(0, len(view), world.replica_size):
            members = [world.every[id] for id in view[first : first + world.replica_size]]
            slots = [(one.node.name, one.local_rank) for one in members]
            first_slot = members[0].local_rank
            assert first_slot % world.replica_size == 0, "an incomplete replica is let in"
            assert slots == [(slots[0][0], first_slot + place) for place in range(world.replica_size)], slots
        nodes = [world.every[id].node.name for id in view]
        assert nodes == orders[0].message["nodes"]
        assert len(list(dict.fromkeys(nodes))) == sum(a != b for a, b in zip([None, *nodes], nodes, strict=False))

        leaving = {id for id in self.view if (self.generation, id) in world.leaving_in}
        at = {id: min(self.generation, world.every[id].generation or self.generation) for id in self.view}
        said = {id: world.over_at.get((at[id], id), BOUNDARY if id in leaving else None) for id in self.view}
        for id in self.view:
            done = said[id] is not None or world.every[id].departed or world.every[id].step >= STEPS
            done |= world.every[id].generation < self.generation  # it was never told of that view
            assert done or not world.every[id].alive, f"{id} of view {self.generation} is still in it"
        survivors = [id for id in self.view if said[id] is not None and id not in world.told_exited]
        survivors = [id for id in survivors if id in view or id not in leaving]  # some stay that wanted to leave
        survivors = whole(world, survivors)
        holders = whole(world, [id for id in survivors if world.every[id].step >= 0])
        again = set(survivors).difference(holders) if holders else set()  # they had not received the state yet
        survivors = holders or survivors
        assert set(survivors) <= set(view)
        assert view[: len(survivors[:1])] == survivors[:1]
        if set(view) - set(survivors):
            assert all(said[id] == BOUNDARY for id in survivors), "a newcomer joins in the middle of a step"
            assert not set(self.view) & (set(view) - set(survivors) - again), "one that left is back"
        self.saving = []
        self.view, self.listed, self.generation = view, view, generation


def is_mate(world: World, id: str, other: str) -> bool:
    one, another = world.every[id], world.every[other]
    return id != other and one.node is another.node and one.replica == another.replica


def whole(world: World, ids: list[str]) -> list[str]:
    """Those whose replica is among them with all its workers."""
    places = Counter((world.every[id].node.name, world.every[id].replica) for id in ids)
    return [id for id in ids if places[world.every[id].node.name, world.every[id].replica] == world.replica_size]


def fault(world: World, chance: random.Random, allowed: list[str]) -> None:
    workers = [worker for worker in world.workers() if worker.alive and not worker.stopped]
    others = [node for name, node in world.nodes.items() if name != world.hub_at and not node.leaving]
    kind = chance.choice(allowed)
    if kind == "comes":
        missing = [f"node{i}" for i in range(1, 4) if f"node{i}" not in world.nodes]
        if missing and not world.verdicts:
            world.comes(chance.choice(missing), world.replica_size * chance.randrange(1, 3))
    elif kind == "trap":
        world.trap = chance.choice((*COLLECTIVES, SAVING))
    elif kind == "lost":
        if others:
            world.lost(chance.choice(others).name)
    elif kind == "hub":
        if len(world.nodes) > 1:
            world.lost(world.hub_at)
    elif kind == "drain":
        drain(world, chance.choice([node for node in world.nodes.values() if node.over is None] or [None]))
    elif workers:
        worker = chance.choice(workers)
        match kind:
            case "kill":
                worker.ends(None, "SIGKILL")
            case "two":
                for worker in chance.sample(workers, min(2, len(workers))):
                    worker.ends(None, "SIGKILL")
            case "all":
                for worker in workers:
                    worker.ends(None, "SIGKILL")
            case "coordinator":
                for worker in workers:
                    if worker.group is not None and worker.group.members[0] == worker.id:
                        worker.ends(None, "SIGKILL")
            case "stop":
                if worker.at_step not in world.stopped_at:
                    world.stopped_at.add(worker.at_step)
                    worker.stopped = True
            case "raise":
                worker.raises = True
            case "leave":
                if worker.generation > 0:
                    for one in (worker, *worker.mates()):
                        one.leave = True
                else:
                    worker.departed = True
                    worker.ends(None, "SIGTERM")
            case "leave, and a trap":  # where those who stay may be a step behind
                world.trap = "exchange"
                for one in (worker, *worker.mates()):
                    one.leave = one.generation > 0
            case "break":
                for one in (worker, *worker.mates()):
                    one.breaks = True
            case "quit":
                worker.quits = True
            case "cannot save":
                worker.cannot_save = True


def drain(world: World, node: Node | None) -> None:
    if node is None or node.leaving:
        return
    node.leaving = True
    world.leaves(node)


def simulate(seed: int, replica_size: int = 1) -> World:
    chance = random.Random(f"plan {seed}")
    count = chance.choice([1, 1, 2, 3])
    nodes_min = chance.randrange(1, count + 1)
    judge = Judge()
    world = World(
        seed,
        {f"node{i}": replica_size * chance.randrange(1, 5 - count) for i in range(count)},
        shares=chance.choice([2, 3, 4, 8]),
        watch=judge,
        moved=judge.moved,
        nodes_min=nodes_min,
        nodes_max=3,
        met=chance.choice([1, count]),
        replica_size=replica_size,
        restarts_max=10**6,
        start_s=5.0,
        below_min_s=BELOW_MIN_S,
    )
    world.others = chance.random() < 0.1
    world.strands = chance.choice([0.0, 0.0, 0.5])
    kinds = [
        "kill",
        "kill",
        "two",
        "coordinator",
        "all",
        "trap",
        "trap",
        "trap",
        "stop",
        "raise",
        "leave",
        "leave, and a trap",
        "break",
        "quit",
        "cannot save",
    ]
    kinds += ["comes", "comes", "lost", "hub", "drain"] if count > 1 or chance.random() < 0.3 else []
    allowed = chance.sample(kinds, chance.randrange(1, len(kinds)))
    rate = chance.choice([0.001, 0.01, 0.05])
    for _ in range(chance.randrange(1500)):
        if world.over:
            break
        if chance.random() < rate:
            fault(world, chance, allowed)
        world.moment()
    most = PATIENCE * replica_size**2  # so many more take part in each moment's collective
    hubs, patience = world.hubs, world.moments + most
    while not world.over:
        if world.hubs > hubs:  # a hub that ended the run may be lost before all have heard so: the next one ends it
            hubs, patience = world.hubs, world.moments + most
        assert world.moments < patience, "somebody waits for ever"
        world.moment()
        if world.moments == patience - most // 2:
            world.now_s += 2 * BELOW_MIN_S  # those that wait for nodes give up
    judge_end(world)
    return world


def judge_end(world: World) -> None:
    failed = [over for over in world.verdicts if over["failed"]]
    for over in failed:
        reasons = ("lost", "nodes were here", "after the run had finished: hang", "told to leave, ended before")
        assert any(reason in over["why"] for reason in reasons), over["why"]
    if world.storage < STEPS and not failed:
        last = {(worker.node.name, worker.local_rank): worker for worker in world.every.values()}
        here = [worker for worker in last.values() if not worker.node.leaving and worker.node.admitted]
        willing = {id for _, id in world.leaving_in}
        went = [one for one in here if one.departed or one.id in willing or one.exit[1] == "SIGTERM"]
        gone = {(one.node.name, one.replica) for one in went}  # who goes takes its replica along
        unwilling = [one.id for one in here if (one.node.name, one.replica) not in gone]
        assert not unwilling, f"the run ended before its end, and nobody told {unwilling} to leave"


def test_views_are_agreed_on_and_runs_end_whatever_happens() -> None:
    """The hub is the one place whose mistakes no worker can make good."""
    generations: Counter[int] = Counter()
    for seed in seeds(2000, sample=250):
        try:
            generations[simulate(seed).hub.generation] += 1
        except Exception:
            print(f"simulate({seed})")
            raise
    assert max(generations) > 10


@pytest.mark.parametrize("size", [2, 3])
def test_replicas_of_several_workers_are_let_in_whole_and_runs_end_whatever_happens(size: int) -> None:
    generations: Counter[int] = Counter()
    for seed in seeds(1000, sample=120):
        try:
            generations[simulate(seed, size).hub.generation] += 1
        except Exception:
            print(f"simulate({seed}, {size})")
            raise
    assert max(generations) > 6


def test_a_hub_that_lets_in_incomplete_replicas_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the judge; or by the view itself, where its length gives it away."""
    for room in ("rules.next_view", "hub.workers"):
        monkeypatch.setattr(f"elastic.membership.{room}.whole", lambda workers, size: list(workers))
    with pytest.raises((AssertionError, ValueError), match=r"incomplete replica|in replicas of 2"):
        [simulate(seed, 2) for seed in range(100)]


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(100056, id="the run ends"),
        pytest.param(100419, id="it is told to leave, and cannot save"),
        pytest.param(101717, id="it is told to leave"),
    ],
)
def test_one_that_was_asked_to_save_while_the_run_waits_is_asked_again_before_it_goes(seed: int) -> None:
    """One that could not says nothing, and what it holds may be nowhere else."""
    asked: list[tuple[str, bool]] = []
    judge = Judge.judge_save

    def noted(self: Judge, world: World, id: str, *, waits: bool) -> None:
        asked.append((id, waits))
        judge(self, world, id, waits=waits)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Judge, "judge_save", noted)
        simulate(seed)
    assert [waits for _, waits in asked] == [True, False]
    assert len({id for id, _ in asked}) == 1


def quietly(seed: int, workers: int) -> World:
    judge = Judge()
    return World(seed, {"node0": workers}, watch=judge, moved=judge.moved)


def finish(world: World) -> None:
    hubs, patience = world.hubs, world.moments + PATIENCE
    while not world.over:
        if world.hubs > hubs:  # a hub that ended the run may be lost before all have heard so: the next one ends it
            hubs, patience = world.hubs, world.moments + PATIENCE
        assert world.moments < patience, "somebody waits for ever"
        world.moment()


def test_a_bug_ends_the_run_and_the_farthest_survivor_saves() -> None:
    for seed in range(100):
        world = quietly(seed, 1 + seed % 4)
        world.bug_at = seed % STEPS
        finish(world)
        [over] = world.verdicts
        assert over["failed"], seed
        assert f"the same failure twice at step {world.bug_at}: Error0" in over["why"], seed


def test_when_all_are_told_to_leave_everything_is_saved_first_or_the_run_has_failed() -> None:
    """Whoever is killed, or cannot save: the coordinator as it begins to, one that the others have left it all to."""
    for seed in seeds(600, sample=150):
        world = quietly(seed, 1 + seed % 4)
        chance = random.Random(seed)
        for _ in range(chance.randrange(400)):
            world.moment()
        drain(world, world.nodes["node0"])
        rate, killed = chance.choice([0.0, 0.005, 0.02]), 0
        allowed = ["kill", "coordinator", "trap", "cannot save"]
        while world.nodes and not world.over:
            world.moment()
            if chance.random() < rate and len([one for one in world.workers() if one.alive]) > 1:
                fault(world, chance, allowed)
                killed += 1
            assert world.moments < PATIENCE, seed
        in_order = [worker for worker in world.every.values() if worker.exit == (0, None)]
        newest = max((worker.step for worker in world.every.values()), default=0)
        assert killed or world.storage == max(newest, 0), seed
        if world.storage < (max(worker.step for worker in in_order) if in_order else newest):
            assert all(over["failed"] for over in world.verdicts), seed
