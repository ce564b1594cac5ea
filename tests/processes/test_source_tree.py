"""A run's script is put where it can be run again, and what is not as it was is said."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path
from typing import Any

from elastic.reproduce.source_tree import checked_out
from elastic_checkpoint.storage import open_storage

SCRIPT = "print(1)\n"


def git(folder: Path, *words: str) -> str:
    named = ["-c", "user.name=a", "-c", "user.email=a@host"]
    return subprocess.run(
        ["git", *named, *words], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


def test_a_script_that_git_ignores_in_a_commit_that_is_here_is_the_copy_and_it_is_said(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    repository.mkdir()
    (repository / ".gitignore").write_text("train.py\n")
    (repository / "train.py").write_text("print(2)  # as it is by now\n")
    git(repository, "init", "--quiet")
    git(repository, "add", ".gitignore")
    git(repository, "commit", "--quiet", "--message", "first")
    (tmp_path / "copy.py").write_text(SCRIPT)
    manifest: dict[str, Any] = {
        "git": {"root": str(repository), "commit": git(repository, "rev-parse", "HEAD"), "script": "train.py"},
        "script": {
            "path": str(repository / "train.py"),
            "folder": str(repository),
            "sha256": hashlib.sha256(SCRIPT.encode()).hexdigest(),
            "copy": {"file": "copy.py"},
        },
    }
    with checked_out(manifest, open_storage(str(tmp_path))) as tree:
        assert Path(tree.script[0]).read_text() == SCRIPT
        (said,) = tree.unchecked
        assert "is here, and git does not track train.py in it: train.py is the copy" in said
    assert len(git(repository, "worktree", "list").splitlines()) == 1
