"""Which steps of a script's workers are in its result, by the weights with which it went on after each restart. Pure.

    worlds, one after the other  ->  each begins with weights that an earlier step left, or with the first ones
      ->  what came after that step is not in the result: it was done in vain

So nothing has to be known of checkpoints, and no script can tell otherwise than it did.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

Weights = tuple[int, int]


@dataclass
class Step:
    """One step of all workers of a world; t: when its last worker had done it; read: by data set."""

    t: float
    weights: Weights
    read: dict[str, list[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class World:
    """The workers that started together, and what they did; begins: with these weights, None: they came to no step."""

    size: int
    t: float
    begins: Weights | None
    steps: Sequence[Step]


@dataclass(frozen=True)
class Restart:
    """From the last step of one world on.

    kept      so many steps of the result were done by then
    redone    and so many were done once more
    after_s   until the next step; beyond_s: until the first one that had not been done before; None: none was
    size      of the world that follows
    """

    kept: int
    redone: int
    after_s: float | None
    beyond_s: float | None
    size: int


@dataclass(frozen=True)
class Lineage:
    """The steps that are in the result, in order, and how they came to be.

    astray  worlds that began with weights that no step had left
    """

    steps: Sequence[Step]
    restarts: Sequence[Restart]
    astray: int

    def read(self) -> dict[str, Counter[int]]:
        """Return how often each example of each data set was trained on."""
        found: dict[str, Counter[int]] = {}
        for step in self.steps:
            for data, indices in step.read.items():
                found.setdefault(data, Counter()).update(indices)
        return found


def worlds(processes: Iterable[Sequence[dict[str, Any]]]) -> list[World]:
    """Return the worlds of these processes, by their notes: a rank that comes again, or a new size, is of a new one."""
    found: list[list[Sequence[dict[str, Any]]]] = []
    for notes in sorted(processes, key=lambda one: one[0]["t"]):
        who = notes[0]
        if not found or found[-1][0][0]["world_size"] != who["world_size"]:
            found.append([])
        if any(other[0]["rank"] == who["rank"] for other in found[-1]):
            found.append([])
        found[-1].append(notes)
    return [_world(members) for members in found]


def _world(members: list[Sequence[dict[str, Any]]]) -> World:
    by_rank = sorted(members, key=lambda notes: notes[0]["rank"])
    begins = [note["begins"] for notes in by_rank for note in notes if "begins" in note]
    steps = [[note for note in notes if "step" in note] for notes in by_rank]
    done = []
    for at in range(max(map(len, steps))):  # of one that was killed the last is missing
        there = [notes[at] for notes in steps if at < len(notes)]
        read: dict[str, list[int]] = {}
        for note in there:
            for data, indices in note["read"].items():
                read.setdefault(data, []).extend(indices)
        done.append(Step(max(note["t"] for note in there), _sum([note["step"] for note in there]), read))
    return World(by_rank[0][0]["world_size"], min(n[0]["t"] for n in members), _sum(begins) if begins else None, done)


def _sum(weights: list[list[int]]) -> Weights:
    """Return the weights of a world: whole ones are alike on all workers, of others each has a part."""
    return weights[0][0], sum(cut for _, cut in weights)


def lineage(found: Sequence[World]) -> Lineage:
    """Return which steps of these worlds are in the result of the last one."""
    trained = [world for world in found if world.begins is not None]
    steps: list[Step] = []
    restarts: list[Restart] = []
    astray = 0
    for world in trained:
        known = [trained[0].begins, *(step.weights for step in steps)]
        if world.begins in known:
            at = len(known) - 1 - known[::-1].index(world.begins)
        else:
            at, astray = len(steps), astray + 1
        if steps:
            times = [step.t - steps[-1].t for step in world.steps]
            redone = len(steps) - at
            beyond_s = times[redone] if redone < len(times) else None
            restarts.append(Restart(at, redone, times[0] if times else None, beyond_s, world.size))
        steps = [*steps[:at], *world.steps]
    return Lineage(steps, restarts, astray)


def lost_and_repeated(undisturbed: Counter[int], disturbed: Counter[int]) -> tuple[int, int]:
    """Return how many examples were trained on less, and more, often than without faults."""
    return (undisturbed - disturbed).total(), (disturbed - undisturbed).total()
