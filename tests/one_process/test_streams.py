"""Streams: which one gives which example, where each stands, and what is refused."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import elastic
from elastic.data.data_plan import share_sizes
from elastic.data.file_streams import Samples
from elastic.data.records import RecordDataset
from elastic.data.streams import Streams
from elastic.errors import ConfigError, DataFileError, IdentityMismatch, StepError
from elastic_checkpoint import linux
from tests.kit.arguments import grouped
from tests.kit.stream_runs import train_on


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
    """As it is called in Hugging Face's datasets; test_hugging_face.py has the real ones."""


class OfHuggingFace(Counting):
    """What `shuffle(buffer_size=…)` and a `map` behind it leave."""

    _ex_iterable = type("MappedExamplesIterable", (), {"ex_iterable": BufferShuffledExamplesIterable()})()


class Interleaved(Counting):
    """Several of such, by `interleave_datasets`."""

    _ex_iterable = type("Mixed", (), {"ex_iterables": [object(), OfHuggingFace._ex_iterable]})()


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


def test_a_stream_that_another_worker_reads_now_is_closed_here(tmp_path: Path) -> None:
    """A survivor goes through views without end, and in each of them it has other streams than before."""
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text("line\n" * 9)

    def opened() -> list[str]:
        return sorted(link for link in linux.descriptors().values() if link.startswith(str(tmp_path)))

    files = [str(file) for file in sorted(tmp_path.iterdir())]
    here, there = Streams.lines(files, str), Streams.lines(files, str)
    for streams in (here, there):
        streams.assign(share_sizes(7, 7, 3))
    step(here, 0)
    settled(here)
    there.load_state_dict(here.state_dict())
    assert opened() == files

    told: dict[str, Any] = {}
    for streams, worker, indices in ((here, 0, (7, 8)), (there, 1, (9, 10)), (there, 2, (11, 12, 13))):
        assert [streams[index] for index in indices]
        told |= {name: torch.from_numpy(numbers) for name, numbers in streams.carried(worker).items()}
    here.settle(told)

    assert opened() == files  # each once: two of them by the other worker
    assert [here[index] for index in (14, 15)]  # and its own goes on


def test_a_position_that_is_not_known_is_refused() -> None:
    streams = dealt(lambda worker, _: Counting(worker))
    with pytest.raises(StepError, match="its position is known at 0"):
        step(streams, 1)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda worker, _: Buffered(worker, length=20), "does not go on where its state_dict says"),
        (lambda worker, _: OfHuggingFace(worker, length=20), "does not go on where its state_dict says"),
        (lambda worker, _: Interleaved(worker, length=20), "does not go on where its state_dict says"),
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


def test_each_stream_is_looked_at_as_it_is_begun() -> None:
    """Before the run the first one alone is read: others may be of another kind, and none of their examples trains."""

    def make(worker: int, _: int) -> Counting:
        return OfHuggingFace(worker, length=20) if worker == 1 else Counting(worker, length=20)

    streams = dealt(make)
    streams.check()
    assert streams[0] == 0
    with pytest.raises(ConfigError, match=r"stream 1 \(OfHuggingFace\) does not go on where its state_dict says"):
        streams[2]


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


def archive(path: Path, files: list[tuple[str, bytes]], format: int = tarfile.GNU_FORMAT) -> str:
    with tarfile.open(path, "w", format=format) as packed:
        for name, data in files:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            packed.addfile(member, io.BytesIO(data))
    return str(path)


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_samples_of_archives_go_on_from_any_of_them(tmp_path: Path, format: int) -> None:
    """What files of one name have is one sample, as where any sample is read by its number. None is read before the one
    that comes next: an archive is half a gigabyte."""
    long = "x" * 90 if format == tarfile.USTAR_FORMAT else "ü" * 200
    first = [("a.jpg", b"J" * 1000), ("a.cls", b"7"), (f"{long}.jpg", b"K" * 512), (f"{long}.seg.png", b"")]
    urls = [
        archive(tmp_path / "0.tar", [*first, ("b.c/d.jpg", b"L" * 513)], format),
        archive(tmp_path / "1.tar", [], format),
        archive(tmp_path / "2.tar", [("e.jpg", b"M")], format),
    ]
    whole = [dataset[i] for dataset in map(RecordDataset.tar, (urls[0], urls[2])) for i in range(len(dataset))]
    assert list(Samples(urls, dict, None)) == whole
    one = Samples(urls, dict, None)
    for number, _ in enumerate(iter(one), start=1):
        other = Samples(urls, dict, None)
        other.load_state_dict(json.loads(json.dumps(one.state_dict())))
        assert list(other) == whole[number:]

    streams = Streams.tar(urls, lambda sample: sample["__key__"])
    streams.assign((1,))
    streams.check()
    assert [streams[index] for index in range(6)] == ["a", long, "b.c/d", "e", "a", long]
    with pytest.raises(ConfigError, match="is compressed"):
        Streams.tar(["shard.tgz"])


def test_a_sample_is_read_from_its_own_bytes_on(tmp_path: Path) -> None:
    """By position, and never by skipping through: what lies before may be gone."""
    url = archive(tmp_path / "0.tar", [(f"{number}.txt", b"x" * 600) for number in range(4)])
    one = Samples([url], dict, None)
    reading = iter(one)
    next(reading), next(reading)
    at = one.state_dict()["offset"]
    with open(url, "r+b") as file:
        file.write(b"?" * at)

    other = Samples([url], dict, None)
    other.load_state_dict(one.state_dict())
    assert [sample["__key__"] for sample in other] == ["2", "3"]


def test_an_archive_that_is_cut_short_is_found_out(tmp_path: Path) -> None:
    """Between two files as well, where tar itself sees nothing wrong: the samples behind would be lost unseen."""
    url = archive(tmp_path / "0.tar", [("a.txt", b"1"), ("b.txt", b"2")])
    whole = Path(url).read_bytes()
    for at in (700, 1024, 1536, 2048):
        Path(url).write_bytes(whole[:at])
        with pytest.raises(DataFileError, match=r"0\.tar: it is no whole tar"):
            list(Samples([url], dict, None))


def test_a_run_goes_on_in_the_middle_of_archives(tmp_path: Path) -> None:
    urls = [
        archive(tmp_path / f"{shard}.tar", [(f"{shard}{number}.txt", b"x" * 99 * number) for number in range(9)])
        for shard in "bcd"
    ]

    def keys(sample: dict[str, Any]) -> str:
        return str(sample["__key__"])

    whole = train_on(tmp_path / "whole", Streams.tar(urls, keys))
    train_on(tmp_path / "run", Streams.tar(urls, keys), until=2)  # of which the first is saved
    assert sorted(whole) == [f"{shard}{number}" for shard in "bcd" for number in range(8)]
    assert train_on(tmp_path / "run", Streams.tar(urls, keys)) == whole[6:]


def lines_in(folder: Path, *names: str) -> list[str]:
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_text("".join(f"{name[0]}{number}\n" for number in range(9)))
    return [str(file) for file in folder.iterdir()]


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
            **grouped({"steps": 4, **given}),
        )
