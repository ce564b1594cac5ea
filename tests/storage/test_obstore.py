"""S3 through obstore: what the contract of storages does not ask, and a run that uses it, with its writer process."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from elastic_checkpoint import Checkpointer, CheckpointError, StorageError
from elastic_checkpoint.cli import main
from elastic_checkpoint.storage import Missing, delete_many, open_storage
from elastic_checkpoint.storage.obstore import ObstoreStorage
from tests.kit.s3 import S3Server

Make = Callable[..., Checkpointer]

pytest.importorskip("obstore", reason="needs the package obstore: pip install -e '.[obstore]'")


def of(server: S3Server) -> dict[str, Any]:
    return {**server.options, "client": "obstore"}


@pytest.mark.usefixtures("nothing_is_left")
def test_a_run_saves_through_it_and_any_other_client_reads_it(rgw: S3Server, checkpointer: Make) -> None:
    """In the foreground and through the writer process, which opens the storage by the same options."""
    url = "s3://runs/obstore"
    state: dict[str, Any] = {"w": torch.arange(9_000_000.0), "epoch": 1}  # more than one upload's part
    runs = checkpointer(url, storage_options=of(rgw), keep=2, shard_bytes=2**26)
    for step in (1, 2):
        runs.save(step, state)
    for step in (3, 4):
        runs.save(step, state, blocking=False).wait()
    runs.close()
    other = checkpointer(url, storage_options=rgw.options)
    assert [commit.step for commit in other.list()] == [4, 3], "older ones were swept"
    assert all(one.ok for one in other.verify())
    here: dict[str, Any] = {"w": torch.zeros(9_000_000), "epoch": 0}
    assert checkpointer(url, storage_options=of(rgw)).load(here) == 4
    assert torch.equal(here["w"], state["w"])


def test_a_forked_child_of_a_process_that_used_it_reads_and_writes(rgw: S3Server) -> None:
    """Its threads are not in the child, where the first request would wait for ever."""
    storage = open_storage("s3://runs/forked-obstore", of(rgw), retry_s=5)
    storage.put("a", b"parent's")
    child = os.fork()
    if not child:
        ok = False
        try:
            storage.put("b", b"child's")
            storage.put_new("c", b"new")
            other = open_storage("s3://runs/forked-obstore", of(rgw), retry_s=5)
            read = storage.get("a"), storage.get("a", 2, 3), other.list(""), other.size("b")
            ok = read == (b"parent's", b"ren", {"a": 8, "b": 7, "c": 3}, 7)
            storage.delete("c")
        finally:
            os._exit(0 if ok else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (storage.get("b"), storage.list("")) == (b"child's", {"a": 8, "b": 7})
    storage.close()


def test_errors_say_what_the_server_said_and_no_secret(rgw: S3Server) -> None:
    absent = open_storage("s3://no-such-bucket/run", of(rgw), retry_s=5)
    for act in (lambda: absent.list(""), lambda: absent.put("a", b"1"), lambda: absent.get("a")):
        with pytest.raises(StorageError, match="create the bucket, or correct the URL") as failed:
            act()
        assert failed.value.attempts == 1
    wrong = open_storage("s3://runs/x", {**of(rgw), "secret": "another-secret-word"}, retry_s=5)
    with pytest.raises(StorageError, match="check the key and the secret") as failed:
        wrong.put("a", b"1")
    assert "another-secret-word" not in str(failed.value)
    assert failed.value.attempts == 1

    gone = open_storage("s3://runs/x", {**of(rgw), "endpoint_url": "http://127.0.0.1:9"}, retry_s=0.5)
    with pytest.raises(StorageError, match=r"failed \d+ times within"):
        gone.get("a")


@pytest.mark.parametrize(
    ("url", "options", "says"),
    [
        ("memory://x", {}, "this is memory://"),
        ("s3://bucket/run%20x", {}, "characters"),
        ("s3://bucket/run", {"use_ssl": False, "key": "k"}, "s3fs's own: use_ssl"),
        ("s3://bucket/run", {"client_kwargs": {"verify": False}}, "client_kwargs.verify"),
    ],
)
def test_what_it_cannot_carry_is_refused_before_anything_is_contacted(
    url: str, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(CheckpointError, match=says):
        Checkpointer(url, storage_options={**options, "client": "obstore"})


def test_the_command_takes_it_as_an_option(rgw: S3Server, checkpointer: Make, tmp_path: Path) -> None:
    checkpointer("s3://runs/by-command", storage_options=of(rgw)).save(1, {"w": torch.ones(2)})
    options = [f"--storage-option={key}={value}" for key, value in of(rgw).items()]
    assert main(["verify", "s3://runs/by-command", *options]) == 0


def test_what_is_refused_among_many_is_an_error(rgw: S3Server) -> None:
    storage = ObstoreStorage("s3://runs/many", rgw.options)
    with pytest.raises(ValueError, match="not a key"):
        delete_many(storage, ["a", "../b"])
    with pytest.raises(Missing):
        storage.size("absent")
    storage.close()
