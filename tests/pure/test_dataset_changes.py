"""What a script does to its data set while loader processes hold a copy of it is noticed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from elastic.data.dataset_changes import DatasetChanges

LONG = 5000  # elements, of which torch prints the first and the last


class Curriculum:
    def __len__(self) -> int:
        return 1

    def __init__(self) -> None:
        self.hardness = 1.0
        self.words = ["a", "b"]
        self.pair = (torch.zeros(LONG), torch.zeros(LONG))
        self.named = {"x": torch.zeros(LONG), "y": 3}
        self.tensor = torch.zeros(LONG)
        self.inner = Inner()


class Inner:
    def __init__(self) -> None:
        self.transform = None


def in_the_middle(tensor: torch.Tensor) -> torch.Tensor:
    return torch.cat([tensor[: LONG // 2], torch.ones(1), tensor[LONG // 2 + 1 :]])


CHANGES: dict[str, Callable[[Any], object]] = {
    "a number": lambda data: setattr(data, "hardness", 2.0),
    "a list": lambda data: data.words.append("c"),
    "a new one": lambda data: setattr(data, "step", 1),
    "one that goes": lambda data: delattr(data, "words"),
    "a tensor in place": lambda data: data.tensor.add_(1),
    "another tensor": lambda data: setattr(data, "tensor", data.tensor + 1),
    "a tuple's tensor in place": lambda data: data.pair[1].add_(1),
    "another tuple": lambda data: setattr(data, "pair", tuple(map(in_the_middle, data.pair))),
    "a dict's tensor in place": lambda data: data.named["x"].add_(1),
    "a dict's other entry": lambda data: data.named.update(y=4),
    "a transform": lambda data: setattr(data.inner, "transform", len),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_is_noticed(change: Callable[[Any], object]) -> None:
    data = Curriculum()
    changes = DatasetChanges(data)
    assert not changes.any()
    change(data)
    assert changes.any()


def test_what_is_set_to_the_same_is_no_change() -> None:
    data = Curriculum()
    changes = DatasetChanges(data)
    data.hardness = 1.0
    data.words = ["a", "b"]
    assert not changes.any()


def test_what_training_moves_in_a_model_is_no_change() -> None:
    """A collator may hold the model: loader processes would be forked anew for every batch."""
    data: Any = Curriculum()
    data.model = torch.nn.BatchNorm1d(3)
    changes = DatasetChanges(data)
    data.model(torch.randn(4, 3))
    with torch.no_grad():
        data.model.weight.mul_(2)
    assert not changes.any()
