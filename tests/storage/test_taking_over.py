"""A claim is taken from a holder that lives after all: each request of one before each request of the other.

Whatever was reported as committed is part of the run, and one of the two goes on: also where the newcomer dies at any
request, or finds that it has to give up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch

from elastic_checkpoint import Checkpointer, ClaimLost, RunMovedOn
from elastic_checkpoint.runs.history import read_history
from elastic_checkpoint.runs.liveness import LivenessServer
from elastic_checkpoint.storage import Buffer, Storage, open_storage
from tests.storage.cut import PowerCut

NEVER = 10**9


class Order:
    """Lets the newcomer do some requests, then the holder some, then the newcomer the rest, then the holder."""

    def __init__(self, newcomers: int, holders: int) -> None:
        self._left = [("new", newcomers), ("old", holders), ("new", NEVER), ("old", NEVER)]
        self._changed = threading.Condition()

    def take(self, actor: str) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self._next() == actor, timeout=60), f"{actor} never had its turn"
            self._left[0] = actor, self._left[0][1] - 1
            self._changed.notify_all()

    def leave(self, actor: str) -> None:
        with self._changed:
            self._left = [turn for turn in self._left if turn[0] != actor]
            self._changed.notify_all()

    def _next(self) -> str:
        while self._left and not self._left[0][1]:
            del self._left[0]
        return self._left[0][0] if self._left else ""


class Ordered:
    """`Storage` of one actor, which dies at the request after `lives`."""

    def __init__(self, inner: Storage, order: Order | None, actor: str, lives: int = NEVER) -> None:
        self.inner, self.order, self.actor, self.lives = inner, order, actor, lives
        self.done: list[str] = []

    @property
    def url(self) -> str:
        return self.inner.url

    def put_new(self, key: str, data: Buffer) -> None:
        self._ask(key)
        self.inner.put_new(key, data)

    def put(self, key: str, data: Buffer) -> None:
        self._ask(key)
        self.inner.put(key, data)

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        self._ask(key)
        return self.inner.get(key, start, length)

    def list(self, prefix: str) -> dict[str, int]:
        self._ask(prefix)
        return self.inner.list(prefix)

    def size(self, key: str) -> int:
        self._ask(key)
        return self.inner.size(key)

    def delete(self, key: str) -> None:
        self._ask(key)
        self.inner.delete(key)

    def tidy(self, older_than_s: float) -> tuple[str, ...]:
        self._ask("")
        return ()

    def exclusive(self) -> bool:
        return True

    def close(self) -> None:
        """The storage is shared."""

    def _ask(self, key: str) -> None:
        if len(self.done) >= self.lives:
            raise PowerCut
        self.done.append(key)
        if self.order is not None:
            self.order.take(self.actor)


def state(by: str) -> dict[str, Any]:
    return {"by": by, "w": torch.zeros(2)}


class Duel:
    """One order of events. `reported`: what the two were told is committed."""

    def __init__(self, url: str, *, loads: bool, newcomers: int, holders: int, dies: bool) -> None:
        self._url, self.storage = url, open_storage(url)
        self.order = Order(newcomers, holders)
        self.reported: list[str] = []
        self.ends: dict[str, str] = {}
        self._servers = {name: LivenessServer(nonce=name * 8, job=None) for name in ("old", "new")}
        self.old = self.checkpointer("old", Ordered(self.storage, None, "old"))
        self.reported.append(self.old.save(1, state("old")).name)
        self.requests = Ordered(self.storage, self.order, "new", newcomers if dies else NEVER)
        self.new = self.checkpointer("new", self.requests)
        self._loads = loads

    def play(self) -> None:
        ordered = Ordered(self.storage, self.order, "old")
        old = self.checkpointer("old", ordered)
        old.adopt(self.old.claim())
        threads = [
            threading.Thread(target=self._act, args=("old", lambda: self._save(old, 2, "old"))),
            threading.Thread(target=self._act, args=("new", self.take_over)),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        ordered.order = self.requests.order = None
        for name, runs, step in (("old", old, 3), ("new", self.new, 13)):  # and both try to go on
            if self.ends[name] in ("", "ClaimLost"):
                self._act(name, lambda name=name, runs=runs, step=step: self._save(runs, step, name))  # type: ignore[misc]

    def close(self) -> None:
        for liveness in self._servers.values():
            liveness.close()
        fsspec.filesystem("memory").rm(self._url.removeprefix("memory:/"), recursive=True)  # each looks through all

    def checkpointer(self, name: str, storage: Any) -> Checkpointer:
        liveness = self._servers[name]
        answers = (name * 8, liveness.endpoint())
        return Checkpointer(storage, keep=9, take_over=True, answers=answers, log=lambda line: None)

    def take_over(self) -> None:
        if self._loads:
            self.new.load(state("new"))
        else:
            self.new.claim()
        self._save(self.new, 12, "new")

    def _save(self, runs: Checkpointer, step: int, by: str) -> None:
        self.reported.append(runs.save(step, state(by)).name)

    def _act(self, name: str, act: Callable[[], None]) -> None:
        self.ends[name] = ""
        try:
            act()
        except (ClaimLost, RunMovedOn, PowerCut) as end:
            self.ends[name] = type(end).__name__
        except BaseException as error:
            self.ends[name] = repr(error)
        if self.ends[name] not in ("", "ClaimLost"):
            self._servers[name].close()  # its process ends
        self.order.leave(name)


@pytest.mark.nightly(sample=2)
@pytest.mark.parametrize("dies", [False, True], ids=["it goes on", "it dies"])
@pytest.mark.parametrize("loads", [False, True], ids=["claims first", "loads first"])
def test_nothing_reported_is_lost_and_one_of_the_two_goes_on(loads: bool, dies: bool, tmp_path: Path) -> None:
    """The holder was only silent for a while, or a person insisted: it lives, and is in the middle of a save."""
    newcomers, holders = _requests(f"memory://{tmp_path.name}-{loads}-{dies}", loads)
    ends = set()
    for first in newcomers:
        for second in holders:
            url = f"memory://{tmp_path.name}-{loads}-{dies}-{first}-{second}"
            duel = Duel(url, loads=loads, newcomers=first, holders=second, dies=dies)
            duel.play()
            inside = [str(id) for id in read_history(duel.storage, lambda line: None).lineage]
            duel.close()
            said = f"newcomer {first}, holder {second}: {duel.ends}, reported {duel.reported}, the run has {inside}"
            assert set(duel.reported) <= set(inside), said
            assert set(duel.ends.values()) <= {"", "ClaimLost", "RunMovedOn", "PowerCut"}, said
            if ".s000000012-" in inside[0] and duel.ends["new"] == "PowerCut":  # it died, and its commit counts
                assert duel.ends["old"] == "ClaimLost", said
            else:
                assert inside[0] == duel.reported[-1], said
                assert "" in duel.ends.values(), f"both stopped: {said}"
            ends.add((duel.ends["old"], duel.ends["new"]))
    assert ("ClaimLost", "PowerCut" if dies else "") in ends
    assert (("", "PowerCut") in ends) == dies
    assert (("", "RunMovedOn") in ends) == (loads and not dies)


def _requests(url: str, loads: bool) -> tuple[range, list[int]]:
    """How many requests the newcomer makes before the holder, and the holder before the newcomer goes on: all that can
    matter. Before it creates its claim the newcomer only reads, and before its first look at the claims the holder only
    writes what nobody sees; after that, only its commit is seen."""
    duel = Duel(f"{url}-count", loads=loads, newcomers=NEVER, holders=NEVER, dies=False)
    counted = Ordered(duel.storage, None, "old")
    old = duel.checkpointer("old", counted)
    old.adopt(duel.old.claim())
    old.save(2, state("old"))
    duel.requests.order = None
    duel.take_over()
    duel.close()
    looks = counted.done.index("claims")
    commits = next(index for index, key in enumerate(counted.done) if key.startswith("commits/"))
    creates = duel.requests.done.index("claims/00000002.json")
    return range(creates - 1, len(duel.requests.done) + 1), [
        looks,
        commits,
        commits + 1,
        commits + 2,
        len(counted.done),
    ]
