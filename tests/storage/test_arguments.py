"""What cannot work is refused where it is given, with what was expected, and before anything is made."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from fsspec.implementations.http import HTTPFileSystem

from elastic_checkpoint import Checkpointer, CheckpointError, StorageError

STATE = {"w": torch.ones(2)}


def made(folder: Path) -> tuple[list[str], list[str], int]:
    """What a checkpointer could have left: files, threads, processes."""
    files = sorted(str(path) for path in folder.rglob("*"))
    return files, sorted(thread.name for thread in threading.enumerate()), len(psutil.Process().children())


@pytest.mark.parametrize(
    ("url", "found", "advice"),
    [
        ("nosuch://user:secret@host/x", "nothing here opens nosuch://", "install the package that brings"),
        ("S3://bucket/x", "nothing here opens S3://", "is s3:// meant?"),
        ("simplecache::nosuch://x", "nothing here opens nosuch://", "install the package"),
        ("sftp://x", "sftp:// needs a package that is missing: .*paramiko", "install it"),
        ("wandb://x", "wandb:// needs a package that is missing: Install wandbfs", "install it"),
        ("", "it is empty", "is a variable of your shell unset"),
        (" ", "it is empty", "is a variable of your shell unset"),
        ("nul\0", "the character of number 0", "correct the URL"),
        (b"bytes", "it is of type bytes", "give it as text"),
        (3, "it is of type int", "give it as text"),
        (None, "it is of type NoneType", "give it as text"),
        ("http//typo", "found     http//typo\\n  expected  http://typo", "write http:// with two slashes"),
        ("s3//bucket/x", "found     s3//bucket/x\\n  expected  s3://bucket/x", "for a folder, write ./s3"),
        ("http://[bad", "it is no URL", "correct it"),
        ("file://", "it names no folder", "give its path"),
        ("~nobody-of-this-name/x", "there is no user nobody-of-this-name", "write ./~nobody-of-this-name"),
        ("dangling", "dangling is a link to nowhere, which is not there", "make the folder that it leads to"),
        ("file://dangling/run", "dangling is a link to nowhere, which is not there", "make the folder"),
    ],
)
def test_a_url_that_nothing_opens_is_refused_before_anything_is_made(
    url: Any, found: str, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some were met at the first save or load, as a raw error of whoever it was; "" was the current folder; a link to
    nowhere was tried for two minutes."""
    monkeypatch.chdir(tmp_path)
    os.symlink("nowhere", "dangling")
    before = made(tmp_path)
    with pytest.raises(CheckpointError, match=found) as caught:
        Checkpointer(url)
    for line in ("\n  expected  ", "\n  state     nothing was", "\n  next      "):
        assert line in str(caught.value)
    assert advice in str(caught.value)
    assert "secret" not in str(caught.value)
    assert made(tmp_path) == before


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_what_is_served_over_http_is_only_read_from(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that takes a PUT kept the object by which it was tried, since fsspec removes none there."""
    put: list[str] = []
    monkeypatch.setattr(HTTPFileSystem, "pipe_file", lambda self, path, *_, **__: put.append(path))
    url = f"{scheme}://127.0.0.1:1/run"
    before = made(tmp_path)
    with Checkpointer(url, retry_s=0) as runs:
        for blocking in (True, False):
            with pytest.raises(StorageError, match=rf"fsspec's {scheme}:// only reads") as caught:
                runs.save(1, STATE, blocking=blocking)
            assert "save to a folder or an object store" in str(caught.value)
            assert made(tmp_path)[2] == before[2], "no writer process was started"
    assert put == []


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"keep": "a"}, "keep='a'; expected how many checkpoints stay, an integer of 1 or more"),
        ({"keep": 0}, "keep=0; expected how many"),
        ({"keep": 2.5}, "keep=2.5; expected how many"),
        ({"keep": True}, "keep=True; expected how many"),
        ({"keep_every": 0}, "keep_every=0; expected a number of steps, .* or None"),
        ({"keep_multiple": "9"}, "keep_multiple='9'; expected a number of steps, .* or None"),
        ({"shard_bytes": 0}, "shard_bytes=0; expected the most tensor bytes in one object, an integer of 1 or more"),
        ({"shard_bytes": 2.0**20}, "shard_bytes=1048576.0; expected"),
        ({"budget_bytes": -1}, "budget_bytes=-1; expected"),
        ({"failures_max": "3"}, "failures_max='3'; expected"),
        ({"failures_max": 0}, "failures_max=0; expected"),
        ({"finish_s": 0}, "finish_s=0; expected a number of seconds above 0"),
        ({"grace_s": "15"}, "grace_s='15'; expected a number of seconds, 0 or more"),
        ({"retry_s": float("nan")}, "retry_s=nan; expected a number of seconds"),
        ({"orphan_grace_s": -1}, "orphan_grace_s=-1; expected a number of seconds"),
        ({"group": "autoo"}, "group='autoo'; expected 'auto', a process group"),
        ({"group": 3}, "group=3; expected 'auto', a process group"),
        ({"when_busy": "drop"}, "when_busy='drop'; expected 'wait', 'skip' or 'replace'"),
        ({"replicas": None}, "replicas=None; expected 'compared' or 'trusted'"),
        ({"per_rank_resized": "drop"}, "per_rank_resized='drop'; expected 'refuse' or 'keep'"),
        ({"storage_options": "key"}, "storage_options=str; expected a dict"),
        ({"storage_options": {1: 2}}, "storage_options=dict; expected a dict from names to values"),
        ({"take_over": "no"}, "take_over='no'; expected True or False"),
        ({"per_rank": 3}, "per_rank=3; expected paths of entries"),
        ({"rank0": [3]}, "rank0= takes paths of entries"),
        ({"job": 7.5}, "job=7.5; expected a name, or None"),
        ({"log": "print"}, "log='print'; expected a function"),
    ],
    ids=str,
)
def test_an_argument_that_cannot_work_is_refused_before_anything_is_made(
    wrong: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    """They were raw errors of the first save, or, as shard_bytes=0, none at all."""
    before = made(tmp_path)
    with pytest.raises(CheckpointError, match=expected):
        Checkpointer(tmp_path / "run", **wrong)
    assert made(tmp_path) == before


@pytest.mark.parametrize("step", ["3", 3.0, True, -1, None])
@pytest.mark.parametrize("blocking", [True, False])
def test_a_step_that_names_no_checkpoint_is_refused_before_a_claim_is_taken(
    step: Any, blocking: bool, tmp_path: Path
) -> None:
    with Checkpointer(tmp_path / "run") as runs:
        before = made(tmp_path)
        with pytest.raises(CheckpointError, match=rf"step {step!r} is not an int from 0"):
            runs.save(step, STATE, blocking=blocking)
        assert made(tmp_path) == before


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        (lambda runs: runs.load(STATE, step="1"), "step='1'; expected a number of steps, an integer of 0 or more"),
        (lambda runs: runs.load(STATE, step=1.0), r"step=1.0; expected"),
        (lambda runs: runs.read(step=-1), "step=-1; expected"),
        (lambda runs: runs.verify(step="x"), "step='x'; expected"),
        (lambda runs: runs.load(STATE, default="no"), "default='no'; expected an integer, or None"),
        (lambda runs: runs.load(STATE, strict="no"), "strict='no'; expected True or False"),
        (lambda runs: runs.load(STATE, resume=0), "resume=0; expected True or False"),
        (lambda runs: runs.save(2, STATE, blocking="no"), "blocking='no'; expected True or False"),
        (lambda runs: runs.save(2, STATE, blocking=False, steady=3), "steady=3; expected tensors"),
    ],
)
def test_what_a_call_cannot_follow_is_named(wrong: Any, expected: str, tmp_path: Path) -> None:
    """A step of another type was one that there is no checkpoint of; "no" was true; the rest were raw errors."""
    with Checkpointer(tmp_path) as runs:
        runs.save(1, STATE)
        with pytest.raises(CheckpointError, match=f"^{expected}"):
            wrong(runs)
        assert [commit.step for commit in runs.list()] == [1]
