"""Mosaic's MDS shards, as its own package wrote them: any sample by its number, and what is refused.

tests/kit/mds was written by the MDSWriter of mosaicml-streaming 0.13, with `size_limit=1500, hashes=["xxh64"]`, of the
samples below, whose columns are `ENCODINGS`. The package itself is no dependency: it wants the SDKs of all clouds.
"""

from __future__ import annotations

import json
import pickle
import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import torch

import elastic
from elastic import DataFileError, IdentityMismatch, MDSDataset

WRITTEN = Path(__file__).parents[1] / "kit" / "mds"
ENCODINGS = {
    "text": "str", "n": "int", "raw": "bytes", "tokens": "ndarray:int32:6", "image": "ndarray:uint8", "any": "ndarray",
    "f": "float32", "u": "uint16", "j": "json", "si": "str_int", "sf": "str_float", "sd": "str_decimal",
}  # fmt: skip
SAMPLES = 17


def sample(i: int) -> dict[str, Any]:
    return {
        "text": f"größe {i}",
        "n": -i * 10**12,
        "raw": bytes(range(i % 5)),
        "tokens": np.arange(i, i + 6, dtype=np.int32),
        "image": np.full((i % 3 + 1, 2), i, dtype=np.uint8),
        "any": np.linspace(0, 1, i % 4 + 1).reshape(1, -1),
        "f": np.float32(i / 4),
        "u": np.uint16(i),
        "j": {"a": [i, None]},
        "si": 10**25 + i,
        "sf": i / 7,
        "sd": Decimal("1.10") + i,
    }


def same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return bool(one.dtype == other.dtype and np.array_equal(one, other))
    return type(one) is type(other) and bool(one == other)


def copied(folder: Path) -> Path:
    return Path(shutil.copytree(WRITTEN, folder))


def told(folder: Path, **changed: Any) -> Path:
    """A copy whose index says something else of the first shard."""
    copied(folder)
    index = json.loads((folder / "index.json").read_text())
    index["shards"][0] |= changed
    (folder / "index.json").write_text(json.dumps(index))
    return folder


@pytest.mark.parametrize("base", ["folder", "memory"])
def test_every_sample_is_the_one_that_was_written(base: str) -> None:
    if base == "memory":
        for file in WRITTEN.iterdir():
            fsspec.filesystem("memory").pipe(f"/mds/{file.name}", file.read_bytes())
    dataset = MDSDataset(WRITTEN if base == "folder" else "memory://mds/")
    assert len(dataset) == SAMPLES
    for i in reversed(range(SAMPLES)):
        found, expected = dataset[i], sample(i)
        assert found.keys() == expected.keys() == ENCODINGS.keys()
        assert [name for name in found if not same(found[name], expected[name])] == []
    for i in (-1, SAMPLES):
        with pytest.raises(IndexError):
            dataset[i]
    found["tokens"] += 1  # as an augmentation does


def test_it_travels_to_processes_and_is_the_same_data_elsewhere(tmp_path: Path) -> None:
    dataset = MDSDataset(WRITTEN, transform=len)
    other = pickle.loads(pickle.dumps(dataset))  # noqa: S301
    assert (len(other), other[3]) == (SAMPLES, len(ENCODINGS))
    assert MDSDataset(copied(tmp_path / "copy")).data_identity() == dataset.data_identity()


def test_an_epoch_reads_each_sample_once_and_other_shards_are_refused(tmp_path: Path) -> None:
    def trained(data: Path) -> list[int]:
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters())
        dataset = MDSDataset(data, transform=lambda one: one["n"])
        run = elastic.Run(tmp_path / "run", model=model, optimizer=optimizer, dataset=dataset, batch_size=5,
                          virtual_workers=2, epochs=1, data=elastic.Data(collate_fn=list),
                          checks=elastic.Checks(cross_check=None))  # fmt: skip
        read: list[int] = []
        with run:
            for batch in run.batches():
                read += batch
                model(torch.ones(1)).mean().backward()
                optimizer.step()
        return read

    assert sorted(trained(WRITTEN)) == sorted(sample(i)["n"] for i in range(SAMPLES))
    other = copied(tmp_path / "other")
    shard = (other / "shard.00000.mds").read_bytes()
    (other / "shard.00000.mds").write_bytes(shard.replace("größe 2".encode(), "größe 9".encode()))
    with pytest.raises(IdentityMismatch, match=r"dataset\.digest"):
        trained(other)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"compression": "zstd"}, r"compressed \(zstd\)"),
        ({"format": "json"}, "its shards are json of version 2"),
        ({"version": 3}, "its shards are mds of version 3"),
        ({"column_encodings": ["pkl"] + ["str"] * 11}, "'any' is pkl, which is never read: a pickle runs"),
        ({"column_encodings": ["jpeg"] + ["str"] * 11}, "column 'any' is jpeg, which is not read here"),
        ({"column_encodings": ["ndarray:object"] + ["str"] * 11}, "column 'any' is ndarray:object, which is not read"),
        ({"column_names": []}, "it is no index of MDS shards"),
        ({"samples": -6}, "-6 is no number of bytes or samples"),
        ({"samples": 1e400}, "inf is no number of bytes or samples"),
        ({"column_sizes": [-1] * 12}, "-1 is no number of bytes or samples"),
        ({"raw_data": {"basename": "shard.00000.mds", "bytes": "9"}}, "'9' is no number of bytes or samples"),
        ({"raw_data": {"basename": "../shard.mds", "bytes": 9}}, "lies outside of the folder"),
        ({"raw_data": {"basename": "/etc/passwd", "bytes": 9}}, "lies outside of the folder"),
    ],
)
def test_what_is_not_read_is_refused_by_name(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    with pytest.raises(DataFileError, match=said):
        MDSDataset(told(tmp_path / "data", **changed))


@pytest.mark.parametrize(
    "index",
    [b"[]", b"{", b"[" * 100_000, b'{"shards": [{"samples": 1}]}', b'{"shards": []}', b'{"version": 2}'],
    ids=["list", "cut", "deep", "bare", "none", "older"],
)
def test_what_is_no_index_is_refused(tmp_path: Path, index: bytes) -> None:
    (tmp_path / "index.json").write_bytes(index)
    with pytest.raises(DataFileError, match=r"index\.json: (it is no index of MDS shards|there are no samples)"):
        MDSDataset(tmp_path)


def test_damage_is_named(tmp_path: Path) -> None:
    """A shard that is cut short or missing, one of another writing, and any byte of a sample's sizes or of an array's
    header that is another: an error with the file's name, or a value of the column, and nothing else."""
    with pytest.raises(DataFileError, match=r"shard\.00000\.mds: it has 1,486 bytes and 6 samples; index\.json says"):
        MDSDataset(told(tmp_path / "counts", samples=7))[0]
    data = copied(tmp_path / "data")
    shard = data / "shard.00000.mds"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1])
    with pytest.raises(DataFileError, match=r"shard\.00000\.mds: it has 1,485 bytes"):
        MDSDataset(data)[0]
    (data / "shard.00003.mds").unlink()
    with pytest.raises(DataFileError, match=r"shard\.00003\.mds: there is no such file"):
        MDSDataset(data)[SAMPLES - 1]

    refused = 0
    for at in range(4, len(whole), 7):
        shard.write_bytes(whole[:at] + b"\xff" + whole[at + 1 :])
        dataset = MDSDataset(data)
        for i in range(6):
            try:
                dataset[i]
            except DataFileError as error:
                assert "shard.00000.mds" in str(error)  # noqa: PT017
                refused += 1
    assert refused > 20
