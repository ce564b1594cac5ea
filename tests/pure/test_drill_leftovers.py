"""What counts as left behind, and what is only waiting for the next worker to remove it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from elastic.drill.leftovers import Snapshot


def test_the_folder_of_a_killed_worker_s_loaders_is_the_next_worker_s_to_remove(tmp_path: Path) -> None:
    """Only if workers were killed, and only once nobody holds it: an orderly end removes its own."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    before = Snapshot.take(tmp_path)
    (temporary / "elst-abc").mkdir()

    assert before.new(tmp_path, []) == ["temporary file elst-abc"]
    assert before.new(tmp_path, [], killed=True) == []
    held = os.open(temporary / "elst-abc", os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    assert before.new(tmp_path, [], killed=True) == ["temporary file elst-abc"]
    os.close(held)
    (temporary / "forgotten").touch()
    assert before.new(tmp_path, [], killed=True) == ["temporary file forgotten"]


def test_what_was_there_before_is_nobody_s(tmp_path: Path) -> None:
    (tmp_path / "tmp" / "old").mkdir(parents=True)
    assert Snapshot.take(tmp_path).new(tmp_path, []) == []
