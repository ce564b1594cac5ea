"""The plugin as a project meets it: its own tests, in a folder of their own, run by pytest."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from elastic.drill.pytest_plugin import _drawn

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
    asked = re.search(r"--drill-seed (\d+) draws the same again", first)
    assert asked is not None, first
    assert first.count("draws the same again") == 1
    assert seeds(run(tmp_path, f"--drill-seed={asked[1]}")) == seeds(first)
    assert seeds(run(tmp_path, f"--drill-seed={int(asked[1]) + 1}")) != seeds(first)
    assert len(set(seeds(first))) == 2, "each test has a seed of its own"


@pytest.mark.parametrize("kind", ["join", "lose-all", "flip-bytes", "disk-full", "kill-agent"])
def test_a_fault_that_takes_more_than_one_launch_is_refused_before_anything_runs(kind: str) -> None:
    """It would end in a verdict on a run that nobody started again, or in a deadline."""
    with pytest.raises(pytest.UsageError, match=f"{kind}: for `elastic drill` only"):
        _drawn(1, f"kill,{kind}", 0.1, {"steps": 20, "workers": 4})
    with pytest.raises(pytest.UsageError, match="kinds of kill, stop, leave") as refused:
        _drawn(1, "kil", 0.1, {"steps": 20})
    assert "only" not in str(refused.value)


def test_a_drawn_plan_brings_what_it_needs_to_be_survived() -> None:
    """Restarts for all that may strike one place, and a smaller number of nodes; what the test asks for stays."""
    arguments = {"steps": 100, "workers": 4, "nodes": 2}
    plan = _drawn(1, "kill,leave-node", 0.1, arguments)
    assert len(plan.faults) == 10
    assert arguments == {"steps": 100, "workers": 4, "nodes": 2, "restarts": 11, "nodes_max": 3}
    asked = {"steps": 100, "restarts": 2}
    _drawn(1, "kill", 0.1, asked)
    assert asked == {"steps": 100, "restarts": 2}


def test_drills_can_be_left_out(tmp_path: Path) -> None:
    said = run(tmp_path, "-m", "not drill", "--strict-markers")
    assert "1 passed, 2 deselected" in said, said
