"""A holder that does not know yet that it was replaced, its successor, and a reader: every order of their operations.

Each storage operation is one turn; a seeded scheduler decides whose turn is next, so a failure replays from its seed.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch

from elastic_checkpoint import Checkpointer, ClaimLost
from elastic_checkpoint.storage import Buffer, Storage, open_storage
from tests.storage.cut import PowerCut

T = TypeVar("T")
STEPS = 6


class Turns:
    """Lets one actor at a time do one operation. An actor may be given fewer operations than it needs: it then dies.

    Actors with equal weights take turns evenly; a random weight for each lets some seeds stall one for a long time.
    """

    def __init__(self, seed: int, actors: list[str]) -> None:
        self._random = random.Random(seed)
        self._weights = {actor: self._random.choice([1, 1, 5, 25]) for actor in actors}
        self._changed = threading.Condition()
        self._turn = self._draw()

    def take(self, actor: str, act: Callable[[], T]) -> T:
        with self._changed:
            assert self._changed.wait_for(lambda: self._turn == actor, timeout=60), f"{actor} never had its turn"
            try:
                return act()
            finally:
                self._turn = self._draw()
                self._changed.notify_all()

    def leave(self, actor: str) -> None:
        with self._changed:
            del self._weights[actor]
            self._turn = self._draw()
            self._changed.notify_all()

    def _draw(self) -> str:
        names = sorted(self._weights)
        return self._random.choices(names, [self._weights[name] for name in names])[0] if names else ""


class InTurns:
    """`Storage` of one actor, which loses power after `operations` of them."""

    def __init__(self, inner: Storage, turns: Turns, actor: str, operations: int = 10**9) -> None:
        self.inner, self.visits, self.actor, self.left = inner, turns, actor, operations

    @property
    def url(self) -> str:
        return self.inner.url

    def put_new(self, key: str, data: Buffer) -> None:
        self._do(lambda: self.inner.put_new(key, data))

    def put(self, key: str, data: Buffer) -> None:
        self._do(lambda: self.inner.put(key, data))

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        return self._do(lambda: self.inner.get(key, start, length))

    def list(self, prefix: str) -> dict[str, int]:
        return self._do(lambda: self.inner.list(prefix))

    def size(self, key: str) -> int:
        return self._do(lambda: self.inner.size(key))

    def delete(self, key: str) -> None:
        self._do(lambda: self.inner.delete(key))

    def tidy(self, older_than_s: float) -> tuple[str, ...]:
        return self._do(lambda: self.inner.tidy(older_than_s))

    def exclusive(self) -> bool:
        return True

    def close(self) -> None:
        """The storage is shared."""

    def _do(self, act: Callable[[], T]) -> T:
        self.left -= 1
        if self.left < 0:
            raise PowerCut
        return self.visits.take(self.actor, act)


def state(step: int) -> dict[str, Any]:
    return {"at": step, "w": torch.full((3,), float(step))}


@pytest.mark.nightly(sample=1)
@pytest.mark.parametrize("first_seed", range(0, 120, 20))
def test_whatever_the_order_no_work_of_the_newest_claim_is_lost_and_no_zombie_is_chosen(
    first_seed: int, tmp_path: Path, checkpointer: Callable[..., Checkpointer]
) -> None:
    for seed in range(first_seed, first_seed + 20):
        _play(seed, f"memory://{tmp_path.name}-{seed}", checkpointer)


def _play(seed: int, url: str, checkpointer: Callable[..., Checkpointer]) -> None:
    storage = open_storage(url)
    turns = Turns(seed, ["old", "new", "reader"])
    dies_after = random.Random(seed).choice([10**9, random.Random(seed).randrange(1, 60)])
    made: dict[str, list[int]] = {"old": [], "new": []}
    resumed: list[int] = []
    read: list[int] = []
    problems: list[BaseException] = []

    with checkpointer(storage, keep=2) as setup:  # the old holder's claim, made before the scheduler starts
        setup.save(1, state(1))
        claim = setup.claim()
    old = checkpointer(InTurns(storage, turns, "old"), keep=2)
    old.adopt(claim)

    def run_old() -> None:
        for step in range(2, 2 + STEPS):
            try:
                old.save(step, state(step))
            except ClaimLost:
                return
            made["old"].append(step)

    def run_new() -> None:
        new = checkpointer(InTurns(storage, turns, "new", dies_after), keep=2, take_over=True, grace_s=0)
        named = new.claim().resumed_from
        found = new.read()
        assert named is not None
        assert found.commit.id == named, "what the claim names is there, and is what is read"
        resumed.append(found.step)
        for step in range(found.step + 1, found.step + 1 + STEPS):
            new.save(step, state(step))
            made["new"].append(step)

    def run_reader() -> None:
        reader = checkpointer(InTurns(storage, turns, "reader"))
        for _ in range(STEPS):
            found = reader.read()
            assert found.tree["at"] == found.step
            assert found.tree["w"].tolist() == [float(found.step)] * 3
            read.append(found.step)

    def actor(name: str, run: Callable[[], None]) -> None:
        try:
            run()
        except PowerCut:
            pass
        except BaseException as error:
            problems.append(error)
        finally:
            turns.leave(name)

    threads = [
        threading.Thread(target=actor, args=(name, run))
        for name, run in (("old", run_old), ("new", run_new), ("reader", run_reader))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert not problems, f"seed {seed}: {problems[0]!r}" if problems else ""
    assert len(read) == STEPS

    last = checkpointer(storage, take_over=True)
    last.claim()
    found = last.read()
    said = f"seed {seed}: old {made['old']}, resumed {resumed}, new {made['new']}, last {found.commit.name}"
    assert len([commit for commit in last.list() if commit.in_lineage]) >= 2 or not made["new"], said
    if made["new"]:
        assert found.step >= made["new"][-1], said
        assert found.commit.claim > claim.number, said
    elif resumed:
        assert found.step >= resumed[0], said
    assert all(one.ok for one in last.verify() if one.in_lineage), said
