"""Of a data set's attributes that the loop changes people are told where they are others; nothing is ever set."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset, Dataset, Subset

from elastic.data.dataset_changes import data_sets_and_transforms
from elastic.state.dataset_attributes import DatasetAttributes


class Images(Dataset[Any]):
    def __init__(self) -> None:
        self.scale, self.crop, self.phase, self.training = 1.0, (8, 8), "easy", True
        self.epoch, self.cached = 0, None
        self.order, self.weights, self.settings = torch.arange(4), np.zeros(4), {"a": 1}
        self.reads, self.file = 0, None
        self.__dict__[3] = 0  # type: ignore[index]

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        self.reads, self.last = self.reads + 1, str(index)
        return index


@dataclass
class Worker:
    """One whose script's loop has begun, unless a state came to it before."""

    data: Any = field(default_factory=Images)
    came: dict[str, Any] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.attributes = DatasetAttributes(lambda: data_sets_and_transforms((self.data,)), self.told.append)
        self.attributes.load_state_dict(self.came)
        self.attributes.begin_loop()

    def followed_by(self, *, in_midst: bool = True, **own: Any) -> Worker:
        """Another one, which begins a step with this one's state, and has set these by itself."""
        other = Worker(came=self.attributes.state_dict())
        vars(other.data).update(own)
        other.attributes.step_begins(in_midst=in_midst)
        return other


CHANGES: dict[str, Any] = {
    "scale": 2.0,
    "crop": (4, 4),
    "phase": "hard",
    "epoch": 3,
    "training": False,
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_another_is_told_of_by_name_and_left(name: str) -> None:
    one, built = Worker(), getattr(Images(), name)
    assert one.attributes.state_dict() == {}

    setattr(one.data, name, CHANGES[name])

    assert one.attributes.state_dict() == {name: CHANGES[name]}
    other = one.followed_by()
    (told,) = other.told
    said = f"{name} was {CHANGES[name]!r} and is {built!r}"
    assert told.startswith(f"the data set is not what it was where the state comes from: {said}\n")
    assert getattr(other.data, name) == built


def test_it_is_told_of_once() -> None:
    one = Worker()
    one.data.scale = 2.0
    other = one.followed_by()
    other.attributes.step_begins(in_midst=True)
    assert len(other.told) == 1


def test_what_the_script_sets_by_itself_is_right() -> None:
    one = Worker()
    one.data.epoch = 3
    assert one.followed_by(epoch=3).told == []


def test_at_an_epoch_s_beginning_the_script_goes_on_from_what_the_state_had() -> None:
    """Its number is one more there than in the state."""
    one = Worker()
    one.data.epoch = 3
    assert one.followed_by(in_midst=False, epoch=4).told == []


def test_data_itself_and_caches_are_not_looked_at() -> None:
    one = Worker()
    one.data.order, one.data.weights, one.data.settings = torch.zeros(4), np.ones(4), {"a": 2}
    one.data.cached, one.data.new, one.data.file = 1, 2, 3
    assert (one.attributes.state_dict(), one.attributes.now()) == ({}, {})


def test_what_reading_changes_is_each_worker_s_own() -> None:
    one = Worker()
    for _ in range(3):
        with one.attributes:
            one.data[0]
    one.data.scale = 2.0
    assert one.attributes.state_dict() == {"scale": 2.0}

    other = Worker(came={"reads": 7, "scale": 1.0})
    with other.attributes:
        other.data[0]
    other.attributes.step_begins(in_midst=True)
    assert other.told == []


class Jitter:
    def __init__(self) -> None:
        self.strength = 0.1


class Compose:
    def __init__(self) -> None:
        self.transforms = [nn.Dropout(0.1), Jitter(), str]


def test_what_it_is_made_of_is_looked_at_too() -> None:
    data: Any = Images()
    data.transform = Compose()
    worker = Worker(Subset(data, range(2)))
    dropout, jitter, _ = data.transform.transforms
    data.scale, jitter.strength = 2.0, 0.2
    dropout.eval()
    assert worker.attributes.state_dict() == {
        "Images 1.scale": 2.0,
        "Dropout 3.training": False,
        "Jitter 4.strength": 0.2,
    }


def test_of_many_data_sets_the_first_ones_are_looked_at() -> None:
    parts = [Images() for _ in range(40)]
    worker = Worker(ConcatDataset(parts))
    for part in parts:
        part.scale = 2.0
    assert len(worker.attributes.state_dict()) == 15


def test_workers_are_compared_by_what_any_of_them_has_changed() -> None:
    """A script that is begun later may build it as it is now."""
    one, later = Worker(), Worker()
    one.data.scale = 2.0
    assert one.attributes.now() == {"scale": "2.0"}
    assert later.attributes.now() == {}
    later.attributes.compare_also(one.attributes.now())
    assert later.attributes.now() == {"scale": "1.0"}
