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
    def __init__(self, **held: Any) -> None:
        vars(self).update(held)

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("nothing is read")


class Drawn:
    """As a script draws it that gives no seed."""

    def __init__(self) -> None:
        self.numbers = np.random.default_rng().permutation(COUNT)


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
    "in another layout": (
        lambda: Holding(x=torch.arange(12).view(3, 4)),
        lambda: Holding(x=torch.arange(12).view(3, 4).t().contiguous().t()),
    ),
    "a constant and what reads": (lambda: Holding(root="/a", open=None), lambda: Holding(root="/b", open=lambda: 1)),
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
    "objects": (
        lambda: Holding(names=np.array(NAMES, dtype=object)),
        lambda: Holding(names=np.array(NAMES[::-1], dtype=object)),
    ),
    "columns": (
        lambda: Holding(columns={"x": NUMBERS, "y": [1, 2]}),
        lambda: Holding(columns={"x": NUMBERS, "y": [2, 1]}),
    ),
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
    assert None not in found
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
        range(3),
        {"a"},
    ],
)
def test_whatever_a_data_set_holds_is_taken(held: Any) -> None:
    assert content(Holding(held=held)) == content(Holding(held=held))


def test_what_holds_itself_comes_to_an_end() -> None:
    held = Holding(numbers=[1])
    held.__dict__["itself"] = [held, {"again": held}]
    assert content(held) is not None


def test_models_are_none_of_the_data() -> None:
    """Features may be made by one; the run's own may hang there."""
    assert content(Holding(model=torch.nn.BatchNorm1d(3), parts=[torch.nn.Linear(2, 2)])) is None


def test_a_file_is_not_read(tmp_path: Path) -> None:
    NUMBERS.tofile(tmp_path / "numbers")
    mapped = np.memmap(tmp_path / "numbers", dtype=NUMBERS.dtype)
    assert content(Holding(mapped=mapped)) is None


def test_a_tensor_can_be_resized_afterwards() -> None:
    held = Holding(x=torch.zeros(3))
    content(held)
    vars(held)["x"].resize_(5)
