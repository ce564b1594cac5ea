"""What tests of the loader share: datasets that can be watched, requests, and loaders that leave no process behind."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import select
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import torch

from elastic.data.loader import Loader, Request
from elastic.events.observer import Observer

_SETTLED_S = 10.0


class Augmented:
    """Every kind of randomness, as an image augmentation draws it."""

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.tensor([random.random(), np.random.rand(), torch.rand(()).item()], dtype=torch.float64), index


class Asked:
    """A dataset that answers with whatever a function makes of the index, in the process that reads."""

    def __init__(self, answer: Callable[[int], Any]) -> None:
        self.answer = answer

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> Any:
        return self.answer(index)


class Bomb:
    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> int:
        if index == 17:
            raise KeyError("picture-17.png")
        return index


class Gated:
    """A dataset of which some examples are read only when the test has opened them, and which notes every read."""

    def __init__(self, *closed: int) -> None:
        self.gates = {index: os.pipe() for index in closed}
        self.notes = os.pipe()

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> Any:
        os.write(self.notes[1], index.to_bytes(2, "big"))
        if index in self.gates:
            select.select([self.gates[index][0]], [], [])
        return index

    def open(self, index: int) -> None:
        os.write(self.gates[index][1], b"x")

    def wait_for_reads(self, count: int) -> list[int]:
        """The indices of the next `count` reads that begin."""
        noted = [os.read(self.notes[0], 2) for _ in range(count)]
        return [int.from_bytes(note, "big") for note in noted]

    def reads(self) -> Counter[int]:
        os.set_blocking(self.notes[0], False)
        noted: list[int] = []
        with contextlib.suppress(BlockingIOError):
            while True:
                noted += self.wait_for_reads(1)
        return Counter(noted)

    def __enter__(self) -> Gated:
        return self

    def __exit__(self, *_: object) -> None:
        for end in (*self.notes, *(end for gate in self.gates.values() for end in gate)):
            os.close(end)


def request(*indices: int, epoch: int = 0) -> Request:
    return Request(np.full(len(indices), epoch, dtype=np.int64), np.array(indices, dtype=np.int64))


def consecutive(count: int, size: int = 3, epoch: int = 0) -> Iterator[Request]:
    for first in range(0, count * size, size):
        yield request(*range(first, first + size), epoch=epoch)


@contextlib.contextmanager
def loader(dataset: Any, **options: Any) -> Iterator[Loader]:
    """A loader that is closed, and whose children are gone, whatever the test does."""
    made = Loader(dataset, **{"seed": 7, "observer": Observer(), **options})
    try:
        yield made
    finally:
        made.close()
        assert children() == []


_earlier: set[int] = set()


def forget_earlier_children() -> None:
    """multiprocessing's fork server, which other tests start, lives as long as this process. Call it before a test."""
    _earlier.clear()
    _earlier.update(child.pid for child in psutil.Process().children(recursive=True))


def children() -> list[int]:
    """The processes that this test has started."""
    return [child.pid for child in psutil.Process().children(recursive=True) if child.pid not in _earlier]


class Held(NamedTuple):
    """What this process has of its system for the loader processes that it has started."""

    mapped: int
    files: int
    threads: int
    shared_memory: int

    @classmethod
    def now(cls, started: list[int]) -> Held:
        """started: the processes"""
        gc.collect()
        owners = [os.getpid(), *started]
        shared_memory = sum(any(f"_{pid}_" in name for pid in owners) for name in os.listdir("/dev/shm"))
        here = psutil.Process()
        return cls(mapped_files(), here.num_fds(), here.num_threads(), shared_memory)

    def covers(self, later: Held) -> bool:
        """Whether nothing has come."""
        return all(after <= before for before, after in zip(self, later, strict=True))


def mapped_files() -> int:
    """torch's, in shared memory"""
    return Path("/proc/self/maps").read_text().count("/torch_")


def settles_at(before: Held, started: list[int]) -> None:
    """DataLoader closes a queue without waiting for the thread that feeds it, which is gone a little later."""
    deadline = time.monotonic() + _SETTLED_S
    while not before.covers(held := Held.now(started)):
        assert time.monotonic() < deadline, f"{held}, {_SETTLED_S:g} s after what had been {before}"
        time.sleep(0.01)


def read_all(made: Loader) -> list[Any]:
    loaded = []
    with contextlib.suppress(StopIteration):
        while True:
            loaded.append(made.next())
    return loaded


def names(made: Loader) -> list[list[int]]:
    return [loaded.indices.tolist() for loaded in read_all(made)]
