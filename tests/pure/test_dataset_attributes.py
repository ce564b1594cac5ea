"""Of a data set travels what the script has changed: no more than that, and nothing that reading changes by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, Subset

from elastic.data.dataset_changes import data_sets_and_transforms
from elastic.state.dataset_attributes import DatasetAttributes


class Images(Dataset[Any]):
    def __init__(self) -> None:
        self.scale, self.crop, self.sizes, self.words = 1.0, (8, 8), [1, 2], {"a": 1}
        self.epoch, self.training = None, True
        self.points, self.weights, self.files = torch.zeros(4), np.zeros(4), ["x"] * 100
        self.reads, self.last, self.log = 0, "", [0]

    def __getitem__(self, index: int) -> int:
        self.reads, self.last, self.opened = self.reads + 1, str(index), index
        self.log[0] = index
        return index


def of(data: Any) -> DatasetAttributes:
    attributes = DatasetAttributes(lambda: data_sets_and_transforms((data,)))
    attributes.begin_loop()
    return attributes


def given(state: dict[str, Any]) -> Images:
    """Another worker's, which the state came to."""
    data = Images()
    of(data).load_state_dict(state)
    return data


CHANGES: dict[str, Callable[[Images], Any]] = {
    "scale": lambda data: setattr(data, "scale", 2.0),
    "crop": lambda data: setattr(data, "crop", (4, 4)),
    "sizes": lambda data: data.sizes.append(3),
    "words": lambda data: data.words.update(b=2),
    "epoch": lambda data: setattr(data, "epoch", 3),
    "training": lambda data: setattr(data, "training", False),
    "added": lambda data: setattr(data, "added", "new"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_the_script_changes_comes_to_another_worker(name: str) -> None:
    data = Images()
    attributes = of(data)
    assert attributes.state_dict() == {}

    CHANGES[name](data)

    state = attributes.state_dict()
    assert state == {f"dataset:{name}": getattr(data, name)}
    assert attributes.now() == {name: repr(getattr(data, name))}
    assert getattr(given(state), name) == getattr(data, name)


def test_what_is_back_where_it_was_is_put_back_elsewhere() -> None:
    """A state without it says that it is as the script built it."""
    data = Images()
    attributes = of(data)
    data.scale = 2.0
    attributes.load_state_dict({})
    assert data.scale == 1.0


def test_data_itself_stays_where_it_is() -> None:
    data = Images()
    attributes = of(data)
    data.points, data.weights, data.files = torch.ones(4), np.ones(4), ["y"] * 100
    data.scale = torch.ones(())  # type: ignore[assignment]
    assert attributes.state_dict() == {}


def test_what_reading_changes_is_each_worker_s_own() -> None:
    data = Images()
    attributes = of(data)
    for index in range(3):
        with attributes:
            data[index]
    data.scale = 2.0
    assert attributes.state_dict() == {"dataset:scale": 2.0}

    attributes.load_state_dict({})
    assert (data.scale, data.reads, data.last, data.opened, data.log) == (1.0, 3, "2", 2, [2])


def test_data_sets_within_are_told_apart() -> None:
    data = Images()
    outer = Subset(data, range(2))
    attributes = of(outer)
    data.scale = 2.0
    assert attributes.state_dict() == {"dataset.1:scale": 2.0}
    assert attributes.now() == {"Images 1.scale": "2.0"}


class Jitter:
    def __init__(self) -> None:
        self.strength = 0.1


class Compose:
    def __init__(self) -> None:
        self.transforms = [nn.Dropout(0.1), Jitter(), str]


def test_transforms_follow_the_script_too() -> None:
    """In a list, and where they are modules, whose own machinery stays."""
    data = Images()
    data.transform = Compose()  # type: ignore[attr-defined]
    attributes = of(Subset(data, range(2)))
    dropout, jitter, _ = data.transform.transforms  # type: ignore[attr-defined]
    jitter.strength = 0.2
    dropout.eval()
    dropout.register_forward_hook(lambda *_: None)
    assert attributes.now() == {"Dropout 3.training": "False", "Jitter 4.strength": "0.2"}
