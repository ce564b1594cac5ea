"""Generators that a dataset or its transforms keep: an example's numbers are its own, whoever reads it, and when."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset

from elastic.data.data_plan import Examples
from elastic.data.loader import read_once

MADE: dict[str, tuple[Callable[[], Any], Callable[[Any], float]]] = {
    "numpy's": (lambda: np.random.default_rng(0), lambda one: one.random()),
    "numpy's, by another algorithm": (lambda: np.random.Generator(np.random.Philox(0)), lambda one: one.random()),
    "numpy's legacy one": (lambda: np.random.RandomState(0), lambda one: one.rand()),
    "Python's": (lambda: random.Random(0), lambda one: one.random()),
    "torch's": (lambda: torch.Generator().manual_seed(0), lambda one: torch.rand((), generator=one).item()),
}


class Jitter:
    """A transform, as those of albumentations keep a generator each."""

    def __init__(self, generator: Any, draw: Callable[[Any], float]) -> None:
        self.generator, self.draw = generator, draw

    def __call__(self, value: float) -> float:
        return value + self.draw(self.generator)


class Drawn:
    def __init__(self, *transforms: Jitter) -> None:
        self.transforms = list(transforms)
        self.itself = self  # what goes in circles is walked once

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> list[float]:
        return [transform(0.0) for transform in self.transforms]


def read(dataset: Any, *indices: int, epoch: int = 0) -> list[list[float]]:
    turns = np.full(len(indices), epoch, dtype=np.int64)
    request = Examples(indices=np.array(indices, dtype=np.int64), visits=turns)
    found: list[list[float]] = read_once(dataset, request, seed=3, collate_fn=list, to=torch.device("cpu"))
    return found


@pytest.mark.parametrize("kind", MADE)
def test_what_an_example_draws_depends_on_nothing_but_itself(kind: str) -> None:
    """It depended on what its process had read before, and so on the number of workers."""
    make, draw = MADE[kind]
    together = read(Drawn(Jitter(make(), draw)), 4, 5, 6)
    again = read(Drawn(Jitter(make(), draw)), 6, 4)

    assert again == [together[2], together[0]]
    assert len({one for (one,) in together}) == 3
    assert read(Drawn(Jitter(make(), draw)), 4, epoch=1) != together[:1]


@pytest.mark.parametrize("wrap", [lambda data: Subset(data, range(20)), lambda data: ConcatDataset([data])])
def test_they_are_found_behind_what_holds_a_dataset(wrap: Callable[[Any], Any]) -> None:
    data = wrap(Drawn(Jitter(*_new("Python's"))))
    assert read(data, 7, 8)[1:] == read(data, 8)


@pytest.mark.parametrize("kind", MADE)
def test_who_shares_a_generator_finds_it_where_it_was(kind: str) -> None:
    """The script may draw from it as well: what it draws must not depend on which examples were read here."""
    make, draw = MADE[kind]
    shared, alone = make(), make()
    draw(shared), draw(alone)
    read(Drawn(Jitter(shared, draw)), 4, 5)

    assert draw(shared) == draw(alone)


def _new(kind: str) -> tuple[Any, Callable[[Any], float]]:
    make, draw = MADE[kind]
    return make(), draw
