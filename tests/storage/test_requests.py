"""How many requests a run makes of an S3 server: each is paid for, and takes 30 ms where the server is far away."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from elastic_checkpoint import Checkpointer, digest
from elastic_checkpoint.cli import main
from elastic_checkpoint.format.hashing import seal
from elastic_checkpoint.format.names import CommitId, claim_key, new_nonce
from elastic_checkpoint.load import stream
from elastic_checkpoint.load.stream import Stream
from elastic_checkpoint.runs.claim_record import Claim
from elastic_checkpoint.runs.history import read_history
from elastic_checkpoint.storage import open_storage
from elastic_checkpoint.storage.local import LocalStorage
from tests.kit.s3 import S3Server
from tests.kit.traffic import watched

MIB = 2**20
Make = Callable[..., Checkpointer]

_number = count()


@pytest.fixture
def run(any_s3: S3Server) -> tuple[str, dict[str, Any]]:
    return f"s3://runs/requests-{next(_number)}", any_s3.options


def test_every_byte_is_read_once_whoever_reads(run: tuple[str, dict[str, Any]], checkpointer: Make) -> None:
    """An object's end lies within a range, and a request that reaches beyond it is no reason to begin anew."""
    url, options = run
    state = {"a": torch.randn(6 * MIB), "b": torch.randn(5 * MIB)}
    runs = checkpointer(url, storage_options=options, shard_bytes=32 * MIB)
    size = runs.save(1, state).bytes

    def read_by(reader: Callable[[], object]) -> tuple[int, Counter[str]]:
        with watched(url) as traffic:
            reader()
        return traffic.got, traffic.requests

    whole = {"GET data": 3 + 4, "LIST data": 1}  # of 20 and 24 MiB and a header, in ranges of 8 MiB
    for reader in (runs.read, lambda: runs.load(state), runs.verify, lambda: Stream(runs._storage, runs.list()[0].id)):
        got, requests = read_by(reader)
        assert size <= got < size + MIB, reader
        assert "HEAD data" not in requests
        assert requests["GET data"] == whole["GET data"]


@pytest.mark.parametrize(("free_mib", "often"), [(4 * 48, 1), (0, 2)])
def test_a_digest_reads_what_lies_elsewhere_once_if_a_quarter_of_the_free_memory_holds_it(
    free_mib: int,
    often: int,
    run: tuple[str, dict[str, Any]],
    checkpointer: Make,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(stream, "KEPT_BYTES", 2**20)
    monkeypatch.setattr(stream, "free_bytes", lambda: free_mib * MIB)
    url, options = run
    state = {"a": torch.randn(6 * MIB), "b": torch.randn(5 * MIB)}
    size = checkpointer(url, storage_options=options, shard_bytes=32 * MIB).save(1, state).bytes
    with watched(url) as traffic:
        assert main(["digest", url, *(f"--storage-option={key}={value}" for key, value in options.items())]) == 0
    assert digest(state) in capsys.readouterr().out
    assert often * size <= traffic.got + MIB < often * size + 3 * MIB


def test_a_small_object_takes_one_request_and_so_do_many_to_remove(run: tuple[str, dict[str, Any]]) -> None:
    url, options = run
    storage = open_storage(url, options)
    for number in range(3):
        storage.put(f"data/{number}", b"x" * number)
    with watched(url) as traffic:
        assert [storage.get(f"data/{number}") for number in range(3)] == [b"", b"x", b"xx"]
        assert traffic.requests == {"GET data": 3}
    storage.close()


def test_a_sweep_of_many_takes_a_few_requests(run: tuple[str, dict[str, Any]], checkpointer: Make) -> None:
    """One request for each object would take minutes after a night in which nothing could be swept."""
    url, options = run
    storage = open_storage(url, options)
    runs = checkpointer(url, storage_options=options, keep=100)
    for step in range(6):
        runs.save(step, {"a": torch.zeros(3)})
    runs.close()
    for lost in range(20):
        storage.put(f"data/c00000001/s000000001-{lost:020x}/00000.safetensors", b"1")

    with watched(url) as traffic:
        assert (
            main(
                ["sweep", url, "--keep", "2", "--storage-option", f"key={options['key']}"]
                + [
                    word
                    for name in ("secret", "endpoint_url")
                    for word in ("--storage-option", f"{name}={options[name]}")
                ]
            )
            == 0
        )
    assert len([key for key in storage.list("") if key.startswith(("commits/", "data/"))]) == 4
    assert traffic.requests["DELETE many"] == 2
    assert not [
        what for what in traffic.requests if what.startswith("DELETE ") and what not in ("DELETE many", "DELETE claims")
    ]
    looks = traffic.requests["HEAD commits"]
    assert looks % 20 == 0, "of each that has no commit: is it only missing in the listing?"
    assert traffic.total - looks < 48, "the two that stay are verified among them"
    storage.close()


class Counted(LocalStorage):
    """Counts its requests."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.requests: Counter[str] = Counter()

    def list(self, prefix: str) -> dict[str, int]:
        self.requests[f"list {prefix}"] += 1
        return super().list(prefix)

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        self.requests[f"get {key.split('/')[0]}"] += 1
        return super().get(key, start, length)


def aged(folder: Path, restarts: int) -> Counted:
    """A run that was restarted so often, and keeps a checkpoint of each time."""
    storage = Counted(folder)
    before = None
    for number in range(1, restarts + 1):
        claim = Claim(number, "nonce", None, None, None, before, 1.0)
        storage.put_new(claim_key(number), seal(claim.document()))
        before = CommitId(number, number * 1000, new_nonce(1e9 + number))
        storage.put_new(before.manifest_key, b"x")
    return storage


def test_an_aged_run_reads_its_claims_at_the_same_time_and_its_sweeps_read_them_once(tmp_path: Path) -> None:
    """A claim never changes. One after another, 500 of them took 15 s of each save's sweep on a storage far away."""
    storage = aged(tmp_path, 60)
    arrived, eight_are_there = threading.Semaphore(7), threading.Event()

    class Meets(Counted):
        def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
            if not arrived.acquire(blocking=False):
                eight_are_there.set()
            assert eight_are_there.wait(timeout=60), "they come one after another"
            return super().get(key, start, length)

    history = read_history(Meets(tmp_path), lambda line: None)
    assert [id.claim for id in history.lineage] == list(range(60, 0, -1))

    known: dict[int, CommitId | None] = {}
    for reads in (60, 0):
        storage.requests.clear()
        assert read_history(storage, lambda line: None, known=known) == history
        assert storage.requests == {"list commits": 1, "list claims": 1} | ({"get claims": reads} if reads else {})
