"""What went wrong once, and is right when it is done or looked at again: reads, syncs, clocks; and names that are not
what they look like."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from elastic_checkpoint import Checkpointer
from elastic_checkpoint.runs.history import read_history
from elastic_checkpoint.runs.newer_claim import withdraw
from elastic_checkpoint.storage import local, open_storage, redact
from elastic_checkpoint.storage.redact import Scrubber
from elastic_checkpoint.testing import Delay, Faults, Plan, ShortRead
from tests.kit.ranks import returned, run_ranks

Make = Callable[..., Checkpointer]


def state(value: float) -> dict[str, Any]:
    return {"w": torch.full((1000,), float(value))}


@pytest.mark.parametrize("folder", ["data", "commits", "claims"])
def test_one_short_read_costs_no_checkpoint(folder: str, tmp_path: Path, checkpointer: Make) -> None:
    """What would be loaded instead is older, and the next save would bury the newest one."""
    with checkpointer(tmp_path) as runs:
        for step in (1, 2):
            runs.save(step, state(step))
    lines: list[str] = []
    faults = Faults(Plan(ShortRead(path=f"*/{folder}/*", times=1)))
    url, options = faults.around(str(tmp_path))
    runs = checkpointer(url, storage_options=options, log=lines.append)
    here = state(0)
    assert runs.load(here) == 2
    assert faults.happened
    assert float(here["w"][0]) == 2.0
    assert not any("passed over" in line or "cannot be read" in line for line in lines)


def short_on_one(rank: int, size: int, folder: str) -> int:
    faults = Faults(Plan(*([ShortRead(path="*/data/*", times=1)] if rank else [])))
    url, options = faults.around(folder)
    with Checkpointer(url, group=dist.group.WORLD, storage_options=options) as runs:
        return int(runs.load(state(0)))


def test_one_short_read_on_one_rank_costs_no_checkpoint(tmp_path: Path, checkpointer: Make) -> None:
    with checkpointer(tmp_path) as runs:
        for step in (1, 2):
            runs.save(step, {"w": torch.zeros(1000)})
    assert returned(run_ranks(short_on_one, 2, str(tmp_path))) == [2, 2]


def test_an_entry_whose_sync_failed_is_synced_before_it_is_called_durable(
    tmp_path: Path, checkpointer: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The retry meets its own file, and equal bytes; a power cut would take the manifest's name all the same."""
    synced: list[str] = []
    real = local._fsync_folder

    def fails_once(folder: Path) -> None:
        if folder.name == "commits":
            synced.append("failed" if not synced else "done")
            if len(synced) == 1:
                raise OSError(errno.EIO, "Input/output error")
        real(folder)

    runs = checkpointer(tmp_path)
    runs.claim()
    (tmp_path / "commits").mkdir()
    monkeypatch.setattr("elastic_checkpoint.storage.local._fsync_folder", fails_once)
    runs.save(1, state(1))
    assert synced == ["failed", "done"]


def test_a_clock_that_is_set_sweeps_no_save_under_way(
    tmp_path: Path, checkpointer: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By two hours, after the boot. Its data lay there without a manifest, was swept, and then was committed."""
    plan = Plan(Delay(1.0, path="*/commits/*", on="write", after=1, times=1))
    url, options = Faults(plan).around(str(tmp_path), {"auto_mkdir": True})
    runs = checkpointer(url, storage_options={**options, "faults": plan.document()}, orphan_grace_s=60, finish_s=30)
    runs.warm(state(0))
    runs.save(1, state(1), blocking=False).wait(60)
    saving = runs.save(2, state(2), blocking=False)
    monkeypatch.setattr("elastic_checkpoint.checkpointer.time.time", lambda: 2.0**40)
    while not saving.done:
        assert list(runs.sweep()) == []
    monkeypatch.undo()
    assert saving.wait(60).step == 2
    assert all(one.ok for one in runs.verify())


def test_a_withdrawn_claim_never_counts(tmp_path: Path, checkpointer: Make) -> None:
    with checkpointer(tmp_path) as runs:
        runs.save(1, state(1))
    with checkpointer(tmp_path) as runs:
        runs.save(2, state(2))
    storage = open_storage(tmp_path)
    withdraw(storage, 2, "to see")
    withdraw(storage, 2, "once more")
    history = read_history(storage, print)
    assert [id.step for id in history.lineage] == [1]
    assert [id.step for id in history.outside] == [2]
    assert (history.newest_claim, history.highest) == (1, 2)
    assert checkpointer(tmp_path).claim().number == 3


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://key:se/cret@bucket/run", "s3://bucket/run"),
        ("ftp://user:p@ss@host/run", "ftp://host/run"),
        ("s3://key:12/3@4@bucket/run", "s3://bucket/run"),
        ("http://user:word@host.org:80/run?signature=a@b", "http://host.org:80/run"),
        ("https://token@host/run", "https://host/run"),
        ("http://127.0.0.1:8080/a@b", "http://127.0.0.1:8080/a@b"),
        ("s3://bucket/runs/lm7@2", "s3://bucket/runs/lm7@2"),
        ("/folder/a:b@c", "/folder/a:b@c"),
    ],
)
def test_a_password_of_any_characters_is_shown_to_nobody(url: str, shown: str) -> None:
    assert redact(url) == shown
    secret = url.split("://")[-1].rpartition("@")[0]
    said = Scrubber(url, {})(f"cannot open {url}: no such host; user {secret!r}")
    if url != shown:
        assert secret.partition("?")[0] not in said
