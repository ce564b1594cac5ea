"""Listings that show what was, as those of network filesystems do: nothing wrong is chosen, and nothing needed goes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from elastic_checkpoint import Checkpointer, ClaimLost, StorageError
from elastic_checkpoint.format.names import CommitId
from elastic_checkpoint.runs.history import read_history
from elastic_checkpoint.storage import open_storage

Make = Callable[..., Checkpointer]


class Stale:
    """A storage whose listings of some folders stand still while `still`, and whose other operations are as ever."""

    def __init__(self, folder: Path, *folders: str) -> None:
        self._inner: Any = open_storage(folder)
        self._folders = folders
        self._seen: dict[str, dict[str, int]] = {}
        self.still = 0  # listings that are yet to be stale
        self.shown = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def list(self, prefix: str) -> dict[str, int]:
        if prefix in self._folders and self.still > 0:
            self.still -= 1
            self.shown += 1
            return dict(self._seen.get(prefix, {}))
        self._seen[prefix] = self._inner.list(prefix)
        return dict(self._seen[prefix])


def state(step: int) -> dict[str, Any]:
    return {"w": torch.full((3,), float(step))}


def steps(runs: Checkpointer) -> list[int]:
    return [one.step for one in runs.list() if one.in_lineage]


def test_a_claim_never_resumes_from_less_than_is_there(tmp_path: Path, checkpointer: Make) -> None:
    """Steps 3 and 4 were just saved by another machine. Without them they would count no more, and be swept."""
    lines: list[str] = []
    storage: Any = Stale(tmp_path, "commits")
    with checkpointer(tmp_path, keep=9) as old:
        for step in (1, 2):
            old.save(step, state(step))
        read_history(storage, lines.append)
        for step in (3, 4):
            old.save(step, state(step))
    storage.still = 3
    runs = checkpointer(storage, log=lines.append)
    claim = runs.claim()
    assert storage.shown == 3
    assert claim.resumed_from is not None
    assert claim.resumed_from.step == 4
    assert any("the listing of commits is stale: it lacks c00000001.s000000004-" in line for line in lines)
    assert runs.read().step == 4


def test_a_listing_that_stays_stale_is_refused_with_what_to_do(tmp_path: Path, checkpointer: Make) -> None:
    """An empty one most of all: the run would begin anew."""
    with checkpointer(tmp_path) as old:
        old.save(1, state(1))
    storage: Any = Stale(tmp_path, "commits")
    storage.still = 10**9
    runs = checkpointer(storage, retry_s=0.3)
    with pytest.raises(StorageError, match=r"has not shown c00000001.s000000001-(.|\n)*acdirmax"):
        runs.claim()
    assert list(open_storage(tmp_path).list("claims")) == ["claims/00000001.json"]
    assert checkpointer(tmp_path).read().step == 1


@pytest.mark.parametrize("folders", [("commits",), ("commits", "data")], ids=" and ".join)
def test_commits_that_a_stale_listing_does_not_show_are_not_gone(
    folders: tuple[str, ...], tmp_path: Path, checkpointer: Make
) -> None:
    """Claim 2 went on from step 1, whose commit has been removed since: that it names it proves nothing here."""
    with checkpointer(tmp_path, keep=1) as first:
        first.save(1, state(1))
    with checkpointer(tmp_path, keep=1) as second:
        second.claim()
        for step in (2, 3):
            second.save(step, state(step))
    assert 1 not in [one.step for one in checkpointer(tmp_path).list()]
    storage: Any = Stale(tmp_path, *folders)
    storage.still = 3
    claim = checkpointer(storage).claim()
    assert claim.resumed_from is not None
    assert (claim.resumed_from.step, storage.shown) == (3, 3)


def test_a_stale_listing_of_claims_does_not_give_a_number_twice(tmp_path: Path, checkpointer: Make) -> None:
    with checkpointer(tmp_path) as old:
        old.save(1, state(1))
    storage: Any = Stale(tmp_path, "claims", "commits", "data")
    storage.still = 10**9
    with pytest.raises(StorageError, match=r"no claim of .* could be won"):
        checkpointer(storage, retry_s=0.3).claim()
    storage.still = 3
    assert checkpointer(storage).claim().number == 2


def test_who_was_replaced_finds_out_though_its_listing_of_claims_is_stale(tmp_path: Path, checkpointer: Make) -> None:
    storage: Any = Stale(tmp_path, "claims")
    old = checkpointer(storage, keep=2)
    for step in (1, 2):
        old.save(step, state(step))
    storage.still = 10**9
    new = checkpointer(tmp_path, take_over=True)
    assert new.claim().number == 2
    with pytest.raises(ClaimLost, match="claim 2 is newer"):
        old.save(3, state(3))
    assert list(old.sweep()) == []
    assert steps(new) == [2, 1]


@pytest.mark.parametrize("folders", [("commits",), ("data",), ("commits", "data"), ("claims", "commits", "data")])
def test_no_sweep_by_a_stale_listing_removes_what_is_needed(
    folders: tuple[str, ...], tmp_path: Path, checkpointer: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However old it is: commits that it lacks look like the remains of saves that never finished."""
    lines: list[str] = []
    storage: Any = Stale(tmp_path, *folders)
    runs = checkpointer(storage, keep=2, orphan_grace_s=0, finish_s=1e-6, log=lines.append)
    for step in (1, 2, 3):
        runs.save(step, state(step))
    storage.still = 10**9
    more = checkpointer(tmp_path, keep=9, orphan_grace_s=0)
    more.adopt(runs.claim())
    for step in (4, 5, 6):
        more.save(step, state(step))
    monkeypatch.setattr("elastic_checkpoint.checkpointer.time.time", lambda: 2.0**40)
    removed = [*runs.sweep(), *runs.sweep()]  # at first they could be saves under way
    monkeypatch.undo()
    reader = checkpointer(tmp_path)
    assert steps(reader)[:3] == [6, 5, 4], lines
    assert all(one.ok for one in reader.verify())
    assert not {one.name for one in reader.list()} & set(removed)
    assert ("sweeping stopped: the listing of commits is stale" in "".join(lines)) == (folders == ("commits",))


def test_a_checkpoint_whose_data_no_listing_shows_yet_is_whole(tmp_path: Path, checkpointer: Make) -> None:
    """What a listing says otherwise than the manifest is asked for by name."""
    with checkpointer(tmp_path) as old:
        commits = [old.save(step, state(step)) for step in (1, 2)]
    newest = CommitId(commits[1].claim, commits[1].step, commits[1].nonce)
    storage: Any = Stale(tmp_path, newest.data_folder)
    storage.still = 1
    assert checkpointer(storage).read().step == 2
    assert storage.shown == 1
    (tmp_path / newest.shard_key(0)).unlink()
    storage.still = 1
    assert checkpointer(storage).read().step == 1
