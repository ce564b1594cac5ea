"""Of a data set travels what the script has changed: no more than that, and nothing that reading changes by itself."""

from __future__ import annotations

from collections.abc import Callable
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
        self.epoch: int | None = None
        self.order, self.weights, self.settings = torch.arange(4), np.zeros(4), {"a": 1}
        self.reads, self.file = 0, None

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        self.reads, self.last = self.reads + 1, str(index)
        if self.file is None:
            self.file, self.is_open = object(), True  # type: ignore[assignment]
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

    @property
    def carried(self) -> dict[str, Any]:
        return self.attributes.state_dict().get("carried", {})

    @property
    def expected(self) -> dict[str, Any]:
        return self.attributes.state_dict().get("expected", {})

    def reads(self) -> None:
        with self.attributes:
            self.data[0]

    def comes_into_an_epoch(self, beginning: Callable[[Any], object]) -> Worker:
        """Another one, whose script does this at an epoch's beginning, with the state of this one."""
        other = Worker(came=self.attributes.state_dict())
        other.attributes.leave_as_built()
        beginning(other.data)
        other.attributes.passed_beginning()
        other.attributes.step_begins()
        return other


CHANGES: dict[str, Any] = {
    "scale": 2.0,
    "crop": (4, 4),
    "phase": "hard",
    "epoch": 3,
    "training": False,
    "added": np.float64(2),
    "weights": 1.0,
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_the_script_changes_comes_to_another_worker(name: str) -> None:
    one = Worker()
    assert one.attributes.state_dict() == {}

    setattr(one.data, name, CHANGES[name])

    assert one.attributes.state_dict() == {"carried": {name: CHANGES[name]}}
    other = Worker(came=one.attributes.state_dict())
    assert getattr(other.data, name) == CHANGES[name]
    assert other.attributes.state_dict() == one.attributes.state_dict()


def test_a_worker_that_takes_a_state_over_goes_back_to_what_was_built() -> None:
    worker = Worker()
    worker.data.scale, worker.data.phase = 2.0, "hard"
    worker.attributes.load_state_dict({"carried": {"phase": "harder"}})
    assert (worker.data.scale, worker.data.phase) == (1.0, "harder")


def test_what_an_epoch_s_beginning_does_is_done_once() -> None:
    one = Worker()
    one.data.scale = 1.1 * 1.1

    def grows(data: Any) -> None:
        data.scale *= 1.1

    assert one.comes_into_an_epoch(grows).data.scale == one.data.scale


def test_what_the_script_sets_by_itself_it_finds_as_built() -> None:
    """Its setter does nothing where the epoch is that one already, and would leave an order that is out of date."""

    def sets(data: Any) -> None:
        if data.epoch != 3:
            data.epoch, data.order = 3, torch.tensor([3, 1, 2, 0])

    one = Worker()
    sets(one.data)
    assert (one.carried, one.expected) == ({}, {"epoch": 3})
    other = one.comes_into_an_epoch(sets)
    assert (other.data.epoch, other.data.order[0], other.told) == (3, 3, [])


def test_what_hangs_together_with_what_cannot_be_carried_is_told_of_and_left() -> None:
    one = Worker()
    one.data.scale, one.data.order = 2.0, torch.zeros(4)
    other = one.comes_into_an_epoch(lambda _: None)
    assert other.data.scale == 1.0
    assert [text.partition("\n")[0] for text in other.told] == [
        "the data set is not what it was where the state comes from: scale was 2.0 and is 1.0"
    ]


def test_a_look_at_an_example_is_a_read() -> None:
    """The flag says of a file that only this process has."""
    one = Worker()
    one.data[0]
    assert (one.carried, one.expected) == ({}, {"reads": 1, "last": "0", "is_open": True})
    assert not hasattr(Worker(came=one.attributes.state_dict()).data, "is_open")


def test_a_folder_of_this_process_stays_this_one_s() -> None:
    one = Worker()
    one.data.phase = "/tmp/of-one"
    other = one.comes_into_an_epoch(lambda data: setattr(data, "phase", "/tmp/of-another"))
    assert other.data.phase == "/tmp/of-another"


def test_what_others_hold_too_stays_theirs() -> None:
    one = Worker()
    settings = one.data.settings
    settings["a"] = 2
    assert one.attributes.state_dict() == {}
    one.attributes.load_state_dict({})
    assert one.data.settings is settings


def test_what_reading_changes_is_each_worker_s_own() -> None:
    worker = Worker()
    for _ in range(3):
        worker.reads()
    worker.data.scale = 2.0
    assert worker.attributes.state_dict() == {"carried": {"scale": 2.0}}

    worker.attributes.load_state_dict({})
    assert (worker.data.scale, worker.data.reads, worker.data.last) == (1.0, 3, "0")


def test_what_both_the_loop_and_reading_change_is_told_of() -> None:
    worker = Worker()
    worker.reads()
    assert worker.told == []
    worker.data.last = "by the loop"
    worker.data.is_open = False
    with worker.attributes:
        worker.data.scale = 2.0
    assert worker.told == []
    worker.data.crop = (4, 4)
    with worker.attributes:
        worker.data.crop = (2, 2)
    assert worker.told[0].startswith("both the loop and reading an example have changed the data set: crop\n")


class Jitter:
    def __init__(self) -> None:
        self.strength = 0.1


class Compose:
    def __init__(self) -> None:
        self.transforms = [nn.Dropout(0.1), Jitter(), str]


def test_what_it_is_made_of_follows_by_name() -> None:
    data: Any = Images()
    data.transform = Compose()
    worker = Worker(Subset(data, range(2)))
    dropout, jitter, _ = data.transform.transforms
    data.scale, jitter.strength = 2.0, 0.2
    dropout.eval()
    assert worker.carried == {"Images 1.scale": 2.0, "Dropout 3.training": False, "Jitter 4.strength": 0.2}


def test_data_sets_that_take_turns_are_not_taken_for_each_other() -> None:
    parts = Images(), Images()
    worker = Worker(Subset(parts[0], range(2)))
    parts[0].scale = 2.0
    assert worker.carried == {"Images 1.scale": 2.0}
    worker.data.dataset = parts[1]
    worker.attributes.step_begins()
    assert worker.attributes.state_dict() == {}
    assert worker.told[0].startswith("the loop changes its data set: Images 1.scale\n")


def test_of_very_many_data_sets_none_is_carried_and_that_is_said() -> None:
    parts = [Images() for _ in range(40)]
    worker = Worker(ConcatDataset(parts))
    for part in parts:
        part.scale = 2.0
    worker.attributes.step_begins()
    assert worker.attributes.state_dict() == {}
    assert "one of more than 16 objects" in worker.told[0]


def test_workers_are_compared_by_what_any_of_them_has_changed() -> None:
    """A script that is begun later may build it as it is now, and a cache is nobody's."""
    one, later = Worker(), Worker()
    one.data.scale, one.data.epoch, one.data.cached = 2.0, 3, 4
    assert one.attributes.now() == {"scale": "2.0"}
    assert later.attributes.now() == {}
    later.attributes.compare_also(one.attributes.now())
    assert later.attributes.now() == {"scale": "1.0"}
