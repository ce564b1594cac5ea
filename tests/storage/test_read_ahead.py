"""What one process has read ahead another takes from memory: the same state as from storage, whatever lies there."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import count

import pytest
import torch

from elastic_checkpoint import Checkpointer, digest
from elastic_checkpoint.load import read_ahead as module
from elastic_checkpoint.load.read_ahead import planned, read_ahead, spool_into
from elastic_checkpoint.load.spool import Range, Spool, new_spool
from elastic_checkpoint.storage import open_storage
from tests.kit.s3 import S3Server
from tests.kit.traffic import watched

MIB = 2**20
Make = Callable[..., Checkpointer]

_number = count()


@pytest.fixture
def descriptor() -> Iterator[int]:
    made = new_spool()
    yield made
    os.close(made)


@pytest.fixture
def url() -> str:
    return f"memory://ahead-{next(_number)}"


def test_what_is_planned_are_the_first_bytes_that_fit() -> None:
    objects = [("a", 10 * MIB), ("b", 3), ("c", 0), ("d", 5)]
    whole = [Range("a", 0, 4 * MIB), Range("a", 4 * MIB, 4 * MIB), Range("a", 8 * MIB, 2 * MIB)]
    whole += [Range("b", 0, 3), Range("d", 0, 5)]
    assert planned(objects, 10 * MIB + 8) == whole
    assert planned(objects, 10 * MIB + 7) == whole[:-1]
    assert planned(objects, 9 * MIB) == whole[:2]
    assert planned(objects, 0) == []


def test_nothing_that_was_read_ahead_is_asked_of_the_storage_again(
    s3: S3Server, checkpointer: Make, descriptor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Credentials are the environment's."""
    url = f"s3://runs/ahead-{next(_number)}"
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint_url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.secret)
    state = {"a": torch.randn(6 * MIB), "b": torch.randn(5 * MIB)}
    size = checkpointer(url, storage_options=s3.options, shard_bytes=32 * MIB).save(1, state).bytes
    with watched(url) as ahead:
        read_ahead(url, Spool(descriptor))
    spool = Spool(descriptor)
    with watched(url) as traffic:
        found = checkpointer(url, storage_options=s3.options).read(spool=spool)
    assert ahead.got >= size
    assert traffic.requests["GET data"] == 0
    assert traffic.requests["LIST data"] == 1  # that all is there, the storage says
    assert spool.taken == size
    assert not spool.is_over  # nobody had to take over
    assert digest(found.tree) == digest(state)


def test_what_was_not_read_ahead_comes_from_storage(
    url: str, checkpointer: Make, descriptor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the memory holds a part of it, and where the reader is ahead."""
    state = {"a": torch.randn(6 * MIB), "b": torch.randn(5 * MIB)}
    runs = checkpointer(url, shard_bytes=32 * MIB)
    runs.save(1, state)
    monkeypatch.setattr(module, "free_bytes", lambda: 4 * 17 * MIB)
    read_ahead(url, Spool(descriptor))
    spool = Spool(descriptor)
    assert digest(runs.read(spool=spool).tree) == digest(state)
    assert spool.taken == 16 * MIB
    assert spool.is_over

    assert digest(runs.read(spool=spool).tree) == digest(state)  # nothing is given out twice
    assert spool.taken == 16 * MIB


def test_stretches_in_the_midst_are_filled_from_storage(descriptor: int, url: str) -> None:
    data = bytes(range(100))
    storage = open_storage(url)
    storage.put("data/x", data)
    spool = Spool(descriptor)
    spool.begin([Range("data/x", start, 10) for start in range(0, 60, 10)])
    for number in (0, 2, 3):
        spool.put(number, data[10 * number : 10 * number + 10])
    target = bytearray(100)
    assert Spool(descriptor).take("data/x", memoryview(target)) == [(10, 20), (40, 100)]
    target = bytearray(100)
    assert spool_into(Spool(descriptor), storage, "data/x", memoryview(target)) == 100
    assert target == data

    storage.put("data/x", data[:70])
    assert spool_into(Spool(descriptor), storage, "data/x", memoryview(target)) == 70  # which its reader finds damaged


def test_a_newer_checkpoint_is_the_one_that_is_loaded(url: str, checkpointer: Make, descriptor: int) -> None:
    older, newer = {"a": torch.randn(MIB)}, {"a": torch.randn(MIB)}
    runs = checkpointer(url)
    runs.save(1, older)
    read_ahead(url, Spool(descriptor))
    runs.save(2, newer)
    spool = Spool(descriptor)
    found = runs.read(spool=spool)
    assert (found.step, digest(found.tree), spool.taken) == (2, digest(newer), 0)


class Damaged(Spool):
    def put(self, number: int, data: bytes) -> None:
        super().put(number, bytes(len(data)))


def test_wrong_bytes_are_not_believed_and_cost_a_second_read(url: str, checkpointer: Make, descriptor: int) -> None:
    state = {"a": torch.randn(MIB)}
    said: list[str] = []
    runs = checkpointer(url, log=said.append)
    size = runs.save(1, state).bytes
    read_ahead(url, Damaged(descriptor))
    spool = Spool(descriptor)
    assert digest(runs.read(spool=spool).tree) == digest(state)
    assert spool.taken == size
    assert said == []  # none was passed over


def test_its_end_frees_the_memory_for_all_who_have_it_open(url: str, checkpointer: Make, descriptor: int) -> None:
    runs = checkpointer(url)
    runs.save(1, {"a": torch.randn(MIB)})
    reader, taker = Spool(descriptor), Spool(os.dup(descriptor))
    read_ahead(url, reader)
    assert os.fstat(descriptor).st_blocks * 512 > 4 * MIB
    taker.end()
    taker.end()
    assert reader.is_over
    assert os.fstat(descriptor).st_blocks * 512 <= 4096
    with pytest.raises(PermissionError):
        reader.put(0, b"x")
    with pytest.raises(PermissionError):
        reader.begin([Range("data/x", 0, 10)])
    assert Spool(descriptor).take("data/x", memoryview(bytearray(3))) == [(0, 3)]
    os.close(taker._fd)


def test_where_somebody_takes_over_no_more_is_read(url: str, checkpointer: Make, descriptor: int) -> None:
    runs = checkpointer(url)
    runs.save(1, {"a": torch.randn(MIB)})
    spool = Spool(descriptor)
    spool.take_over()
    read_ahead(url, Spool(descriptor))
    runs.read(spool=spool)
    assert spool.taken == 0
