"""What cannot work is refused where it is given, with what was expected, and before anything is made."""

from __future__ import annotations

import math
import os
import threading
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import psutil
import pytest
import torch
from fsspec.implementations.http import HTTPFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from elastic_checkpoint import Checkpointer, CheckpointError, StorageError
from elastic_checkpoint.storage import open_storage

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
    for line in ("\n  expected  a folder, or a URL that fsspec opens", "\n  state     nothing was", "\n  next      "):
        assert line in str(caught.value)
    assert advice in str(caught.value)
    assert "secret" not in str(caught.value)
    assert made(tmp_path) == before


def test_the_known_protocols_are_named_and_one_that_was_registered_is_known() -> None:
    with pytest.raises(CheckpointError, match=r"known are .*\bgcs, .*\bmemory, .*\bs3, "):
        open_storage("nosuch://x")
    fsspec.register_implementation("registered", MemoryFileSystem, clobber=True)
    assert open_storage("registered://x").url == "registered://x"


@pytest.mark.parametrize("url", ["a::b", "c:d", "with?q=1", "a b", "link/x"])
def test_odd_names_of_folders_are_folders(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "real").mkdir()
    os.symlink("real", "link")
    assert open_storage(url).url == str(tmp_path / url)


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


def test_numbers_of_other_types_are_taken_and_a_bound_may_be_infinite(tmp_path: Path) -> None:
    """As NumPy gives them, or one writes them; a job's number is its name."""
    given: dict[str, Any] = {"keep": np.int64(3), "grace_s": np.float32(3), "job": 12345}
    given |= {"failures_max": math.inf, "budget_bytes": 8e9}
    with Checkpointer(tmp_path / "run", **given) as runs:
        runs.save(1, STATE)
        assert runs.claim().job == "12345"


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
