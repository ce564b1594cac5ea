"""The plugin as a project meets it: its own tests, in a folder of their own, run by pytest."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

TESTS = """
def test_plain():
    pass

def test_fails(elastic_drill_seed):
    raise SystemError(f"seed {elastic_drill_seed}")

def test_passes(elastic_drill_seed):
    print(f"other seed {elastic_drill_seed}")
"""


def run(folder: Path, *arguments: str) -> str:
    """What pytest says."""
    (folder / "test_it.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-s", "-p", "no:cacheprovider", "-p", "no:hypothesispytest"]
    command += arguments
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    return done.stdout + done.stderr


def seeds(said: str) -> list[str]:
    return [re.search(pattern, said)[1] for pattern in (r"SystemError: seed (\d+)", r"other seed (\d+)")]  # type: ignore[index]


def test_a_failed_drill_says_the_seed_that_draws_the_same_again(tmp_path: Path) -> None:
    first = run(tmp_path)
    asked = re.search(r"--elastic-drill-seed (\d+) draws the same again", first)
    assert asked is not None, first
    assert first.count("draws the same again") == 1
    assert seeds(run(tmp_path, f"--elastic-drill-seed={asked[1]}")) == seeds(first)
    assert seeds(run(tmp_path, f"--elastic-drill-seed={int(asked[1]) + 1}")) != seeds(first)
    assert len(set(seeds(first))) == 2, "each test has a seed of its own"


def test_drills_can_be_left_out(tmp_path: Path) -> None:
    said = run(tmp_path, "-m", "not elastic_drill", "--strict-markers")
    assert "1 passed, 2 deselected" in said, said
