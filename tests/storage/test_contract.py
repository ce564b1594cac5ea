"""Every storage keeps the contract of elastic_checkpoint/storage/base.py, line by line."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import fsspec
import pytest
from fsspec.asyn import AsyncFileSystem

from elastic_checkpoint.storage import (
    AlreadyThere,
    Missing,
    Storage,
    delete_many,
    get_into,
    open_storage,
    version,
    written_at,
)

MIB = 2**20


@pytest.fixture
def storage(location: tuple[str, dict[str, Any]]) -> Iterator[Storage]:
    opened = open_storage(location[0], location[1], retry_s=60)  # a busy machine's server lets connections wait
    yield opened
    opened.close()


def test_what_was_put_is_read_back_whole_and_in_part(storage: Storage) -> None:
    storage.put_new("a/b/one", b"0123456789")

    assert storage.get("a/b/one") == b"0123456789"
    assert storage.get("a/b/one", 3) == b"3456789"
    assert storage.get("a/b/one", 3, 4) == b"3456"
    assert storage.get("a/b/one", 8, 100) == b"89"
    assert storage.get("a/b/one", 3, 0) == b""
    assert storage.get("a/b/one", 10, 5) == storage.get("a/b/one", 11, 5) == b""
    assert storage.size("a/b/one") == 10


def test_large_objects_are_read_whole_and_in_part(storage: Storage) -> None:
    """Some storages read them in several requests."""
    data = os.urandom(20 * MIB + 3)
    storage.put("large", data)

    assert storage.get("large") == data
    assert storage.get("large", 0, len(data)) == data
    assert storage.get("large", 0, len(data) + 1) == data
    assert storage.get("large", 5, 100 * MIB) == data[5:]
    assert storage.get("large", MIB - 1, 9 * MIB) == data[MIB - 1 : 10 * MIB - 1]
    assert storage.get("large", len(data) - 3, 9 * MIB) == data[-3:]
    with pytest.raises(Missing):
        storage.get("absent", 0, 9 * MIB)


@pytest.mark.parametrize("size", [8 * MIB, 16 * MIB, 16 * MIB + 1])
def test_an_object_that_ends_with_a_range_or_just_after_it_is_read_whole(storage: Storage, size: int) -> None:
    """Some storages answer a range behind the end with an error of its own."""
    data = os.urandom(size)
    storage.put("large", data)
    assert storage.get("large") == storage.get("large", 0, size) == storage.get("large", 0, size + 1) == data
    assert storage.get("large", 0, size + 9 * MIB) == data
    assert storage.get("large", 8 * MIB) == data[8 * MIB :]
    target = memoryview(bytearray(size))
    assert get_into(storage, "large", target) == size
    assert target == data


def test_many_are_removed_at_once_also_where_some_are_absent(storage: Storage) -> None:
    names = ["data/a b", "data/x+y=z,@1", "data/c/d", "data/e"]
    for name in names:
        storage.put(name, b"1")
    storage.put("data/stays", b"1")
    delete_many(storage, [*names, "data/absent", "absent/too"])
    delete_many(storage, [])
    assert list(storage.list("")) == ["data/stays"]


def test_the_second_to_create_a_key_is_told_so_and_changes_nothing(storage: Storage) -> None:
    storage.put_new("claims/1", b"first")
    with pytest.raises(AlreadyThere):
        storage.put_new("claims/1", b"second")

    assert storage.get("claims/1") == b"first"


def test_creating_with_the_very_bytes_that_are_there_is_success(storage: Storage) -> None:
    """A put whose answer was lost is tried again and finds its own bytes: the caller did win."""
    storage.put_new("claims/1", b"mine")
    storage.put_new("claims/1", b"mine")


def test_of_many_who_create_one_key_at_once_one_succeeds(storage: Storage) -> None:
    assert storage.exclusive()
    winners, start = [], threading.Barrier(8)

    def create(number: int) -> None:
        start.wait(timeout=30)
        try:
            storage.put_new("claims/7", b"writer %d" % number)
        except AlreadyThere:
            return
        winners.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)

    assert len(winners) == 1
    assert storage.get("claims/7") == b"writer %d" % winners[0]


def test_put_writes_over_what_was_there(storage: Storage) -> None:
    storage.put("a/one", b"old and long")
    storage.put("a/one", bytearray(b"new"))
    assert storage.get("a/one") == b"new"
    storage.put("a/one", memoryview(b"newest"))
    assert storage.get("a/one") == b"newest"


def test_listing_is_recursive_sorted_with_sizes_and_never_stale(storage: Storage) -> None:
    assert storage.list("a") == {}
    storage.put("a/z", b"1")
    storage.put("a/b/c", b"22")
    storage.put("ab", b"333")
    assert list(storage.list("a").items()) == [("a/b/c", 2), ("a/z", 1)]
    assert list(storage.list("")) == ["a/b/c", "a/z", "ab"]

    storage.delete("a/z")
    assert storage.list("a") == {"a/b/c": 2}


def test_another_writer_is_seen_at_once(storage: Storage, location: tuple[str, dict[str, Any]]) -> None:
    """A cached listing would hide the newer claim that must stop us."""
    other = open_storage(location[0], location[1])
    assert storage.list("claims") == {}
    other.put_new("claims/1", b"x")
    assert storage.list("claims") == {"claims/1": 1}
    other.delete("claims/1")
    assert storage.list("claims") == {}
    other.close()


def test_what_is_absent_is_missing_and_may_be_deleted(storage: Storage) -> None:
    storage.put("a/one", b"1")
    for absent in ("a/two", "b/one", "a/one/deeper", "a"):
        with pytest.raises(Missing):
            storage.get(absent)
        with pytest.raises(Missing):
            storage.size(absent)
        if absent != "a":
            storage.delete(absent)
    assert storage.list("") == {"a/one": 1}


@pytest.mark.parametrize("key", ["", "/a", "a//b", "../a", "a/../b", "a/."])
def test_a_key_never_leads_out_of_the_run(storage: Storage, key: str) -> None:
    with pytest.raises(ValueError, match="not a key"):
        storage.get(key)
    with pytest.raises(ValueError, match="not a key"):
        storage.put_new(key, b"")


def test_probing_leaves_nothing_behind(storage: Storage) -> None:
    assert storage.exclusive()
    assert storage.list("") == {}


class WithoutRanges(AsyncFileSystem):  # type: ignore[misc]
    """A server that answers every request with all of the object."""

    protocol = "without-ranges"

    async def _info(self, path: str, **options: Any) -> dict[str, Any]:
        return {"name": path, "size": 20 * MIB, "type": "file"}

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        return bytes(range(256)) * (20 * MIB // 256)


def test_a_large_object_is_read_whole_from_a_server_without_ranges() -> None:
    fsspec.register_implementation("without-ranges", WithoutRanges, clobber=True)
    storage = open_storage("without-ranges://a/b")
    target = memoryview(bytearray(20 * MIB))
    assert get_into(storage, "large", target) == 20 * MIB
    assert target == storage.get("large") == bytes(range(256)) * (20 * MIB // 256)


def test_a_version_changes_with_what_is_written(storage: Storage) -> None:
    """Of as many bytes: an index of what was there before would give pieces of two lines for one."""
    storage.put("data", b"one\ntwo\n")
    first = version(storage, "data")
    assert version(storage, "data") == first
    time.sleep(1.1)  # S3 and others tell times in seconds, and entity tags
    storage.put("data", b"o\nnetwo\n")
    assert version(storage, "data") != first
    with pytest.raises(Missing):
        version(storage, "absent")


def test_the_storages_clock_is_told(storage: Storage) -> None:
    """All of these share this machine's. S3 and others tell times in seconds."""
    before = time.time()
    storage.put("data", b"x")
    written = written_at(storage, "data")
    assert written is not None
    assert before - 1 <= written <= time.time() + 1
    with pytest.raises(Missing):
        written_at(storage, "absent")
