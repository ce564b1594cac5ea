"""An audit finds what ranks' loaders do wrong, names it, and leaves the loaders as they were."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, RandomSampler, Subset, TensorDataset

from elastic import ConfigError, ElasticLoader, LoaderError, LoaderTimeout, audit
from elastic.data.audit import Audit, AuditFailed

DATASET = TensorDataset(torch.arange(96.0)[:, None] * torch.ones(3), torch.arange(96))


class Stream(IterableDataset[Any]):
    """Every `step`-th example from `first` on, in whatever shape."""

    def __init__(self, first: int, step: int, make: Callable[[int], Any] = float, length: int = 96) -> None:
        self.range, self.make = range(first, length, step), make

    def __iter__(self) -> Iterator[Any]:
        yield from map(self.make, self.range)


def distributed(world_size: int, dataset: Any = DATASET, **options: Any) -> list[DataLoader[Any]]:
    return [
        DataLoader(dataset, batch_size=8, sampler=DistributedSampler(dataset, world_size, rank, **options))
        for rank in range(world_size)
    ]


def set_epoch(loaders: list[DataLoader[Any]]) -> Callable[[int], None]:
    def on_each(epoch: int) -> None:
        for loader in loaders:
            loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]

    return on_each


def kinds(report: Audit) -> list[str]:
    return [f"{finding.kind}{'?' * finding.slight}" for finding in report.findings]


def test_loaders_that_are_right_pass() -> None:
    loaders = distributed(3)
    for report in (
        audit(loaders, set_epoch=set_epoch(loaders)),
        audit([ElasticLoader(DATASET, 20, rank=rank, world_size=3) for rank in range(3)]),
        audit([ElasticLoader(DATASET, 2, rank=rank, world_size=5) for rank in range(5)]),  # some idle
        audit(DataLoader(DATASET, batch_size=8, shuffle=True)),
        audit([DataLoader(Stream(rank, 3), batch_size=4) for rank in range(3)], epochs=1),
    ):
        assert kinds(report) == []
        report.check()
    assert str(report) == "3 ranks, digests of 96 examples: nothing found"


def shuffled(rank: int) -> DataLoader[Any]:
    """Seeded alike on every rank, as weights must be."""
    return DataLoader(DATASET, batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "make",
    [
        shuffled,
        lambda rank: DataLoader(DATASET, batch_size=8, sampler=DistributedSampler(DATASET, 3, 0)),
        lambda rank: DataLoader(Stream(0, 1), batch_size=4),
        lambda rank: [{"x": torch.full((2, 4), float(i)), "name": ["a", "b"]} for i in range(9)],
        lambda rank: ElasticLoader(DATASET, 12, rank=0, world_size=3),
    ],
    ids=["one seed, no sampler", "a rank that is always 0", "a stream that is not split", "batches of dicts", "ours"],
)
def test_ranks_that_read_the_same_data_are_caught(make: Callable[[int], Any]) -> None:
    """The classic mistake: everything runs, the loss falls, and each update counts every example once for each rank."""
    report = audit([make(rank) for rank in range(3)], epochs=1)
    assert "same_data" in kinds(report)
    with pytest.raises(AuditFailed, match="ranks 0, 1, 2 of 3 read the same") as caught:
        report.check()
    assert caught.value.findings[0].kind == "same_data"
    assert "  next   give each rank its own part" in str(caught.value)


def test_each_rank_shuffling_all_of_it_is_an_overlap() -> None:
    loaders = [
        DataLoader(DATASET, batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(rank))
        for rank in range(3)
    ]
    report = audit(loaders)
    assert kinds(report) == ["overlap"]
    assert "96 of 96 examples are read by more than one rank, one of them by ranks 0, 1, 2" in str(report)


def test_an_epoch_seed_that_never_changes_is_caught() -> None:
    """`sampler.set_epoch` is forgotten as easily as it is written."""
    loaders = distributed(2)
    report = audit(loaders)
    assert kinds(report) == ["same_order"]
    assert "audit(loader, set_epoch=sampler.set_epoch)" in str(report)
    assert kinds(audit(loaders, epochs=1)) == []
    assert kinds(audit(DataLoader(Stream(0, 1), batch_size=4))) == ["same_order"]


def test_an_order_that_is_not_shuffled_is_caught_or_allowed() -> None:
    loaders = distributed(2, shuffle=False)
    assert kinds(audit(loaders)) == ["unshuffled"]
    assert kinds(audit(loaders, allow=("unshuffled",))) == []
    assert kinds(audit(DataLoader(DATASET))) == ["unshuffled"]


def test_padding_and_a_dropped_tail_are_slight() -> None:
    """Torch's sampler gives every rank as many examples, and `check` is for what nobody means."""
    dataset = TensorDataset(torch.arange(95))
    padded, dropped = distributed(3, dataset), distributed(3, dataset, drop_last=True)
    for loaders, found in ((padded, ["overlap?"]), (dropped, ["gap?"])):
        report = audit(loaders, set_epoch=set_epoch(loaders))
        assert kinds(report) == found
        report.check()
        assert f"{found[0][:-1]} (slight): " in str(report)


@pytest.mark.parametrize(("length", "world_size", "batch_size"), [(1000, 2, 128), (2000, 4, 256), (40, 2, 8)])
def test_a_seed_of_its_own_on_each_rank_is_not_slight(length: int, world_size: int, batch_size: int) -> None:
    """A quarter of the data twice and a quarter never: less than a batch of each rank, and no padding."""
    dataset = TensorDataset(torch.arange(length))
    loaders: list[DataLoader[Any]] = [
        DataLoader(dataset, batch_size, sampler=DistributedSampler(dataset, world_size, rank, seed=rank))
        for rank in range(world_size)
    ]
    report = audit(loaders, set_epoch=set_epoch(loaders))
    assert kinds(report) == ["overlap", "gap"]
    with pytest.raises(AuditFailed):
        report.check()


def part(rank: int, world_size: int, length: int, **options: Any) -> DataLoader[Any]:
    sampler: DistributedSampler[Any] = DistributedSampler(range(length), world_size, rank)  # type: ignore[arg-type]
    return DataLoader(range(length), sampler=sampler, **options)  # type: ignore[arg-type]


class Evened:
    """Batches of one size and as many on every rank, as of accelerate's `even_batches`: the last ones begin anew."""

    def __init__(self, rank: int, world_size: int, length: int, batch_size: int) -> None:
        order = torch.randperm(length, generator=torch.Generator().manual_seed(0)).tolist()
        batches = -(-length // (world_size * batch_size))
        order += order[: batches * world_size * batch_size - length]
        self.batches = [order[i : i + batch_size] for i in range(0, len(order), batch_size)][rank::world_size]

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)


@pytest.mark.parametrize(
    ("loaders", "found"),
    [
        ([part(rank, 3, 95, batch_size=7, drop_last=True) for rank in range(3)], ["gap?"]),
        ([part(rank, 4, 1000, batch_size=128, drop_last=True) for rank in range(4)], ["gap"]),  # a half
        ([part(rank, 4, 1000, batch_size=90, drop_last=True) for rank in range(4)], ["gap?"]),
        ([part(rank, 1, 10, batch_size=8, drop_last=True) for rank in range(1)], ["gap?"]),
        ([part(rank, 4, 100, batch_size=30) for rank in range(3)], ["gap"]),  # and one batch, which is not full
        ([part(rank, 3, 95, batch_size=64) for rank in range(3)], ["overlap?"]),
        (
            [DataLoader(DATASET, batch_sampler=Evened(rank, 3, 96, 10)) for rank in range(3)],
            ["overlap?", "repeats?"],
        ),
    ],
    ids=["dropped", "half dropped", "a batch each dropped", "one batch", "a rank missing", "padded", "batches padded"],
)
def test_slight_is_what_padding_and_dropping_explain(loaders: list[DataLoader[Any]], found: list[str]) -> None:
    assert kinds(audit(loaders, epochs=1)) == found


def own(dataset: Any, **options: Any) -> DataLoader[Any]:
    """A rank's, that reads all of a data set of its own."""
    usual: dict[str, Any] = {"batch_size": 4, "generator": torch.Generator().manual_seed(0), "shuffle": True}
    return DataLoader(dataset, **usual | options)


@pytest.mark.parametrize(
    "loaders",
    [
        [own(Subset(DATASET, range(rank * 48, rank * 48 + 48))) for rank in range(2)],
        [
            own(Subset(Subset(DATASET, range(8, 96)), range(rank, 88, 2))) for rank in range(2)
        ],  # a validation set is left
        [own(TensorDataset(torch.arange(rank * 48, rank * 48 + 48))) for rank in range(2)],
        [own(TensorDataset(torch.arange(rank * 48, rank * 48 + 48 + rank * 4))) for rank in range(2)],
    ],
    ids=["parts", "parts of a part", "other examples", "and another number"],
)
def test_ranks_with_data_of_their_own_are_right(loaders: list[DataLoader[Any]]) -> None:
    """The same indices are other examples there."""
    uneven = ["uneven"] if len(loaders[0]) != len(loaders[1]) else []
    assert kinds(audit(loaders)) == uneven


def test_the_same_examples_in_other_data_sets_are_found() -> None:
    """By their indices in what Subsets are parts of, or by what is in them."""
    for loaders, found in (
        (
            [own(Subset(DATASET, range(rank * 24, rank * 24 + 48))) for rank in range(2)],
            "24 of 72 examples are read by",
        ),
        ([own(Subset(DATASET, range(96 - rank))) for rank in range(2)], "95 of 96 examples are read by"),
        (
            [own(TensorDataset(torch.arange(rank, rank + 40))) for rank in range(2)],
            "39 of the first 41 examples are in",
        ),
    ):
        report = audit(loaders, epochs=1, allow=("uneven",))
        assert kinds(report) == ["overlap"]
        assert found in str(report)
    copies = audit([own(TensorDataset(torch.arange(40))) for _ in range(2)], epochs=1)
    assert kinds(copies) == ["same_data"]
    assert str(copies).startswith("2 ranks, indices of 80 examples: found")


def test_examples_that_cannot_be_compared_are_said_not_to_be() -> None:
    class Opaque(TensorDataset):
        def __getitem__(self, index: int) -> Any:
            return object()

    loaders = [own(Opaque(torch.arange(40 + 4 * rank))) for rank in range(2)]
    report = audit(loaders, allow=("uneven",))
    assert kinds(report) == []
    assert str(report).startswith("2 ranks, indices within each data set, only, of 84 examples: nothing found")


def test_examples_that_nobody_reads_are_a_gap() -> None:
    """As with a world size of which one rank is missing."""
    report = audit(distributed(3)[:2], epochs=1)
    assert kinds(report) == ["gap"]
    assert "32 of 96 examples are read by no rank" in str(report)


def test_a_stream_that_every_loader_process_reads_whole_repeats() -> None:
    """Each of two processes gives all of it: as if the stream came twice."""

    class Twice(Stream):
        def __iter__(self) -> Iterator[Any]:
            for example in super().__iter__():
                yield from (example, example)

    report = audit([DataLoader(Twice(rank, 2), batch_size=4) for rank in range(2)], epochs=1)
    assert kinds(report) == ["repeats"]
    drawn = DataLoader(DATASET, batch_size=8, sampler=RandomSampler(DATASET, replacement=True))
    assert kinds(audit(drawn, allow=("repeats", "gap"))) == []


def test_ranks_with_other_numbers_of_batches_are_uneven() -> None:
    report = audit([DataLoader(Stream(0, 1, length=length), batch_size=4) for length in (40, 48)], epochs=1, batches=99)
    assert "uneven" in kinds(report)
    assert "rank 0 gives 10 batches and rank 1 12" in str(report)


def test_nothing_is_changed_by_looking() -> None:
    """A run must not depend on whether it was audited: neither its data nor what it draws."""
    generator = torch.Generator().manual_seed(3)
    loaders: list[Any] = [
        DataLoader(DATASET, batch_size=8, shuffle=True, generator=generator),
        DataLoader(DATASET, batch_size=8, shuffle=True),
        ElasticLoader(DATASET, 20),
    ]
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    before = generator.get_state(), torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    for loader in loaders:
        audit(loader)
    audit(DataLoader(Stream(0, 1, lambda i: torch.rand(2) + random.random() + np.random.rand()), batch_size=8))
    after = generator.get_state(), torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    assert torch.equal(before[0], after[0])
    assert torch.equal(before[1], after[1])
    assert before[2:] == after[2:]
    assert loaders[2].state_dict()["step"] == 0


def test_a_sampler_s_place_stays() -> None:
    """torchdata's sampler keeps the place that was loaded until the next iteration begins."""

    class Sampler:
        def __init__(self) -> None:
            self.skip = 5

        def __iter__(self) -> Iterator[int]:
            skip, self.skip = self.skip, 0
            return iter(random.sample(range(skip, 96), 96 - skip))

    loader = DataLoader(DATASET, batch_size=8, sampler=Sampler())
    audit(loader)
    assert len(list(loader.sampler)) == 91


class Once:
    """A sampler whose numbers come from a generator that has begun."""

    def __init__(self) -> None:
        self.numbers = (k * 7 % 40 for k in range(10**6))

    def __iter__(self) -> Iterator[int]:
        return islice(self.numbers, 41)

    def __len__(self) -> int:
        return 41


def counted() -> Callable[[], Iterator[int]]:
    """A place in a closure."""
    epoch = 0

    def draw() -> Iterator[int]:
        nonlocal epoch
        epoch += 1
        return iter(random.Random(epoch).sample(range(96), 96))

    return draw


def counted_by_the_module() -> Iterator[int]:
    """A place in a global variable."""
    globals()["place"] += 1
    return iter(random.Random(place).sample(range(96), 96))


place = 0


class Drawn:
    def __init__(self, draw: Callable[[], Iterator[int]]) -> None:
        self.draw = draw

    def __iter__(self) -> Iterator[int]:
        return self.draw()


@pytest.mark.parametrize("make", [counted, lambda: counted_by_the_module], ids=["a closure", "a global variable"])
def test_wherever_a_sampler_keeps_its_place_the_order_stays(make: Callable[[], Any]) -> None:
    """A run must not depend on whether it was audited, and the audit sees both epochs as they would have been."""
    before = place
    expected = [list(Drawn(draw)) for draw in [make()] for _ in range(2)]
    globals()["place"] = before
    loader = DataLoader(DATASET, batch_size=8, sampler=Drawn(make()))
    assert kinds(audit(loader)) == []
    assert [list(loader.sampler) for _ in range(2)] == expected


def test_what_gives_its_values_once_still_has_them() -> None:
    sampler = Once()
    assert kinds(audit(DataLoader(DATASET, sampler=sampler), epochs=1)) == ["repeats", "gap"]
    assert next(sampler.numbers) == 0


@pytest.mark.parametrize(
    "make",
    [lambda: DataLoader(DATASET, sampler=iter(range(40))), lambda: (torch.arange(4) for _ in range(9))],
    ids=["a sampler", "the loader itself"],
)
def test_what_gives_nothing_in_a_second_epoch_is_said(make: Callable[[], Any]) -> None:
    loader = make()
    with pytest.raises(ConfigError, match=r"gives nothing in epoch 1: it gives its values once(.|\n)*or epochs=1"):
        audit(loader)
    assert len(list(loader)) > 8


def test_an_order_that_nothing_repeats_is_said() -> None:
    loader = DataLoader(DATASET, batch_size=8, sampler=Drawn(lambda: iter(random.SystemRandom().sample(range(96), 96))))
    report = audit(loader)
    assert kinds(report) == ["changed"]
    with pytest.raises(AuditFailed, match="the system's entropy"):
        report.check()
    assert kinds(audit(loader, allow=("changed",))) == []


class Raising(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        raise OSError("no such disk")


class Dying(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        os.kill(os.getpid(), signal.SIGKILL)
        yield 0


def test_an_error_comes_with_where_it_was_raised_and_a_death_with_its_status() -> None:
    with pytest.raises(OSError, match="no such disk") as caught:
        audit(DataLoader(Raising(), batch_size=4))
    assert "in __iter__" in str(caught.value.__cause__)
    with pytest.raises(LoaderError, match="died: exit code -9"):
        audit(DataLoader(Dying(), batch_size=4))


class Late(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        raise LoaderTimeout("no batch came", request=[1, 2])


class Stuck(IterableDataset[Any]):
    """Waits for a lock that another thread held as the process was copied."""

    def __iter__(self) -> Iterator[Any]:
        time.sleep(600)
        yield 0


def test_an_error_that_cannot_be_made_again_of_its_message_is_told_all_the_same() -> None:
    with pytest.raises(RuntimeError, match="LoaderTimeout: no batch came"):
        audit(DataLoader(Late(), batch_size=4))


def test_nobody_waits_for_ever_for_a_copy_that_is_stuck() -> None:
    with pytest.raises(LoaderError, match=r"gave nothing for 0\.5 s"):
        audit(DataLoader(Stuck(), batch_size=4), timeout_s=0.05)


def test_an_iteration_under_way_goes_on_and_a_file_stays_where_it_was_read_to(tmp_path: Path) -> None:
    """Loader processes that persist are this process's own; a place in an open file is common to forks."""
    loader = DataLoader(DATASET, batch_size=8, num_workers=1, persistent_workers=True)
    under_way = iter(loader)
    next(under_way)
    audit(loader, allow=("unshuffled",))
    assert len(list(under_way)) == 11

    (tmp_path / "lines").write_bytes(b"".join(b"%d\n" % i for i in range(99)))
    with (tmp_path / "lines").open("rb", buffering=0) as file:
        lines = Stream(0, 1, lambda _: float(file.readline()))
        audit(DataLoader(lines, batch_size=4), epochs=1, batches=5)
        assert file.tell() == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"loader": []}, "an audit of no loaders"),
        ({"loader": [object()], "epochs": 0}, "epochs = 0"),
        ({"loader": [object()], "allow": ("shuffled",)}, "expected names of findings: same_data, "),
        ({"loader": [[object()]] * 1}, "a batch that is a object holds nothing to compare"),
        ({"loader": [DataLoader(DATASET), [torch.ones(3)]]}, "some ranks' loaders tell their indices"),
    ],
)
def test_what_cannot_be_audited_is_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        audit(**arguments)


def test_of_a_large_dataset_the_beginning_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks whose batches differ by one come to the bound after other numbers of batches."""
    monkeypatch.setattr("elastic.data.audit.EXAMPLES_MAX", 60)
    report = audit([ElasticLoader(range(10**9), 10, rank=rank, world_size=4) for rank in range(4)])
    assert kinds(report) == []
    assert report.examples < 100
