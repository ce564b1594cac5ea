"""Examples arrive in order, each read with its own random stream."""

from __future__ import annotations

import random
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import elastic
from elastic.data.data_plan import DataPlan
from elastic.data.loader import Loader
from elastic.errors import ExampleError, LoaderTimeout
from elastic.events.observer import Observer
from tests.kit.arguments import grouped
from tests.kit.loading import (
    Asked,
    Augmented,
    Bomb,
    children,
    consecutive,
    forget_earlier_children,
    loader,
    read_all,
    request,
)

pytestmark = pytest.mark.nightly(sample=8, of="loaders")

IN_BOTH = pytest.mark.parametrize("num_workers", [0, 2])


@pytest.fixture(autouse=True)
def _children_of_earlier_tests() -> None:
    forget_earlier_children()


def states() -> tuple[Any, str, list[int]]:
    return random.getstate(), repr(np.random.get_state(legacy=False)), torch.get_rng_state().tolist()


@IN_BOTH
def test_batches_arrive_in_the_order_of_the_requests(num_workers: int) -> None:
    """Loader processes finish in any order; a step's shares do not care who was faster."""
    with loader(Asked(lambda i: i * 10), num_workers=num_workers) as made:
        made.open([request(5, 3, 3), request(0), request(999, 1)])
        loaded = read_all(made)

    assert [item.batch.tolist() for item in loaded] == [[50, 30, 30], [0], [9990, 10]]
    assert [item.indices.tolist() for item in loaded] == [[5, 3, 3], [0], [999, 1]]


def test_an_augmentation_depends_on_epoch_and_example_alone() -> None:
    """Not on who reads it, beside what, or in which order: else a redone step would train on other pictures."""
    with loader(Augmented()) as made:
        made.open([request(4, 5, 6, epoch=2)])
        expected = made.next().batch[0]
    for num_workers in (0, 1, 2):
        with loader(Augmented(), num_workers=num_workers) as made:
            made.open([request(6, epoch=2), request(0, 5, 4, epoch=2), request(4, epoch=3)])
            first, second, other_epoch = (item.batch[0] for item in read_all(made))
        assert torch.equal(torch.stack([second[2], second[1], first[0]]), expected)
        assert not torch.equal(other_epoch[0], second[2])


def test_loader_processes_leave_this_process_streams_alone() -> None:
    """A share's dropout must not depend on num_workers, nor a user's own draws on when a view changed."""
    before = states()
    with loader(Augmented(), num_workers=2) as made:
        made.open(consecutive(5))
        read_all(made)

    assert states() == before


@IN_BOTH
def test_an_exception_in_the_dataset_names_the_example(num_workers: int) -> None:
    """Of a million files one is broken: the person on call needs its index, and the line that failed."""
    with loader(Bomb(), num_workers=num_workers) as made:
        made.open([request(16, epoch=3), request(1, 17, 2, epoch=3)])
        assert made.next().indices.tolist() == [16]
        with pytest.raises(ExampleError, match=r"dataset\[17\] in epoch 3 raised KeyError: 'picture-17.png'") as failed:
            made.next()

    assert (failed.value.epoch, failed.value.index) == (3, 17)
    traced = str(failed.value) if num_workers else str(failed.getrepr(chain=True))
    assert 'raise KeyError("picture-17.png")' in traced


def train(url: Path, dataset: Any, **options: Any) -> None:
    model = torch.nn.Linear(1, 1)
    given: dict[str, Any] = {"batch_size": 100, "virtual_workers": 4, "epochs": 2, "save_every": 1000}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with elastic.Run(url, model=model, optimizer=optimizer, dataset=dataset, **grouped(given | options)) as run:
        for batch in run.batches():
            model(batch[:, None].float()).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if run.stepped and run.step_index == 2:
                run.evaluate(Bomb() if len(dataset) == 600 else [1], lambda values: {"n": len(values)})


@IN_BOTH
def test_an_exception_in_the_dataset_of_a_run_names_the_step(tmp_path: Path, num_workers: int) -> None:
    """Beside the example's index and epoch; with the exception's own type, text and line."""
    plan = DataPlan(dataset_length=1000, batch_size=100, virtual_workers=4, seed=0, epochs=2)
    (index,) = (index for index in range(10) if 17 in plan.step(index).indices)

    with pytest.raises(ExampleError) as failed:
        train(tmp_path / "run", Bomb(), num_workers=num_workers)

    said = "".join(traceback.format_exception(failed.value))
    assert f"dataset[17] in epoch 0 raised KeyError: 'picture-17.png'\n  read for  step {index}\n  state " in said
    assert 'raise KeyError("picture-17.png")' in said
    assert (failed.value.index, failed.value.epoch, failed.value.read_for) == (17, 0, f"step {index}")


@IN_BOTH
def test_an_exception_in_the_collate_function_names_its_examples(num_workers: int) -> None:
    """Pictures of unequal sizes are found here, by torch.stack, and not where they were read."""
    with loader(Asked(torch.zeros), num_workers=num_workers) as made:
        made.open([request(2, 3, epoch=1)])
        with pytest.raises(ExampleError, match=r"collate_fn of 2 examples \(2 of epoch 1, 3 of epoch 1\) raised"):
            made.next()


def test_a_wait_for_a_stuck_read_ends_with_its_name() -> None:
    """P9. A dead network file system answers never; and closing must not wait for it either."""
    with loader(Asked(lambda i: time.sleep(3600) if i == 3 else i), num_workers=1, timeout_s=0.5) as made:
        made.open([request(1), request(2, 3, epoch=4)])
        made.next()
        with pytest.raises(LoaderTimeout, match=r"missing  2 examples \(2 of epoch 4, 3 of epoch 4\)") as late:
            made.next()
    assert late.value.request.indices.tolist() == [2, 3]


def test_tensors_are_indexed_to_the_bytes_that_stacking_gives() -> None:
    """A drill wraps the dataset and so reads it example by example; it must train on the same bits."""

    class Wrapping(Observer):
        def dataset(self, dataset: Any) -> Any:
            return Asked(dataset.__getitem__)

    layouts = {
        "plain": torch.randn(50, 3, 4, 5),
        "integers": torch.arange(50),
        "bools": torch.arange(50) % 3 == 0,
        "bf16": torch.randn(50, 7).bfloat16(),
        "channels last": torch.randn(50, 3, 4, 5).to(memory_format=torch.channels_last),
        "transposed": torch.randn(4, 50).T,
        "every other": torch.randn(100, 2)[::2],
        "expanded": torch.randn(1, 6).expand(50, 6),
    }
    for name, tensor in layouts.items():
        dataset = TensorDataset(tensor, torch.arange(50))
        batches = []
        for observer in (Observer(), Wrapping()):
            with loader(dataset, observer=observer) as made:
                made.open([request(4, 49, 0, 4)])
                batches.append(made.next())
        (fast, _), (slow, _) = (loaded.batch for loaded in batches)

        assert type(batches[0].batch) is type(batches[1].batch)
        assert torch.equal(fast, slow), name
        assert (fast.dtype, fast.stride()) == (slow.dtype, slow.stride()), name
        assert batches[0].indices.tolist() == batches[1].indices.tolist()


@IN_BOTH
def test_observers_wrap_dataset_and_collate_function_once_and_before_the_fork(num_workers: int) -> None:
    """This is how a drill learns what was really read, without the loader knowing of drills."""

    class Noting(Observer):
        def dataset(self, dataset: Any) -> Any:
            return Asked(lambda i: (i, dataset[i]))

        def collate(self, collate_fn: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
            return lambda examples: {"read": [i for i, _ in examples], "batch": collate_fn([e for _, e in examples])}

    with loader(Asked(lambda i: i * i), observer=Noting(), num_workers=num_workers, device=torch.device("cpu")) as made:
        made.open([request(3, 5)])
        batch = made.next().batch
    assert batch["read"] == [3, 5]
    assert batch["batch"].tolist() == [9, 25]


def test_what_is_made_of_a_batch_has_the_same_bits_whoever_has_read_it() -> None:
    """A tensor over a part of NumPy's array begins anywhere, and at a page where it came from a loader process: kernels
    then sum in another order, and runs with `num_workers=0` and 1 ended with other weights."""
    torch.manual_seed(0)
    weights = torch.randn(10, 33)

    def behind_a_header(examples: list[Any]) -> torch.Tensor:
        numbers = np.empty(3 + 33 * len(examples), np.float32)
        numbers[3:] = np.sin(np.arange(33 * len(examples)) + examples[0])
        return torch.from_numpy(numbers[3:].reshape(-1, 33))

    def read(num_workers: int) -> list[Any]:
        with loader(Asked(lambda i: i), num_workers=num_workers, collate_fn=behind_a_header) as made:
            made.open(consecutive(8, size=7))
            return [(one.batch.data_ptr() % 64, (one.batch @ weights.T).tolist()) for one in read_all(made)]

    here = read(0)
    assert [at for at, _ in here] == [0] * 8
    assert read(1) == here


@pytest.mark.parametrize("wrong", [{"num_workers": -1}, {"num_workers": 1.5}, {"timeout_s": 0}])
def test_options_that_cannot_work_are_refused(wrong: dict[str, Any]) -> None:
    """At the start, by name."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Loader(Augmented(), seed=0, observer=Observer(), **wrong)


class Curriculum:
    """As scripts have them: what an example is depends on the epoch, on a transform's strength, and on tables."""

    def __init__(self) -> None:
        self.epoch = 0
        self.transform = Strength()
        self.levels = [1]
        self.offset = torch.zeros(())
        self.big = list(range(1000))

    def __getitem__(self, index: int) -> float:
        return index + 10 * self.epoch + 100 * self.transform.strength + 1000 * self.levels[0] + float(self.offset)


class Strength:
    def __init__(self) -> None:
        self.strength = 0


@IN_BOTH
def test_what_a_script_changes_of_its_dataset_counts_from_the_next_batch_on(num_workers: int) -> None:
    """Though batches were read ahead before, and a loader process has a copy of its own."""
    dataset = Curriculum()
    changes: list[Callable[[], Any]] = [
        lambda: setattr(dataset, "epoch", 1),
        lambda: setattr(dataset.transform, "strength", 2),
        lambda: dataset.levels.__setitem__(0, 3),
        lambda: dataset.offset.add_(0.5),
        lambda: setattr(dataset, "transform", Strength()),
        lambda: setattr(dataset, "unheard_of", 1),
    ]
    with loader(dataset, num_workers=num_workers) as made:
        made.open([request(number) for number in range(2 * len(changes))])
        for number in range(0, 2 * len(changes), 2):
            assert made.next().batch.tolist() == [dataset[number]]
            before = children()
            assert made.next().batch.tolist() == [dataset[number + 1]]
            assert children() == before, "nothing has changed"
            changes[number // 2]()
