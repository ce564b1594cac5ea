"""Servers and disks that really fail: what passes is outlasted, what stays is said at once, with what to do.

The servers are moto and Ceph's gateway behind a front that resets, hangs, and answers 5xx; the disks are mounted.
"""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from elastic.__main__ import main as elastic_main
from elastic.events import reading
from elastic_checkpoint import Checkpointer, StorageError
from elastic_checkpoint.cli import main, opened_run
from elastic_checkpoint.storage import AlreadyThere, Storage, open_storage
from elastic_checkpoint.storage.local import LocalStorage
from elastic_checkpoint.storage.redact import Scrubber
from elastic_checkpoint.storage.retry import RetryingStorage
from tests.kit.flaky import Front, flaky
from tests.kit.s3 import S3Server

Make = Callable[..., Checkpointer]
STATE = {"w": torch.arange(6.0)}
PATIENCE_S = 60.0

ACTS: dict[str, Callable[[Storage], Any]] = {
    "create": lambda storage: storage.put_new("a/new", b"created"),
    "write": lambda storage: storage.put("a/one", b"written"),
    "read": lambda storage: storage.get("a/one"),
    "read a part": lambda storage: storage.get("a/one", 2, 4),
    "list": lambda storage: storage.list("a"),
    "look up": lambda storage: storage.size("a/one"),
    "delete": lambda storage: storage.delete("a/one"),
}


@pytest.fixture
def front(s3: S3Server) -> Iterator[Front]:
    with flaky(s3) as server:
        yield server


@pytest.fixture
def front_of_ceph(rgw: S3Server) -> Iterator[Front]:
    with flaky(rgw) as server:
        yield server


@pytest.mark.parametrize(
    "trouble", ["SlowDown", "ServiceUnavailable", "InternalError", "RequestTimeout", "reset", "lost", "cut"]
)
def test_what_passes_is_outlasted_by_every_operation(front: Front, trouble: str) -> None:
    """The answers are those of an undisturbed storage."""
    storage = open_storage("s3://runs/passing", front.options, retry_s=PATIENCE_S)
    assert storage.exclusive()
    for name, act in ACTS.items():
        if trouble == "RequestTimeout" and name not in ("create", "write"):
            continue  # S3 says so of uploads that stall; a HEAD cannot even say it, since it has no body
        storage.delete("a/new")
        storage.put("a/one", b"0123456789")
        expected = act(storage)
        storage.delete("a/new")
        storage.put("a/one", b"0123456789")
        front.troubles.append(trouble)
        assert act(storage) == expected, name
        assert not front.troubles, name
    storage.close()


def test_a_hung_server_is_given_up_on_and_asked_again(front: Front) -> None:
    options = {**front.options, "config_kwargs": {"read_timeout": 1}}
    storage = open_storage("s3://runs/hung", options, retry_s=PATIENCE_S)
    assert storage.exclusive()
    front.troubles.extend(["hang", "hang"])
    storage.put_new("a", b"1")
    front.troubles.append("hang")
    assert storage.get("a") == b"1"
    assert not front.troubles
    storage.close()


def test_who_won_a_race_is_known_through_all_trouble(front_of_ceph: Front) -> None:
    """Repeated requests must read neither another's object as their own, nor their own as another's."""
    storage = open_storage("s3://runs/race", front_of_ceph.options, retry_s=PATIENCE_S)
    assert storage.exclusive()
    front_of_ceph.troubles.extend(["lost", "reset", "SlowDown"])
    storage.put_new("claims/1", b"winner")
    front_of_ceph.troubles.extend(["reset", "lost", "SlowDown", "lost"])
    with pytest.raises(AlreadyThere):
        storage.put_new("claims/1", b"loser!")
    assert storage.get("claims/1") == b"winner"
    storage.close()


@pytest.mark.parametrize("trouble", ["SlowDown", "reset"])
def test_what_does_not_pass_ends_at_the_deadline(front: Front, trouble: str) -> None:
    """No library may retry below ours, or the deadline would be many times as long. (But aiohttp sends a request once
    more, at once, where a connection that it had kept turns out to be gone.)"""
    storage = open_storage("s3://runs/staying", front.options, retry_s=1)
    storage.put("a", b"1")
    front.always, before = trouble, front.requests
    with pytest.raises(StorageError, match="the next save starts anew") as caught:
        storage.put("a", b"2")
    attempts = caught.value.attempts
    assert 1 < attempts <= front.requests - before <= attempts * (2 if trouble == "reset" else 1)
    assert ("SlowDown" in str(caught.value)) == (trouble == "SlowDown")
    assert front.options["secret"] not in str(caught.value)
    front.always = None
    assert storage.get("a") == b"1"
    storage.close()


@pytest.mark.parametrize(
    ("code", "next_step"),
    [
        ("AccessDenied", "the right to"),
        ("ExpiredToken", "the session token has expired"),
        ("RequestTimeTooSkewed", "clock"),
        ("QuotaExceeded", "keep fewer checkpoints"),
        ("AuthorizationHeaderMalformed", "the region"),
    ],
)
def test_what_the_server_will_never_do_is_said_after_one_request(front: Front, code: str, next_step: str) -> None:
    storage = open_storage("s3://runs/never", front.options, retry_s=PATIENCE_S)
    storage.put("a", b"1")
    front.always, before = code, front.requests
    with pytest.raises(StorageError, match=next_step) as caught:
        storage.put("a", b"2")
    assert caught.value.attempts == front.requests - before == 1
    assert code in str(caught.value)
    storage.close()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 1 MiB that is mounted for the test."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, timeout=60, check=False).returncode != 0:
        pytest.skip("needs a machine where this user may mount a tmpfs: root, with CAP_SYS_ADMIN")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True, timeout=60)


def test_a_full_disk_fails_the_save_at_once_and_spares_what_is_there(disk: Path, checkpointer: Make) -> None:
    runs = checkpointer(disk / "run", retry_s=PATIENCE_S)
    runs.save(1, {"w": torch.arange(50_000.0)})
    with pytest.raises(StorageError, match="free some space") as caught:
        runs.save(2, {"w": torch.arange(500_000.0)})
    assert caught.value.attempts == 1
    assert list(disk.rglob(".*")) == []  # the half-written file is gone, or the disk would stay full
    assert runs.read().step == 1
    runs.save(3, {"w": torch.arange(60_000.0)})
    assert runs.read().step == 3


def test_a_read_only_filesystem_is_said_at_once_and_still_loads(disk: Path, checkpointer: Make) -> None:
    runs = checkpointer(disk / "run", retry_s=PATIENCE_S)
    runs.save(1, STATE)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True, timeout=60)
    with pytest.raises(StorageError, match="mounted read-only") as caught:
        runs.save(2, STATE)
    assert caught.value.attempts == 1
    assert runs.read().step == 1


def test_a_folder_without_rights_is_said_at_once() -> None:
    """Root may write anywhere, so that a child without its rights tries."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "run")
        folder.mkdir()
        Path(name).chmod(0o755)
        folder.chmod(stat.S_IRUSR | stat.S_IXUSR | stat.S_IROTH | stat.S_IXOTH)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                if os.geteuid() == 0:
                    os.setuid(65534)
                open_storage(folder, retry_s=PATIENCE_S).put_new("claims/1", b"")
            except StorageError as error:
                os.write(writing, f"{error.attempts} {error}".encode())
            finally:
                os._exit(0)
        os.close(writing)
        with open(reading, "rb") as said:
            text = said.read().decode()
        os.waitpid(child, 0)
    assert text.startswith("1 ")
    assert "give this user or key the right to" in text


@pytest.fixture
def silent() -> Iterator[str]:
    """HOST:PORT at which connections are taken, and nothing is ever said: the kernel takes them."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("scheme", ["http", "s3"])
def test_whoever_lists_what_does_not_answer_is_told_so_in_time(silent: str, scheme: str) -> None:
    """Client libraries wait for minutes, and `elastic report` with them."""
    options = {"endpoint_url": f"http://{silent}", "key": "k", "secret": "s"} if scheme == "s3" else {}
    storage = open_storage("s3://runs/x" if scheme == "s3" else f"http://{silent}/x", options, retry_s=1, answer_s=2)
    with pytest.raises(StorageError, match=r"no answer within \d s") as caught:
        storage.list("events")
    assert (caught.value.operation, caught.value.attempts) == ("list", 1)


def test_a_server_that_refuses_connections_is_no_empty_folder() -> None:
    """fsspec's own walk passes over every error: a run there would have begun anew, and its report have been empty."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/run"
    with pytest.raises(StorageError, match="Connect call failed"):
        open_storage(url, retry_s=0).list("commits")


@pytest.mark.parametrize("command", ["report", "ls"])
def test_each_command_says_what_of_a_url_does_not_answer(
    silent: str, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reading, "ANSWER_S", 2.0)
    monkeypatch.setattr(opened_run, "ANSWER_S", 2.0)
    url = f"http://{silent}/run"
    assert (elastic_main(["report", url]) if command == "report" else main(["ls", "--retry-s=1", url])) == 2
    said = capsys.readouterr().err
    assert f"{url}: list " in said
    assert "failed 1 times within 2 s" in said
    assert "attempt 1  TimeoutError: no answer within 2 s" in said
    assert "  next   see whether the storage can be reached" in said


class AnswersOnce(LocalStorage):
    """Its first list at once, and no other one before `more` is set."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.lists = 0
        self.more = threading.Event()

    def list(self, prefix: str) -> dict[str, int]:
        self.lists += 1
        if self.lists > 1:
            assert self.more.wait(60)
        return super().list(prefix)


def test_a_storage_that_has_answered_may_take_its_time(tmp_path: Path) -> None:
    """A list of many objects is long, and the storage well."""
    inner = AnswersOnce(tmp_path)
    storage = RetryingStorage(inner, retry_s=0, scrub=Scrubber("", {}), answer_s=0.2)
    storage.list("")
    threading.Timer(1.0, inner.more.set).start()
    assert storage.list("") == {}
