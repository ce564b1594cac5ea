"""What a script makes of `hash(word)`, or of the order of a set of words, is the same in every worker and start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
words = {f"word{i}" for i in range(50)}
sys.stdout.write(f"at={hash('word')} {'-'.join(words)}\\n")
"""


def hashes(script: Path, *, workers: int, environ: dict[str, str]) -> list[str]:
    command = [sys.executable, "-m", "elastic", "run", "--standalone", f"--nproc-per-node={workers}", str(script)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=100, check=True)
    found = [line.partition("at=")[2] for line in done.stdout.splitlines() if "at=" in line]
    assert len(found) == workers, done.stdout + done.stderr
    return found


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "hashes.py"
    path.write_text(SCRIPT)
    return path


def test_strings_hash_alike_at_every_start(script: Path) -> None:
    """A vocabulary numbered in the order of a set was another one after a resume, and on each node: the run went on
    with the weights of other words, and nothing said so."""
    random = {key: value for key, value in os.environ.items() if key != "PYTHONHASHSEED"}
    one, other = hashes(script, workers=2, environ=random), hashes(script, workers=1, environ=random)
    assert len({*one, *other}) == 1

    of_the_user = hashes(script, workers=1, environ={**random, "PYTHONHASHSEED": "5"})
    assert {*of_the_user} != {*one}
