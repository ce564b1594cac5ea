"""What is no plain file is no object: it is named, never waited for nor read, and keeps nobody from the rest."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from elastic_checkpoint import Checkpointer, StorageError
from elastic_checkpoint.storage import open_storage
from elastic_checkpoint.storage.base import Missing, get_into, map_object, put_lightly

Make = Callable[..., Checkpointer]

WITHIN_S = 30.0  # whatever waits, waits for ever


def a_socket(path: Path) -> None:
    here = os.open(".", os.O_RDONLY)
    try:
        os.chdir(path.parent)  # its whole path is too long for one
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.fchdir(here)
        os.close(here)


def a_link_to_a_fifo(path: Path) -> None:
    fifo = path.parent.parent / f"{path.name}-fifo"
    os.mkfifo(fifo)
    path.symlink_to(fifo)


ODD: dict[str, Callable[[Path], None]] = {
    "a FIFO": os.mkfifo,
    "a socket": a_socket,
    "a folder": Path.mkdir,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a link": lambda path: path.symlink_to(path.name),
    "a FIFO, behind a link": a_link_to_a_fifo,
}


def ended(act: Callable[[], Any]) -> Any:
    """What it returns; an error where it does not end. A daemon thread, so that it keeps nobody then."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(act())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(WITHIN_S)
    assert found, f"it waits since {WITHIN_S:g} s"
    if isinstance(found[0], Exception):
        raise found[0]
    return found[0]


def state(step: int = 0) -> dict[str, Any]:
    return {"w": torch.full((300_000,), float(step))}  # large enough to be mapped


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with Checkpointer(tmp_path / "run", keep=9) as runs:
        for step in (1, 2):
            runs.save(step, state(step))
    return tmp_path / "run"


def replaced(path: Path, kind: str) -> None:
    path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    ODD[kind](path)


@pytest.mark.parametrize("kind", ODD)
def test_each_operation_finds_no_object_there(kind: str, tmp_path: Path) -> None:
    storage = open_storage(tmp_path)
    (tmp_path / "data").mkdir()
    replaced(tmp_path / "data" / "x", kind)
    for act in (
        lambda: storage.get("data/x"),
        lambda: storage.get("data/x", 0, 10),
        lambda: storage.size("data/x"),
        lambda: get_into(storage, "data/x", memoryview(bytearray(10))),
        lambda: map_object(storage, "data/x"),
    ):
        with pytest.raises(Missing, match=f"^data/x is {kind.partition(',')[0]}"):
            ended(act)
    assert set(ended(lambda: storage.list("data"))) <= {"data/x"}


@pytest.mark.parametrize("kind", ODD)
def test_a_shard_that_is_no_file_is_named_and_the_checkpoint_before_is_used(
    kind: str, run: Path, checkpointer: Make
) -> None:
    """A FIFO in its place held `verify`, and whoever loaded, for ever."""
    (shard,) = run.glob("data/*/s000000002-*/*")
    replaced(shard, kind)
    lines: list[str] = []
    runs = checkpointer(run, log=lines.append)
    newest, older = ended(runs.verify)
    assert f"object 0 of 1 (counting from 0) is {kind.partition(',')[0]}" in newest.problems[0]
    assert older.ok
    assert ended(lambda: runs.load(state())) == 1
    assert any(f"is {kind.partition(',')[0]}" in line for line in lines)


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("place", ["commits", "claims/00000001.json", "claims/00000001.beacon", "leases/00000001"])
def test_whatever_lies_beside_a_commit_keeps_nobody_from_the_run(
    place: str, kind: str, run: Path, checkpointer: Make
) -> None:
    """Neither from reading it, nor from going on with it."""
    path = next(run.glob("commits/*s000000002-*")) if place == "commits" else run / place
    replaced(path, kind)
    runs = checkpointer(run, grace_s=0, retry_s=5, keep=9)
    expected = 1 if place == "commits" else 2
    assert ended(lambda: runs.load(state())) == expected
    assert ended(lambda: runs.save(3, state(3))).claim == 2
    ended(runs.sweep)
    assert ended(lambda: checkpointer(run).load(state())) == 3


@pytest.mark.parametrize("kind", ["a FIFO", "a socket", "a device", "a FIFO, behind a link"])
def test_a_heartbeat_is_not_written_into_what_is_no_file(kind: str, tmp_path: Path) -> None:
    """The thread that gives it would wait for a reader."""
    storage = open_storage(tmp_path, retry_s=0)
    replaced(tmp_path / "leases" / "1", kind)
    with pytest.raises((StorageError, Missing)):
        ended(lambda: put_lightly(storage, "leases/1", b"x"))
