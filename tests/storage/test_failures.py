"""A storage that fails: what heals is waited for, what cannot is said at once, and no message holds a credential."""

from __future__ import annotations

import errno
import logging
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem

from elastic_checkpoint import Checkpointer, ClaimLost, StorageError
from elastic_checkpoint.storage import AlreadyThere, Buffer, Missing, open_storage, redact
from elastic_checkpoint.storage.fsspec import FsspecStorage
from elastic_checkpoint.storage.local import LocalStorage
from elastic_checkpoint.storage.redact import Scrubber
from elastic_checkpoint.storage.retry import RetryingStorage
from tests.kit.s3 import S3Server

Make = Callable[..., Checkpointer]
STATE = {"w": torch.arange(6.0)}


class Failing(LocalStorage):
    """Raises the given errors, one per put, before it works."""

    def __init__(self, root: Path, errors: list[Exception]) -> None:
        super().__init__(root)
        self.errors = errors

    def put(self, key: str, data: Buffer) -> None:
        if self.errors:
            raise self.errors.pop(0)
        super().put(key, data)


def retrying(root: Path, errors: list[Exception], waits: list[float], retry_s: float = 60) -> RetryingStorage:
    return RetryingStorage(Failing(root, errors), retry_s=retry_s, scrub=Scrubber("", {}), sleep=waits.append)


def test_a_passing_failure_is_tried_again_with_growing_waits(tmp_path: Path) -> None:
    waits: list[float] = []
    storage = retrying(tmp_path, [OSError(errno.EIO, "flaky"), ConnectionResetError(), TimeoutError()], waits)
    storage.put("a", b"1")
    assert storage.get("a") == b"1"
    assert len(waits) == 3
    assert all(0 <= wait <= 0.1 * 2**turn for turn, wait in enumerate(waits))


def test_after_the_deadline_the_error_shows_the_attempts(tmp_path: Path) -> None:
    waits: list[float] = []
    storage = retrying(tmp_path, [OSError(errno.EIO, f"flaky {n}") for n in range(99)], waits, retry_s=0.000001)
    with pytest.raises(StorageError, match="flaky 0") as caught:
        storage.put("a/b", b"1")
    assert (caught.value.operation, caught.value.key, caught.value.attempts) == ("write", "a/b", 1)
    assert isinstance(caught.value.__cause__, OSError)
    assert waits == []


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (PermissionError("403"), "the right to"),
        (OSError(errno.ENOSPC, "full"), "free some space"),
        (OSError(errno.EDQUOT, "quota"), "quota"),
        (OSError(errno.EROFS, "read-only"), "writable"),
        (FileNotFoundError("no bucket"), "create the bucket"),
        (OSError(errno.EOPNOTSUPP, "link"), "hard links"),
    ],
)
def test_what_cannot_heal_fails_at_once_with_advice(tmp_path: Path, error: Exception, advice: str) -> None:
    waits: list[float] = []
    with pytest.raises(StorageError, match=advice) as caught:
        retrying(tmp_path, [error], waits).put("a", b"1")
    assert caught.value.attempts == 1
    assert waits == []


def test_a_save_that_fails_commits_nothing_and_the_next_one_works(tmp_path: Path, checkpointer: Make) -> None:
    errors: list[Exception] = []
    runs = checkpointer(retrying(tmp_path, errors, []))
    runs.save(1, STATE)
    errors.append(OSError(errno.ENOSPC, "No space left on device"))
    with pytest.raises(StorageError, match="free some space"):
        runs.save(2, STATE)
    assert [commit.step for commit in runs.list()] == [1]
    runs.save(3, STATE)
    assert runs.read().step == 3


def test_a_bucket_that_does_not_exist_says_so(s3: S3Server, checkpointer: Make) -> None:
    acts: list[Callable[[Checkpointer], object]] = [lambda runs: runs.save(1, STATE), lambda runs: runs.read()]
    for act in acts:
        with pytest.raises(StorageError, match="create the bucket") as caught:
            act(checkpointer("s3://no-such-bucket/x", storage_options=s3.options, retry_s=60))
        assert caught.value.attempts == 1
        assert s3.options["secret"] not in str(caught.value)


def test_a_server_that_is_gone_is_reported_after_the_deadline(checkpointer: Make) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    options = {"endpoint_url": f"http://127.0.0.1:{port}", "key": "AKIATEST", "secret": "hidden-secret"}
    options["config_kwargs"] = {"retries": {"max_attempts": 1}}  # type: ignore[assignment]
    with pytest.raises(StorageError, match="see whether the storage can be reached") as caught:
        checkpointer("s3://runs/x", storage_options=options, retry_s=0.01).read()
    assert "hidden-secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "seen"),
    [
        ("s3://bucket/runs/x", "s3://bucket/runs/x"),
        ("sftp://me:pass@host/runs", "sftp://host/runs"),
        ("https://token@host/runs?X-Amz-Signature=abc&b=c", "https://host/runs"),
        ("/data/runs/a@b", "/data/runs/a@b"),
    ],
)
def test_urls_are_shown_without_credentials(url: str, seen: str) -> None:
    assert redact(url) == seen


def test_credentials_reach_no_error_log_manifest_or_claim(caplog: pytest.LogCaptureFixture, checkpointer: Make) -> None:
    """A library that quotes the options in its message is the way they leak."""
    secrets = ["p4ssw0rd", "SIGNATURE123", "t0ken-in-options", "nested-secret"]
    url = "memory://user:p4ssw0rd@redacted/run?sig=SIGNATURE123"
    options = {"token": "t0ken-in-options", "client": {"keys": ["nested-secret"]}, "region": "eu-central-1"}

    class Leaking(FsspecStorage):
        def put(self, key: str, data: Buffer) -> None:
            raise OSError(errno.ENOSPC, f"cannot write to {self._full_url} with {self._options}")

    caplog.set_level(logging.DEBUG, logger="elastic_checkpoint")
    storage = RetryingStorage(Leaking(url, {}), retry_s=1, scrub=Scrubber(url, options))
    storage._inner._options = options  # type: ignore[attr-defined]
    with pytest.raises(StorageError) as caught:
        checkpointer(storage).save(1, STATE)
    logged = [record.getMessage() for record in caplog.records if record.name == "elastic_checkpoint"]
    shown = [str(caught.value), repr(caught.value), *logged, storage.url, str(caught.value.__cause__)]
    shown += [storage.get(key).decode() for key in storage.list("")]
    assert "eu-central-1" in str(caught.value)
    for secret in secrets:
        assert not any(secret in text for text in shown)


class NoCondition(MemoryFileSystem):  # type: ignore[misc]
    """A filesystem that takes mode="create" and writes over what is there all the same, as some servers do."""

    protocol = "nocondition"
    store: dict[str, Any] = {}  # noqa: RUF012  fsspec's own way
    pseudo_dirs = [""]  # noqa: RUF012

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        super().pipe_file(path, value, mode="overwrite", **kwargs)


def test_a_storage_that_ignores_the_condition_is_found_out_and_said(checkpointer: Make) -> None:
    fsspec.register_implementation("nocondition", NoCondition, clobber=True)
    storage = open_storage("nocondition://run")
    assert not storage.exclusive()
    storage.put_new("claims/x", b"1")
    with pytest.raises(AlreadyThere):
        storage.put_new("claims/x", b"2")
    assert storage.get("claims/x") == b"1"

    lines: list[str] = []
    first = checkpointer("nocondition://run", log=lines.append)
    first.save(1, STATE)
    assert any("one stops at its first save" in line for line in lines)
    checkpointer("nocondition://run", take_over=True).claim()
    with pytest.raises(ClaimLost):
        first.save(2, STATE)


class Blind(NoCondition):
    """Its next look fails; and its `exists` is fsspec's own, which says "absent" then."""

    protocol = "blind"
    looks_failing = 0
    exists = fsspec.AbstractFileSystem.exists

    def info(self, path: str, **kwargs: Any) -> Any:
        if Blind.looks_failing:
            Blind.looks_failing -= 1
            raise OSError(errno.EIO, "flaky")
        return super().info(path, **kwargs)


def test_a_look_that_fails_is_not_taken_for_absence() -> None:
    """Or a claim would be written over another's."""
    fsspec.register_implementation("blind", Blind, clobber=True)
    storage = open_storage("blind://run")
    storage.put_new("claims/x", b"1")
    Blind.looks_failing = 1
    with pytest.raises(AlreadyThere):
        storage.put_new("claims/x", b"2")
    assert storage.get("claims/x") == b"1"


def test_unfinished_uploads_are_swept_after_the_grace(s3: S3Server) -> None:
    storage = open_storage("s3://runs/uploads", s3.options)
    storage.put("data/x", b"1")
    client = fsspec.filesystem("s3", **s3.options)
    client.call_s3("create_multipart_upload", Bucket="runs", Key="uploads/data/big")
    client.call_s3("create_multipart_upload", Bucket="runs", Key="elsewhere/big")
    assert storage.tidy(10**10) == ()  # moto says that every upload began in 2010
    assert storage.tidy(3600) == ("data/big (unfinished upload)",)
    assert storage.tidy(3600) == ()
    storage.close()


def test_a_forked_child_uses_its_own_connection(s3: S3Server) -> None:
    """s3fs refuses to work across a fork; a data loader or a writer process is one."""
    storage = open_storage("s3://runs/forked", s3.options, retry_s=30)
    storage.put("a", b"1")
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if storage.get("a") == b"1" else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    storage.close()


def test_an_interrupted_local_write_is_invisible(tmp_path: Path) -> None:
    """SIGKILL in the middle of a large write, many times: no reader ever sees a part of it."""
    program = (
        "import sys; from elastic_checkpoint.storage import open_storage; s = open_storage(sys.argv[1])\n"
        "for n in range(10**6): s.put(f'a/{n}', bytes([n % 251]) * 3_000_000); print(n, flush=True)"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for _ in range(20):
            process.stdout.readline()
        process.kill()
    storage = open_storage(tmp_path)
    found = storage.list("a")
    assert len(found) >= 20
    assert set(found.values()) == {3_000_000}
    assert stat.S_IMODE((tmp_path / "a" / "0").stat().st_mode) & stat.S_IRUSR
    storage.tidy(0)
    assert {path.name for path in (tmp_path / "a").iterdir()} == {key.removeprefix("a/") for key in found}
    with pytest.raises(Missing):
        storage.get(f"a/{len(found) + 1}")


def test_a_password_is_hidden_as_the_url_has_it_and_decoded() -> None:
    scrub = Scrubber("ftp://user:p%40ss%2Fword@host/run", {})
    assert scrub("530 Login incorrect: p@ss/word (p%40ss%2Fword)") == "530 Login incorrect: *** (***)"


@pytest.mark.parametrize(
    ("options", "text", "shown"),
    [
        ({"token": "to/ken+12="}, "GET https://host/x?token=to%2Fken%2B12%3D", "GET https://host/x?***"),
        ({"token": "to/ken+12="}, "the header to%2Fken%2B12%3D", "the header ***"),
        ({"password": "it's\\mine"}, f"called with {'it' + chr(39) + 's' + chr(92) + 'mine'!r}", 'called with "***"'),
        ({"headers": {"Authorization": b"Bearer abc"}}, "sent b'Bearer abc'", "sent b'***'"),
        ({"endpoint_url": "https://me:p4ssw0rd@host:9000"}, "denied p4ssw0rd at host:9000", "denied *** at host:9000"),
        ({}, "GET https://host/x?X-Amz-Signature=abc failed", "GET https://host/x?*** failed"),
    ],
    ids=["in a query", "quoted", "as repr", "bytes", "in a public option", "signed by the client"],
)
def test_what_is_confidential_is_hidden_however_a_client_shows_it(
    options: dict[str, Any], text: str, shown: str
) -> None:
    assert Scrubber("s3://bucket/run", options)(text) == shown
