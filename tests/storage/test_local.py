"""What only a folder can do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from elastic_checkpoint import Checkpointer, NoCheckpoint, StorageError
from elastic_checkpoint.storage.local import LocalStorage
from tests.kit.ranks import Raised, run_ranks

NOBODY = 65534


def reads_as_nobody(rank: int, world_size: int, url: str) -> None:
    os.seteuid(NOBODY)
    Checkpointer(url).read()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_a_folder_that_may_not_be_read_is_not_an_empty_one(tmp_path: Path) -> None:
    """Beginning anew there would bury what is in it."""
    run = tmp_path / "run"
    with Checkpointer(run) as checkpoints:
        checkpoints.save(1, {"x": 1})
    for folder in (tmp_path, *tmp_path.parents[:-1]):
        folder.chmod(folder.stat().st_mode | 0o055)
    (run / "commits").chmod(0o700)
    (refused,) = run_ranks(reads_as_nobody, 1, str(run))
    assert isinstance(refused, Raised)
    assert refused.kind == StorageError.__name__, refused.traceback
    assert refused.kind != NoCheckpoint.__name__


def test_two_may_remove_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the last sweep of a holder that was replaced, and the first of the one that replaced it."""
    storage = LocalStorage(tmp_path)
    storage.put("data/c1/s1/0", b"x")
    remove = Path.unlink

    def remove_all(path: Path) -> None:
        remove(path)
        path.parent.rmdir()

    monkeypatch.setattr(Path, "unlink", remove_all)
    storage.delete("data/c1/s1/0")
    assert not storage.list("data")


def test_links_to_nowhere_are_no_objects(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    storage.put("data/whole", b"1")
    (tmp_path / "data" / "itself").symlink_to("itself")
    (tmp_path / "data" / "gone").symlink_to("nothing")
    assert storage.list("data") == {"data/whole": 1}
