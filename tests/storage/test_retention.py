"""What stays in storage: the newest few, one of every so many steps for good, and whatever may still be under way."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from elastic_checkpoint import Checkpointer, CheckpointError
from elastic_checkpoint.cli.usage import parse
from elastic_checkpoint.format.names import CommitId, new_nonce
from elastic_checkpoint.runs.retention import Sweeper
from elastic_checkpoint.storage import open_storage
from elastic_checkpoint.storage.base import Buffer

Make = Callable[..., Checkpointer]


def steps(runs: Checkpointer) -> list[int]:
    return [commit.step for commit in runs.list()]


@pytest.mark.nightly(sample=2)
def test_one_of_every_so_many_steps_stays_through_restarts_and_loads(
    location: tuple[str, dict[str, Any]], checkpointer: Make
) -> None:
    url, options = location
    for first in (0, 6):
        with checkpointer(url, storage_options=options, keep=2, keep_every=5) as runs:
            for step in range(first, first + 6):
                runs.save(step, {"w": torch.full((3,), float(step))})
    with checkpointer(url, storage_options=options) as runs:
        assert steps(runs) == [11, 10, 5, 0]
        assert all(one.ok for one in runs.verify())
        w = torch.zeros(3)
        assert runs.load({"w": w}, step=5) == 5
        assert w.tolist() == [5.0] * 3


def test_saves_in_the_background_keep_them_too(tmp_path: Path, checkpointer: Make) -> None:
    with checkpointer(tmp_path, keep=2, keep_every=4) as runs:
        for step in range(10):
            runs.save(step, {"w": torch.zeros(3)}, blocking=False).wait()
    assert steps(checkpointer(tmp_path)) == [9, 8, 4, 0]


@pytest.mark.parametrize("bad", [0, -5, 2.5, True, "10"])
def test_what_is_no_number_of_steps_is_refused(bad: Any, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="expected a number of steps"):
        Checkpointer(tmp_path, keep_every=bad)


@pytest.mark.parametrize("arguments", [["--keep-every", "5"], ["--keep", "2", "--keep-every", "0"]])
def test_the_command_wants_a_number_and_the_newest_to_keep(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as status:
        parse(["sweep", "runs/a", *arguments])
    assert status.value.code == 2
    assert "--keep" in capsys.readouterr().err


def test_what_may_be_a_save_of_our_own_is_swept_only_when_it_cannot_be_any_more(
    tmp_path: Path, checkpointer: Make
) -> None:
    """Its data lies there without a manifest, exactly as what a failed save leaves."""
    claim = checkpointer(tmp_path).claim()
    storage, clock = open_storage(tmp_path), [0.0]
    sweeper = Sweeper(storage, keep=2, orphan_grace_s=0, finish_s=100, log=print, clock=lambda: clock[0])
    sweep = functools.partial(sweeper.sweep, claim=claim.number, nonce=claim.nonce)
    first, second = (CommitId(claim.number, step, new_nonce(time.time())) for step in (7, 8))
    strange = CommitId(claim.number - 1, 7, new_nonce(time.time()))
    for id in (first, strange):
        storage.put(id.shard_key(0), b"half of it")
    assert sweep(now_s=time.time()) == [str(strange)]
    storage.put(second.shard_key(0), b"half of it")
    clock[0] = 299
    assert sweep(now_s=2.0**40) == []  # the time of day was set, or is another machine's
    clock[0] = 300
    assert sweep(now_s=time.time()) == [str(first)]
    assert list(storage.list("data")) == [second.shard_key(0)]


class Pauses:
    """A storage that stops before its first manifest until it is let go."""

    def __init__(self, folder: Path) -> None:
        self._inner: Any = open_storage(folder)
        self.reached, self.go = threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def put_new(self, key: str, data: Buffer) -> None:
        if key.startswith("commits/"):
            self.reached.set()
            assert self.go.wait(60)
        self._inner.put_new(key, data)


def test_a_blocking_save_that_takes_longer_than_any_grace_is_never_swept(
    tmp_path: Path, checkpointer: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing bounds how long it takes; another thread may sweep meanwhile."""
    storage: Any = Pauses(tmp_path)
    runs = checkpointer(storage, orphan_grace_s=0, finish_s=0.001)
    saving = threading.Thread(target=runs.save, args=(1, {"w": torch.ones(4)}))
    saving.start()
    assert storage.reached.wait(60)
    monkeypatch.setattr("elastic_checkpoint.checkpointer.time.time", lambda: 2.0**40)
    assert list(runs.sweep()) == []
    monkeypatch.undo()
    storage.go.set()
    saving.join(60)
    assert runs.verify()[0].ok
    assert steps(runs) == [1]
