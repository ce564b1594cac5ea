"""Streams: which one gives which example, where each stands, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

import elastic
from elastic.data.data_plan import share_sizes
from elastic.data.streams import Streams
from elastic.errors import ConfigError, IdentityMismatch, StepError


class Counting:
    """worker * 1000 + 0, 1, 2 …, so many times."""

    def __init__(self, worker: int, length: int = 5) -> None:
        self.worker, self.length, self.at, self.turn = worker, length, 0, 0

    def set_epoch(self, turn: int) -> None:
        self.turn = turn

    def __iter__(self) -> Iterator[int]:
        while self.at < self.length:
            self.at += 1
            yield self.worker * 1000 + self.turn * 100 + self.at - 1

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Buffered(Counting):
    """As a shuffle buffer: reads ahead, and its state says where it has read to."""

    def __iter__(self) -> Iterator[int]:
        buffer = [next(inner) for inner in [super().__iter__()] for _ in range(3)]
        yield from buffer
        yield from super().__iter__()


class BufferShuffledExamplesIterable:
    """As it is called in Hugging Face's datasets; tests run without these."""


class OfHuggingFace(Counting):
    """What `shuffle(buffer_size=…)` and a `map` behind it leave."""

    _ex_iterable = type("MappedExamplesIterable", (), {"ex_iterable": BufferShuffledExamplesIterable()})()


def dealt(make: Any, batch_size: int = 7, workers: int = 3) -> Streams:
    streams = Streams(make)
    streams.assign(share_sizes(batch_size, batch_size, workers))
    return streams


def step(streams: Streams, number: int, batch_size: int = 7) -> list[int]:
    return [streams[index] for index in range(number * batch_size, (number + 1) * batch_size)]


def settled(streams: Streams, workers: int = 3) -> None:
    sums: dict[str, Any] = {
        name: torch.from_numpy(told) for worker in range(workers) for name, told in streams.carried(worker).items()
    }
    sums["loss"] = 2.5
    streams.settle(sums)
    assert sums == {"loss": 2.5}


def test_each_worker_of_a_step_has_a_stream_that_goes_on_and_begins_again() -> None:
    streams = dealt(lambda worker, _: Counting(worker))

    assert step(streams, 0) == [0, 1, 1000, 1001, 2000, 2001, 2002]
    settled(streams)
    assert step(streams, 1) == [2, 3, 1002, 1003, 2003, 2004, 2100]
    settled(streams)
    assert step(streams, 2) == [4, 100, 1004, 1100, 2101, 2102, 2103]


def test_a_step_that_comes_again_and_another_process_read_the_same() -> None:
    streams = dealt(lambda worker, _: Counting(worker))
    step(streams, 0)
    settled(streams)
    first = step(streams, 1)

    assert step(streams, 1) == first  # it was not exchanged
    other = dealt(lambda worker, _: Counting(worker))
    other.load_state_dict(streams.state_dict())
    assert [other[index] for index in (9, 10)] == first[2:4]  # one stream alone
    assert step(other, 1) == first


def test_positions_of_any_length_survive_as_numbers() -> None:
    class Verbose(Counting):
        def state_dict(self) -> dict[str, Any]:
            return {"at": self.at, "shards": ["größer-" * self.at], "none": None, "big": 2**60}

    streams = dealt(lambda worker, _: Verbose(worker, length=50))
    for number in range(12):
        step(streams, number)
        settled(streams)
    other = dealt(lambda worker, _: Verbose(worker, length=50))
    other.load_state_dict(streams.state_dict())

    assert step(other, 12) == step(streams, 12)


def test_a_position_that_is_not_known_is_refused() -> None:
    streams = dealt(lambda worker, _: Counting(worker))
    with pytest.raises(StepError, match="its position is known at 0"):
        step(streams, 1)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda worker, _: Buffered(worker, length=20), "does not go on where its state_dict says"),
        (lambda worker, _: OfHuggingFace(worker, length=20), "does not go on where its state_dict says"),
        (lambda worker, _: [1, 2, 3], "without an iterator, state_dict or load_state_dict"),
        (lambda worker, _: Counting(worker, length=0), "gives no examples"),
    ],
)
def test_what_cannot_go_on_exactly_is_refused(make: Any, match: str) -> None:
    def begin() -> None:
        streams = dealt(make)
        streams.check()
        step(streams, 0)

    with pytest.raises((ConfigError, StepError), match=match):
        begin()


def test_a_state_that_is_no_plain_value_is_refused() -> None:
    class Tensors(Counting):
        def state_dict(self) -> dict[str, Any]:
            return {"at": torch.tensor(self.at)}

    with pytest.raises(ConfigError, match="has a state that is not plain"):
        dealt(lambda worker, _: Tensors(worker)).check()


def test_lines_are_read_by_their_bytes(tmp_path: Path) -> None:
    for number, text in enumerate(["a\nbb\n", "ccc\r\ndd\n", "e"]):
        (tmp_path / f"{number}.txt").write_bytes(text.encode())
    files = [str(file) for file in sorted(tmp_path.iterdir())]
    streams = Streams.lines(files, bytes.decode)
    streams.assign((1,))

    assert [streams[index] for index in range(7)] == ["a", "bb", "ccc", "dd", "e", "a", "bb"]
    streams = Streams.lines(files, bytes.decode)
    streams.assign((1, 1, 1, 1))
    with pytest.raises(ConfigError, match="3 files for 4 virtual workers"):
        streams.check()
    with pytest.raises(ConfigError, match="is compressed"):
        Streams.lines(["lines.json.gz"])


def lines_in(folder: Path, *names: str) -> list[str]:
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_text("".join(f"{name[0]}{number}\n" for number in range(9)))
    return [str(file) for file in folder.iterdir()]


def train_on(url: Path, streams: Streams, until: int | None = None) -> list[str]:
    """The examples read; the run is interrupted after `until` steps."""
    model = torch.nn.Linear(1, 1)
    read: list[str] = []
    run = elastic.Run(url, model=model, optimizer=torch.optim.SGD(model.parameters()), dataset=streams, batch_size=6,
                      virtual_workers=3, steps=4, save_every=1, collate_fn=list)  # fmt: skip
    with suppress(KeyboardInterrupt), run:
        for batch in run.batches():
            read += batch
            model(torch.ones(1)).mean().backward()
            (optimizer,) = run.optimizers.values()
            optimizer.step()
            if run.step_index == until:
                raise KeyboardInterrupt
    return read


def test_lines_of_other_files_are_no_continuation(tmp_path: Path) -> None:
    """A file that was added before a restart moves all others to other workers: a position (file, byte) would point
    into another file, and its lines be lost or repeated."""
    files = lines_in(tmp_path / "data", "b", "c", "d")
    train_on(tmp_path / "run", Streams.lines(files, bytes.decode), until=2)
    more = lines_in(tmp_path / "data", "a")

    with pytest.raises(IdentityMismatch, match=r"dataset\.files: 4 here, 3 there"):
        train_on(tmp_path / "run", Streams.lines(more, bytes.decode))
    (tmp_path / "data" / "b").rename(tmp_path / "data" / "e")
    with pytest.raises(IdentityMismatch, match=r"dataset\.names and sizes"):
        train_on(tmp_path / "run", Streams.lines(lines_in(tmp_path / "data")[:3], bytes.decode))


def test_lines_that_lie_elsewhere_are_the_same_lines(tmp_path: Path) -> None:
    here, there = (lines_in(tmp_path / name, "b", "c", "d") for name in ("here", "there"))
    whole = train_on(tmp_path / "whole", Streams.lines(here, bytes.decode))
    train_on(tmp_path / "run", Streams.lines(here, bytes.decode), until=2)  # of which the first is saved

    assert sorted(whole) == [f"{name}{number}" for name in "bcd" for number in range(8)]
    assert train_on(tmp_path / "run", Streams.lines(there, bytes.decode)) == whole[6:]


def test_streams_of_ones_own_may_say_what_they_are_made_of(tmp_path: Path) -> None:
    def make(worker: int, _: int) -> Counting:
        return Counting(worker, length=50)

    train_on(tmp_path / "run", Streams(make, identity=lambda: {"revision": 1}), until=2)
    with pytest.raises(IdentityMismatch, match=r"dataset\.revision: 2 here, 1 there"):
        train_on(tmp_path / "run", Streams(make, identity=lambda: {"revision": 2}))


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"epochs": 2}, "streams have no length"),
        ({"num_workers": 2}, "read in the training process"),
        ({"order": elastic.orders.Sequential()}, "come in their own"),
        ({"extra": {"streams": Counting(0)}}, "another name"),
    ],
)
def test_a_run_of_streams_takes_what_goes_with_them(tmp_path: Path, given: dict[str, Any], match: str) -> None:
    model = torch.nn.Linear(1, 1)
    with pytest.raises(ConfigError, match=match):
        elastic.Run(
            tmp_path,
            model=model,
            optimizer=torch.optim.SGD(model.parameters()),
            dataset=Streams(lambda worker, _: Counting(worker)),
            batch_size=6,
            virtual_workers=3,
            **{"steps": 4, **given},
        )
