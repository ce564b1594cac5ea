"""Data sets that hold other examples, or the same ones in another order, are told apart without a read of any."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset, random_split

from elastic.data.content import content

COUNT = 5000  # more than are looked at


class Holding:
    """A data set of the script's, of as many examples as the first of these has, or of `length`."""

    def __init__(self, length: int | None = None, **held: Any) -> None:
        self._length = len(next(iter(held.values()))) if length is None else length
        vars(self).update(held)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("nothing is read")


class Drawn:
    """As a script draws it that gives no seed."""

    def __init__(self) -> None:
        self.numbers = np.random.default_rng().permutation(COUNT)

    def __len__(self) -> int:
        return COUNT


def pairs() -> TensorDataset:
    made = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(COUNT, 2, 80, generator=made), torch.arange(COUNT) % 10)


def first(dataset: Dataset[Any]) -> Any:
    return random_split(dataset, [0.5, 0.5])[0]


def shuffled(values: list[Any]) -> list[Any]:
    return random.sample(values, len(values))


NAMES = [f"/data/{number}.png" for number in range(COUNT)]
NUMBERS = np.arange(COUNT)
ALIKE = {
    "tensors": (pairs, pairs),
    "elsewhere": (lambda: Holding(names=NAMES), lambda: Holding(names=[f"/mnt/b{name}" for name in NAMES])),
    "indices": (lambda: Subset(pairs(), range(7)), lambda: Subset(pairs(), range(7))),
    "as numpy has it": (lambda: Holding(names=NAMES), lambda: Holding(names=[np.str_(name) for name in NAMES])),
    "elsewhere, in an array": (
        lambda: Holding(names=np.array(NAMES)),
        lambda: Holding(names=np.array([f"/mnt/b{name}" for name in NAMES])),
    ),
    "signed": (
        lambda: Holding(urls=["https://b/1.jpg?sig=1", "https://b/2.jpg?sig=2"]),
        lambda: Holding(urls=["https://b/1.jpg?sig=7", "https://b/2.jpg?sig=8"]),
    ),
    "a constant and what reads": (
        lambda: Holding(3, root="/a", open=None),
        lambda: Holding(3, root="/b", open=lambda: 1),
    ),
    "a cache": (
        lambda: Holding(3, cache=np.zeros((3, 8)), have=[None] * 3, last=torch.zeros(3)),
        lambda: Holding(3, cache=np.full((3, 8), 7.0), have=[None, 1, None], last=torch.ones(3)),
    ),
    "what was counted": (lambda: Holding(96, counts=None), lambda: Holding(96, counts=torch.tensor([30, 40, 26]))),
    "arguments": (lambda: Holding(9, steps=[2, 4]), lambda: Holding(9, steps=[2, 4, 6])),
    "scratch": (
        lambda: Holding(9, offsets={"/tmp/a/x": np.arange(9)}),
        lambda: Holding(9, offsets={"/tmp/b/x": np.arange(9)}),
    ),
}
APART = {
    "rows": (pairs, lambda: TensorDataset(pairs().tensors[0].flip(0), pairs().tensors[1])),
    "classes": (pairs, lambda: TensorDataset(pairs().tensors[0], pairs().tensors[1].flip(0))),
    "a split": (lambda: first(pairs()), lambda: first(pairs())),
    "numbers": (Drawn, Drawn),
    "a listing": (lambda: Holding(names=NAMES), lambda: Holding(names=shuffled(NAMES))),
    "files and classes": (
        lambda: Holding(samples=[*zip(NAMES, NUMBERS.tolist(), strict=True)]),
        lambda: Holding(samples=[*zip(NAMES, NUMBERS[::-1].tolist(), strict=True)]),
    ),
    "tokens": (lambda: Holding(tokens=[[1, 2], [3]]), lambda: Holding(tokens=[[3], [1, 2]])),
    "names in an array": (lambda: Holding(names=np.array(NAMES)), lambda: Holding(names=np.array(NAMES[::-1]))),
    "labels": (lambda: Holding(y=torch.arange(9)), lambda: Holding(y=torch.arange(9).flip(0))),
    "parts": (
        lambda: ConcatDataset([Subset(pairs(), [1]), Subset(pairs(), [2])]),
        lambda: ConcatDataset([Subset(pairs(), [2]), Subset(pairs(), [1])]),
    ),
    "the last one": (lambda: Holding(x=NUMBERS), lambda: Holding(x=np.append(NUMBERS[:-1], 7))),
    "another length": (lambda: Holding(x=NUMBERS), lambda: Holding(x=NUMBERS[:-1])),
    "where they lie": (lambda: Subset(pairs(), range(7)), lambda: Subset(pairs(), range(1, 8))),
}


@pytest.mark.parametrize(("one", "other"), ALIKE.values(), ids=ALIKE)
def test_the_same_data_is_the_same_wherever_it_is_made(one: Any, other: Any) -> None:
    assert content(one()) == content(other())


@pytest.mark.parametrize(("one", "other"), APART.values(), ids=APART)
def test_other_data_is_told_apart(one: Any, other: Any) -> None:
    found = content(one()), content(other())
    assert {} not in found
    assert found[0] != found[1]


@pytest.mark.parametrize(
    "held",
    [
        np.zeros((0, 3)),
        torch.zeros(3, 0),
        torch.zeros(0, 3),
        torch.zeros(()),
        torch.zeros(3, device="meta"),
        torch.zeros(3, 4).to_sparse(),
        torch.zeros(3, 4, dtype=torch.bfloat16).t(),
        torch.zeros(3, 1).expand(3, 2000),
        np.array([]),
        np.array(None),
        np.zeros(2, dtype=[("a", "i4")]),
        np.array(["2026-11-27"], dtype="datetime64[D]"),
        ["\udcff", float("nan")],
        [object()],
        [[], ()],
        [[[[1]]]],
        {1: 2},
        [10**5000, 1, 2],
        range(3),
        {"a"},
    ],
)
def test_whatever_a_data_set_holds_is_taken(held: Any) -> None:
    assert content(Holding(3, held=held)) == content(Holding(3, held=held))


def test_what_holds_itself_comes_to_an_end() -> None:
    held = Holding(numbers=[1])
    held.__dict__["dataset"] = held
    held.__dict__["datasets"] = [held, held]
    assert content(held)


class Rude(Holding):
    def __len__(self) -> int:
        raise TypeError("it has none")


def test_a_data_set_without_a_length_says_nothing() -> None:
    assert content(Rude(numbers=[1])) == {}


def test_a_file_is_not_read(tmp_path: Path) -> None:
    NUMBERS.tofile(tmp_path / "numbers")
    mapped = np.memmap(tmp_path / "numbers", dtype=NUMBERS.dtype)
    assert content(Holding(mapped=mapped)) == {}


def test_a_tensor_can_be_resized_afterwards() -> None:
    held = Holding(x=torch.arange(3))
    content(held)
    vars(held)["x"].resize_(5)
