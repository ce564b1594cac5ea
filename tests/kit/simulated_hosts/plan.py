"""What happens to the hosts of a run, from one seed: some phases of faults, then all is healed.

`simulate(seed)` replays one, and `python -m tests.kit.simulated_hosts.plan SEED` prints what its sides did.
"""

from __future__ import annotations

import random
import sys
from functools import partial
from itertools import combinations

from tests.kit.simulated_hosts.world import BELOW_MIN_S, GOES_ON_S, REJOINS_S, World

STARTS_S = 60.0
NODES = "abcdefgh"
KINDS = (
    "split",
    "split, with resets",
    "isolate",
    "flap",
    "one way",
    "crash",
    "power",
    "freeze",
    "kill",
    "drain",
    "join",
    "slow storage",
    "no storage",
    "heal",
    "reset",
    "reset",
)
SPLITS = ("split", "split, with resets")
TRAPS = ("claim", "claim", "claimed", "view", "view_is_over", "entered", "hello", "moved_on", "witness", "ready", "put")


def simulate(seed: int) -> World:
    """Raises AssertionError, with what happened, where a side does what it may not, or nobody what somebody may."""
    chance = random.Random(f"plan {seed}")
    count = chance.choice([2, 3, 3, 4, 4, 5, 5])
    witness = chance.random() < 0.7
    nodes_min = chance.choice([1, 1, 1, 2])
    world = World(seed, NODES[:count], witness=witness, nodes_min=nodes_min)
    world.rejects = random.Random(f"rejects {seed}").random() < 0.5
    if chance.random() < 0.4:
        world.storage_delays_s = (0.05, chance.choice([1.0, 3.0]))
    try:
        _plays(world, chance)
    except AssertionError as failure:
        raise AssertionError(f"{failure}\n  seed {seed}\n{world.describe()}") from failure
    return world


def _plays(world: World, chance: random.Random) -> None:
    world.network.run(STARTS_S, ended=lambda: world.trained_s > 0)
    assert world.line, "the run has not begun"
    world.run(1.0 + chance.random())
    allowed = chance.sample(KINDS, chance.randrange(3, len(KINDS)))
    for _ in range(chance.randrange(1, 8)):
        for _ in range(chance.choice([1, 1, 2, 3, 6])):
            kind = chance.choice(allowed if chance.random() < 0.6 else SPLITS)
            if chance.random() < 0.4:
                world.trap = chance.choice(TRAPS), partial(_fault, world, chance, kind)
            else:
                _fault(world, chance, kind)
            world.run(chance.choice([0.0, 0.05, 0.3, 3.0]) * chance.random())
        if chance.random() < 0.2 and world.may_some_side_go_on():
            begun_s = world.network.now_s
            world.run(GOES_ON_S)
            # what was still possible then is judged, for a side may have ended since, and links may flap
            changed_s = max(world.storage_changed_s, world.network.cut_s)
            may = world.may_some_side_go_on() and not world.over and changed_s <= begun_s
            assert not may or world.trained_s > begun_s + GOES_ON_S - 5.0, "no side goes on, and one may"
        else:
            world.run(chance.choice([0.1, 1.0, 4.0, 8.0]) * (0.5 + chance.random()))
    _heals(world)


def _heals(world: World) -> None:
    world.notes("all is healed")
    world.trap = None
    world.network.heal(for_good=True)
    world.storage_fails(down=False)
    world.storage_delays_s = (0.02, 0.2)
    begun_s = world.network.now_s
    world.run(REJOINS_S)
    if all_train(world):
        return
    world.run(BELOW_MIN_S + REJOINS_S)
    living = world.living()
    assert not living or all_train(world), (
        f"{[agent.name for agent in living]} stand still {world.network.now_s - begun_s:.0f} s after all is healed"
    )


def all_train(world: World) -> bool:
    """In one view, now."""
    living = world.living()
    if not living or not world.line or world.network.now_s - world.trained_s > 2.0:
        return False
    return {agent.name for agent in living if not agent.leaving} <= world.line[-1].nodes


def _fault(world: World, chance: random.Random, kind: str) -> None:
    living = world.living()
    names = [agent.name for agent in living]
    world.notes(kind)
    if not living:
        return
    network = world.network
    match kind:
        case "split" | "split, with resets" if len(names) > 1:
            network.heal()
            side = set(chance.sample(names, chance.randrange(1, len(names))))
            world.notes(f"cut: {sorted(side)} from the others")
            across = [(one, other) for one, other in combinations(names, 2) if (one in side) != (other in side)]
            if kind != "split":
                network.resets_all(across)

            def cuts() -> None:
                for one, other in across:
                    network.cut(one, other, rejects=kind != "split" and world.rejects)

            network.after(0.0 if kind == "split" else 0.1, cuts)
        case "isolate" if len(names) > 1:
            alone = chance.choice(names)
            world.notes(f"cut: {alone} from all others")
            for other in names:
                if other != alone:
                    network.cut(alone, other)
        case "flap" if len(names) > 1:
            one, other = chance.sample(names, 2)
            _flaps(world, one, other, chance.randrange(2, 5), 1.0 + 4.0 * chance.random())
        case "one way" if len(names) > 1:
            one, other = chance.sample(names, 2)
            network.cut(one, other, both_ways=False)
        case "crash" | "power" if len(names) > 1:
            agent = chance.choice(living)
            world.notes(f"{agent.name} is lost")
            agent.ended = kind
            for worker in agent.workers.values():
                worker.alive = False
            agent.machine.crashes(silently=kind == "power")
        case "freeze":
            agent = chance.choice(living)
            seconds = chance.choice([0.5, 2.0, 5.0, 12.0]) * (0.5 + chance.random())
            world.notes(f"{agent.name} is frozen for {seconds:.1f} s")
            agent.machine.frozen_until_s = max(agent.machine.frozen_until_s, network.now_s + seconds)
        case "kill":
            if workers := world.workers():
                worker = chance.choice(workers)
                world.notes(f"{worker.id} is killed")
                worker.ends(None, "SIGKILL")
        case "drain" if len(names) > 1:
            agent = chance.choice(living)
            world.notes(f"{agent.name} is told to leave")
            if not agent.leaving:
                agent.drains()
        case "join":
            free = [name for name in NODES if name not in world.agents]
            if free:
                world.comes(free[0])
        case "slow storage":
            world.storage_delays_s = (0.05, chance.choice([1.0, 2.0, 6.0, 12.0]))
        case "no storage":
            world.storage_fails(down=True)
            seconds = chance.choice([1.0, 5.0, 20.0])
            network.after(seconds, lambda: world.storage_fails(down=False))
        case "heal":
            network.heal()
        case "reset":
            wires = [wire for agent in living for wire in agent.machine.wires]
            if wires:
                chance.choice(wires).resets()


def _flaps(world: World, one: str, other: str, times: int, period_s: float) -> None:
    if times == 0:
        return
    world.network.cut(one, other)

    def heals() -> None:
        world.network.mends(one, other)
        world.network.after(period_s, lambda: _flaps(world, one, other, times - 1, period_s))

    world.network.after(period_s, heals)


if __name__ == "__main__":
    print(simulate(int(sys.argv[1])).describe())
