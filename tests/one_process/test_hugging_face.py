"""Streams of Hugging Face's datasets, with the real package: every example once, by position, and what is refused."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from elastic.data.data_plan import share_sizes
from elastic.data.streams import Streams
from elastic.errors import ConfigError, IdentityMismatch
from tests.kit.stream_runs import train_on

datasets = pytest.importorskip("datasets", reason="needs the extra: pip install -e '.[datasets]'")
SHARDS, EXAMPLES = 7, 12


def generated(shards: list[int]) -> Iterator[dict[str, str]]:
    for shard in shards:
        for number in range(EXAMPLES):
            yield {"id": f"{shard}-{number}"}


def of_generator() -> Any:
    return datasets.IterableDataset.from_generator(generated, gen_kwargs={"shards": [*range(SHARDS)]})


def of_files(folder: Path) -> Any:
    folder.mkdir(exist_ok=True)
    for shard in range(SHARDS):
        lines = [json.dumps(example) + "\n" for example in generated([shard])]
        (folder / f"{shard}.jsonl").write_text("".join(lines))
    files = sorted(map(str, folder.glob("*.jsonl")))
    return datasets.load_dataset("json", data_files=files, split="train", streaming=True, cache_dir=folder / "cache")


def of_rows() -> Any:
    table = datasets.Dataset.from_list(list(generated([*range(SHARDS)])))
    return table.to_iterable_dataset(num_shards=SHARDS)


def changed(dataset: Any) -> Any:
    batched = dataset.map(lambda batch: {"id": [f"{one}!" for one in batch["id"]]}, batched=True, batch_size=5)
    return batched.filter(lambda example: not example["id"].endswith("-3!"))


def mixed(dataset: Any) -> Any:
    parts = [dataset, dataset.map(lambda example: {"id": f"{example['id']}?"})]
    return datasets.interleave_datasets(parts, probabilities=[0.3, 0.7], seed=2, stopping_strategy="all_exhausted")


def ids(streams: Streams, step: int, sizes: tuple[int, ...]) -> list[str]:
    batch = sum(sizes)
    return [streams[index]["id"] for index in range(step * batch, (step + 1) * batch)]


def begun(streams: Streams, workers: int) -> list[Any]:
    streams.check()
    return [streams[worker] for worker in range(workers)]


@pytest.fixture(params=["generator", "files", "rows", "changed", "mixed", "shards in turn", "shards"])
def dataset(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    makes: dict[str, Callable[[], Any]] = {
        "generator": of_generator,
        "files": lambda: of_files(tmp_path / "data"),
        "rows": of_rows,
        "changed": lambda: changed(of_files(tmp_path / "data")),
        "mixed": lambda: mixed(of_generator()),
        "shards in turn": lambda: of_files(tmp_path / "data").shuffle(seed=3, buffer_size=1),
        "shards": lambda: of_generator().shuffle(seed=3, buffer_size=1, max_buffer_input_shards=1),
    }
    return makes[request.param]()


def test_streams_go_on_by_position_wherever_they_are_cut(dataset: Any) -> None:
    """As transfers, checkpoints and other workers have the positions: as plain values."""
    sizes, draw = share_sizes(7, 7, 3), random.Random(4)
    streams = Streams.hugging_face(dataset)
    streams.assign(sizes)
    streams.check()
    alone: list[list[str]] = []
    positions = [streams.state_dict()]
    for step in range(40):  # each stream begins again some times
        alone.append(ids(streams, step, sizes))
        streams.settle({name: told for worker in range(3) for name, told in streams.carried(worker).items()})
        positions.append(streams.state_dict())

    for begin in draw.sample(range(1, 38), 8):
        others = Streams.hugging_face(dataset)
        others.assign(sizes)
        others.load_state_dict(json.loads(json.dumps(positions[begin])))
        assert [ids(others, step, sizes) for step in (begin, begin + 1)] == alone[begin : begin + 2]


@pytest.mark.parametrize("kind", ["generator", "files", "rows"])
def test_every_example_comes_once(tmp_path: Path, kind: str) -> None:
    dataset = {"generator": of_generator, "files": lambda: of_files(tmp_path), "rows": of_rows}[kind]()
    streams = Streams.hugging_face(dataset)
    streams.assign((1,) * SHARDS)
    read = [example for step in range(EXAMPLES) for example in ids(streams, step, (1,) * SHARDS)]
    assert Counter(read) == Counter(example["id"] for example in generated([*range(SHARDS)]))


def test_a_run_goes_on_where_it_stood(tmp_path: Path) -> None:
    dataset = of_files(tmp_path / "data")
    whole = train_on(tmp_path / "whole", Streams.hugging_face(dataset))
    train_on(tmp_path / "run", Streams.hugging_face(dataset), until=2)  # of which the first is saved
    assert train_on(tmp_path / "run", Streams.hugging_face(dataset)) == whole[6:]

    (tmp_path / "data" / "0.jsonl").unlink()
    files = sorted(map(str, (tmp_path / "data").glob("*.jsonl")))
    fewer = datasets.load_dataset("json", data_files=files, split="train", streaming=True, cache_dir=tmp_path / "cache")
    with pytest.raises(IdentityMismatch, match=r"dataset\.shards: 6 here, 7 there"):
        train_on(tmp_path / "run", Streams.hugging_face(fewer))


def test_shards_that_are_shuffled_come_in_another_order_each_time() -> None:
    """The dataset is told for which time it begins, and a stream that goes on is told so as well."""
    streams = Streams.hugging_face(of_generator().shuffle(seed=3, buffer_size=1))
    streams.assign((EXAMPLES * SHARDS,))
    streams.check()
    turns = [ids(streams, turn, (EXAMPLES * SHARDS,)) for turn in range(2)]
    assert turns[0] != turns[1]
    assert sorted(turns[0]) == sorted(turns[1])


@pytest.mark.parametrize("how", ["alone", "under a map", "in a mix", "in a mix of a mix", "in a chain"])
def test_a_shuffle_buffer_is_refused_by_name(how: str) -> None:
    shuffled, plain = of_generator().shuffle(seed=1, buffer_size=10), of_generator()
    mix = datasets.interleave_datasets
    dataset = {
        "alone": lambda: shuffled,
        "under a map": lambda: shuffled.map(lambda example: example).take(30),
        "in a mix": lambda: mix([plain, shuffled]),
        "in a mix of a mix": lambda: mix([plain, mix([plain, shuffled], probabilities=[0.5, 0.5], seed=1)]),
        "in a chain": lambda: datasets.concatenate_datasets([plain, shuffled]),
    }[how]()
    with pytest.raises(ConfigError, match=r"shuffle\(buffer_size=…\) keeps examples in a buffer"):
        Streams.hugging_face(dataset)
    streams = Streams(lambda worker, workers: dataset.shard(workers, worker))
    streams.assign((1, 1))
    with pytest.raises(ConfigError, match=r"shuffle\(buffer_size=…\) keeps examples in a buffer"):
        begun(streams, workers=2)  # in a chain, the second worker's part alone has such a buffer


def test_what_is_no_whole_stream_is_refused(tmp_path: Path) -> None:
    from datasets.distributed import split_dataset_by_node

    for given, said in (
        (datasets.Dataset.from_dict({"a": [1]}), "the Dataset has a length"),
        (datasets.IterableDatasetDict({"train": of_generator()}), "the IterableDatasetDict is no IterableDataset"),
        (split_dataset_by_node(of_generator(), rank=0, world_size=2), "is one node's part"),
    ):
        with pytest.raises(ConfigError, match=said):
            Streams.hugging_face(given)
    streams = Streams.hugging_face(of_generator())
    streams.assign((1,) * (SHARDS + 1))
    with pytest.raises(ConfigError, match="7 shards for 8 virtual workers"):
        streams.check()


def test_other_files_and_other_stages_are_another_identity(tmp_path: Path) -> None:
    """With the same number of shards. Where the files lie is none of it: another machine has them elsewhere."""

    def identity(folder: str, *, last: int = SHARDS - 1, change: Any = lambda dataset: dataset) -> Any:
        of_files(tmp_path / folder)
        if last != SHARDS - 1:
            (tmp_path / folder / f"{SHARDS - 1}.jsonl").rename(tmp_path / folder / f"{last}.jsonl")
        files = sorted(map(str, (tmp_path / folder).glob("*.jsonl")))
        cache = tmp_path / folder / "cache"
        dataset = datasets.load_dataset("json", data_files=files, split="train", streaming=True, cache_dir=cache)
        return Streams.hugging_face(change(dataset)).data_identity()

    assert identity("one") == identity("two")
    assert identity("one") != identity("three", last=9)
    assert identity("one") != identity("one", change=changed)
