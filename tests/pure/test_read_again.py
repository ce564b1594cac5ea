"""What a data set or a collate function keeps of one read for the next is found, and leaves no trace of being asked."""

from __future__ import annotations

import itertools
import logging
import pickle
import queue
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from elastic.data.data_plan import Examples
from elastic.data.loader import Loader
from elastic.errors import ReadOrderError
from elastic.events.observer import Observer

LENGTH = 12


class Kept:
    """A data set that keeps something under `kept`, and gives what `gives` makes of it."""

    def __init__(self, kept: Any, gives: Callable[[Any, int], Any]) -> None:
        self.kept, self.gives = kept, gives

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index + float(self.gives(self, index)))


def counts(of: Kept, index: int) -> float:
    of.kept += 1
    return 0.0


def by_count(of: Kept, index: int) -> float:
    of.kept += 1
    return float(of.kept)


def last(of: Kept, index: int) -> float:
    was = of.kept[-1] if of.kept else 0.0
    of.kept.append(float(index + 1))
    return 0.5 * was


def logged(of: Kept, index: int) -> float:
    of.kept.append(index)
    return 0.0


def running_mean(of: Kept, index: int) -> float:
    of.kept += 0.1 * (index + 1 - of.kept)
    return float(of.kept[0])


def number_of_each(of: Kept, index: int) -> float:
    of.kept[index] += 1
    return float(of.kept[index])


def cached(of: Kept, index: int) -> float:
    if index not in of.kept:
        of.kept[index] = float(index**2)
    return float(of.kept[index]) + float(np.random.random())


def cached_augmentation(of: Kept, index: int) -> float:
    if index not in of.kept:
        of.kept[index] = float(np.random.random())
    return float(of.kept[index])


def drawn_late(of: Kept, index: int) -> float:
    if of.kept is None:
        of.kept = torch.randperm(LENGTH)
    return float(of.kept[index])


def written_in_place(of: Kept, index: int) -> float:
    row = (of.kept["rows"] if isinstance(of.kept, dict) else of.kept)[index]
    row += 1.0
    return float(row[0])


def clipped_in_place(of: Kept, index: int) -> float:
    row = of.kept[index]
    row[:] = row.clip(-0.5, 0.5)
    return float(row[0])


def seen(of: Kept, index: int) -> float:
    of.kept.add(index)
    return 0.0


def drawn(of: Kept, index: int) -> float:
    return float(next(of.kept))


def opened(of: Kept, index: int) -> float:
    of.kept = of.kept or object()
    return 0.0


def random(of: Kept, index: int) -> float:
    of.kept += 1
    return float(np.random.random()) + float(torch.rand(()))


def read(dataset: Any, *, indices: int = LENGTH, collate_fn: Any = None, observer: Observer | None = None) -> list[Any]:
    loader = Loader(dataset, seed=0, observer=observer or Observer(), collate_fn=collate_fn)
    half = np.array_split(np.arange(indices, dtype=np.int64), 2)
    loader.open(Examples(indices=some, visits=np.zeros_like(some)) for some in half)
    return [loader.next() for _ in half]


@pytest.mark.parametrize(
    ("kept", "gives"),
    [
        (0, by_count),
        ([], last),
        (deque(maxlen=3), last),
        (np.zeros(1), running_mean),
        (torch.zeros(1), running_mean),
        (Counter(), number_of_each),
        (np.zeros(LENGTH), number_of_each),
        (itertools.count(), drawn),
    ],
    ids=lambda one: getattr(one, "__name__", type(one).__name__),
)
def test_an_example_that_depends_on_what_was_read_before_is_refused(kept: Any, gives: Any) -> None:
    with pytest.raises(
        ReadOrderError, match=r"dataset\[[01]\] gave something else.*(\n.*)*Kept.kept(.*\n)*  next  "
    ) as raised:
        read(Kept(kept, gives))
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)  # noqa: S301


@pytest.mark.parametrize(
    ("kept", "gives"),
    [({}, cached_augmentation), (None, drawn_late)],
    ids=lambda one: getattr(one, "__name__", type(one).__name__),
)
def test_random_numbers_that_are_kept_are_refused(kept: Any, gives: Any) -> None:
    """In the next epoch another worker may read the example, and would draw that epoch's."""
    with pytest.raises(ReadOrderError, match=r"dataset\[0\] drew random numbers, and others or none.*(\n.*)*Kept.kept"):
        read(Kept(kept, gives))


READS = itertools.count()


def by_global_count(of: Kept, index: int) -> float:
    return float(next(READS))


def unseeded(of: Kept, index: int) -> float:
    return float(np.random.default_rng().random())


@cache
def drawn_for(index: int) -> float:
    return float(np.random.random())


@pytest.mark.parametrize(
    ("gives", "found"),
    [
        (by_global_count, "gave something else"),
        (unseeded, "gave something else"),
        (lambda of, index: drawn_for(index), "drew random numbers, and others or none"),
    ],
    ids=["a global count", "an unseeded generator", "a cache beside the data set"],
)
def test_the_first_example_is_read_again_whatever_has_changed(gives: Any, found: str) -> None:
    """Nothing of it shows in attributes, and each process would train on other examples."""
    drawn_for.cache_clear()
    with pytest.raises(ReadOrderError, match=rf"dataset\[0\] {found}.*(\n.*)*a global or a closure"):
        read(Kept(0, gives))


LARGE = (LENGTH, 1 << 16)  # more than is copied for a look


@pytest.mark.parametrize(
    "kept",
    [
        np.zeros(LARGE, np.float32),
        torch.zeros(LARGE),
        tuple(torch.zeros(LENGTH, 1)),
        [np.zeros(1) for _ in range(LENGTH)],
        {"rows": torch.zeros(LENGTH, 1)},
    ],
    ids=["a large array", "a large tensor", "a tuple of tensors", "a list of arrays", "a dict of tensors"],
)
def test_an_augmentation_that_writes_to_the_stored_examples_is_refused(kept: Any) -> None:
    """Each process writes to its own copy: which ones of an example are written to, and how often, nobody decides."""
    with pytest.raises(ReadOrderError, match=r"dataset\[0\] gave something else.*(\n.*)*Kept.kept"):
        read(Kept(kept, written_in_place))


@pytest.mark.parametrize("kept", [np.ones(LARGE, np.float32), torch.ones(LARGE)], ids=["an array", "a tensor"])
def test_what_is_written_to_and_gives_the_same_is_let_be(kept: Any) -> None:
    read(Kept(kept, clipped_in_place))


@pytest.mark.parametrize(
    ("kept", "gives", "then"),
    [
        (0, counts, LENGTH),
        (0, random, LENGTH),
        ([], logged, [*range(LENGTH)]),
        (deque(), logged, deque(range(LENGTH))),
        (set(), seen, {*range(LENGTH)}),
        (itertools.repeat(0), drawn, None),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_who_only_counts_counts_each_read_once(kept: Any, gives: Any, then: Any) -> None:
    dataset = Kept(kept, gives)
    read(dataset)
    assert then is None or dataset.kept == then


@pytest.mark.parametrize("kept", [{}, OrderedDict(), None], ids=lambda one: type(one).__name__)
def test_caches_and_what_is_opened_late_stay(kept: Any) -> None:
    dataset = Kept(kept, opened if kept is None else cached)
    read(dataset)
    assert dataset.kept if kept is None else list(dataset.kept) == [*range(LENGTH)]


def test_asking_changes_no_random_number() -> None:
    plain = [one.batch for one in read(Kept(0, lambda of, index: float(np.random.random()) + float(torch.rand(()))))]
    asked = [one.batch for one in read(Kept(0, random))]
    assert all(map(torch.equal, plain, asked))


def test_a_second_read_that_raises_changes_no_random_number_of_the_batch() -> None:
    """What can be read once each, as from a queue of others' making, is not asked; its batch draws what it would."""
    left = dict.fromkeys(range(LENGTH), 1.0)

    def once(of: Kept, index: int) -> float:
        return left.pop(index) + float(torch.rand(()))

    def noisy(examples: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack(examples) + torch.rand(())

    asked = [one.batch for one in read(Kept(0, once), indices=2, collate_fn=noisy)]
    plain = read(Kept(0, lambda of, index: 1.0 + float(torch.rand(()))), indices=2, collate_fn=noisy)
    assert all(map(torch.equal, asked, [one.batch for one in plain]))


class Collates:
    logger: logging.Logger

    def __init__(self, *, depends: bool) -> None:
        self.batches, self.depends = 0, depends

    def __call__(self, examples: list[torch.Tensor]) -> torch.Tensor:
        self.batches += 1
        return torch.stack(examples) + self.batches * self.depends + torch.rand(())


def test_a_batch_that_depends_on_those_before_is_refused() -> None:
    with pytest.raises(
        ReadOrderError, match=r"the batch of 6 examples .* gave something else(.*\n)*.*Collates.batches"
    ):
        read(torch.arange(12.0), collate_fn=Collates(depends=True))


def test_a_batch_that_depends_on_a_variable_of_the_script_is_refused() -> None:
    generator = np.random.default_rng(0)
    with pytest.raises(ReadOrderError, match=r"the batch of 6 examples .* gave something else(.*\n)*.*a global or a"):
        read(torch.arange(12.0), collate_fn=lambda them: torch.stack(them) * generator.random())


def test_a_logger_of_a_collate_function_is_not_looked_into(tmp_path: Path) -> None:
    """As of Transformers' RemoveColumnsCollator: its stream is an iterator, and was named in place of what it was."""
    collates = Collates(depends=True)
    collates.logger = logging.Logger("columns")
    with (tmp_path / "log").open("w") as stream:
        collates.logger.addHandler(logging.StreamHandler(stream))
        with pytest.raises(ReadOrderError, match=r"has changed Collates.batches:"):
            read(torch.arange(12.0), collate_fn=collates)


def test_batches_may_be_counted_and_draw_random_numbers() -> None:
    collates = Collates(depends=False)
    batches = [one.batch for one in read(torch.arange(12.0), collate_fn=collates)]
    plain = [one.batch for one in read(torch.arange(12.0), collate_fn=lambda them: torch.stack(them) + torch.rand(()))]
    assert collates.batches == 2
    assert all(map(torch.equal, batches, plain))


def test_a_collate_function_that_writes_to_its_examples_is_not_asked() -> None:
    class Pops(Collates):
        def __call__(self, examples: list[Any]) -> torch.Tensor:
            self.batches += 1
            return torch.stack([one.pop("x") for one in examples])

    collates = Pops(depends=False)
    read([{"x": torch.tensor(1.0)} for _ in range(12)], collate_fn=collates)
    assert collates.batches == 2


class Holder:
    """As a run, a trainer or a prefetcher that a data set holds: it changes by itself."""

    def __init__(self) -> None:
        self.received, self.beats, self.given = torch.zeros(3), 0, [1, 2]


def test_what_a_data_set_holds_is_not_written_to() -> None:
    """A thread had received into a tensor, and it was put back."""
    holder = Holder()

    def beside(of: Kept, index: int) -> float:
        holder.received += 1.0
        holder.beats += 1
        holder.given = [*holder.given, index]
        return 0.0

    read(Kept(holder, beside))
    assert holder.beats == LENGTH + 4  # the first four examples are read twice
    assert holder.received.tolist() == [float(holder.beats)] * 3


def test_a_run_that_a_data_set_holds_is_not_looked_into() -> None:
    loader = Loader(Kept(0, counts), seed=0, observer=Observer())
    before = {key: id(value) for key, value in vars(loader).items()}
    reads: list[int] = []

    def touches(of: Kept, index: int) -> float:
        loader.__dict__["touched"] = index
        reads.append(index)
        return 0.0

    read(Kept(loader, touches))
    assert reads == [0, *range(LENGTH)]
    assert before.items() <= {key: id(value) for key, value in vars(loader).items()}.items()


class Opaque:
    """Of which nobody knows the bytes."""


def test_what_cannot_be_compared_is_made_once() -> None:
    """A collate function that writes to examples would write twice, and nobody would see it."""

    class Divides(Collates):
        def __call__(self, examples: list[Any]) -> list[Any]:  # type: ignore[override]
            self.batches += 1
            return [one["x"].div_(2) for one in examples]

    class Doubles(Kept):
        def __getitem__(self, index: int) -> Any:
            self.kept += 1
            self.gives[index]["x"] = self.gives[index]["x"] * 2  # type: ignore[index]
            return self.gives[index]  # type: ignore[index]

    def stored() -> Any:
        return [{"id": Opaque(), "x": torch.ones(1)} for _ in range(LENGTH)]

    batches = read(stored(), collate_fn=Divides(depends=False))
    assert [float(x) for one in batches for x in one.batch] == [0.5] * LENGTH
    batches = read(Doubles(0, stored()), collate_fn=list)
    assert [float(example["x"]) for one in batches for example in one.batch] == [2.0] * LENGTH


class Raises(dict[str, Any]):
    """As an example that does not let itself be looked at."""

    def items(self) -> Any:
        raise KeyError("items")


@pytest.mark.parametrize(
    "example", [Raises(), torch.ones(2, dtype=torch.complex64).conj(), torch.empty(2, device="meta")]
)
def test_an_example_that_cannot_be_looked_at_is_none_that_raises(example: Any) -> None:
    class Counting(Kept):
        def __getitem__(self, index: int) -> Any:
            self.kept += 1
            return example

    loader = Loader(Counting(0, counts), seed=0, observer=Observer(), collate_fn=list, on_bad_example="skip")
    indices = np.arange(4, dtype=np.int64)
    loader.open([Examples(indices=indices, visits=np.zeros_like(indices))])
    assert loader.next().left_out == ()


def test_a_mapping_that_is_an_open_file_is_not_read() -> None:
    """As of numpy.load, or h5py's, which a data set may have closed again."""

    class Opened(Mapping[str, Any]):
        def __getitem__(self, key: str) -> Any:
            raise ValueError("it is closed")

        def __len__(self) -> int:
            return 1

        def __iter__(self) -> Iterator[str]:
            return iter("x")

    def opens(of: Kept, index: int) -> float:
        of.kept = Opened()
        return 0.0

    read(Kept(None, opens))


def test_a_data_set_with_a_queue_that_is_filled_once_for_each_read_is_read_once() -> None:
    """A second read would wait for what nobody puts."""
    filled: queue.Queue[float] = queue.Queue()
    for _ in range(LENGTH):
        filled.put(0.0)
    read(Kept(filled, lambda of, index: of.kept.get(timeout=60)))
    assert filled.empty()


def test_bytes_between_the_fields_of_a_structure_are_not_compared() -> None:
    kind = np.dtype([("a", np.uint8), ("b", np.float64)], align=True)

    class Structured(Kept):
        def __getitem__(self, index: int) -> Any:
            self.kept += 1
            memory = np.full(kind.itemsize, self.kept, dtype=np.uint8).view(kind)
            memory["a"], memory["b"] = 1, 2.0
            return memory

    read(Structured(0, counts), collate_fn=list)


def test_what_is_not_changed_by_reading_is_read_once_but_for_the_first_example() -> None:
    reads: list[int] = []

    class Plain(Kept):
        def __getitem__(self, index: int) -> torch.Tensor:
            reads.append(index)
            return torch.tensor(1.0)

    read(Plain(0, counts))
    assert reads == [0, *range(LENGTH)]
