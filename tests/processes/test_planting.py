"""A planted bug reaches the processes that are meant, and off means off."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.planted.bug import Bug, Patch
from tests.kit.planted.catalogue import CATALOGUE
from tests.kit.planted.planting import BUG, OUTSIDE, Unplantable, environment, parent_of


def python(code: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, timeout=60, check=False)


def test_a_bug_whose_place_is_gone_ends_the_process(tmp_path: Path) -> None:
    """Python reports what sitecustomize raises and goes on; here nothing may go on."""
    moved = Bug(
        "moved",
        "",
        "alone",
        frozenset(),
        [Patch("elastic.loop.run_state:RunState.elsewhere", lambda right, act: right)],
    )
    with pytest.raises(Unplantable, match="RunState has no elsewhere"):
        parent_of(importlib.import_module("elastic.loop.run_state"), moved.patches[0])
    unknown = environment(moved, tmp_path)
    assert "moved cannot be planted" in (failed := python("print('went on')", unknown)).stderr
    assert (failed.returncode != 0, failed.stdout) == (True, "")


def test_a_planted_process_imports_what_it_needs_and_no_more(tmp_path: Path) -> None:
    """Agents and checkpoint writers do without torch, whichever bug is in them."""
    code = """
import sys, elastic_checkpoint.save.commit as one
print("torch" in sys.modules, one.write_object.__module__)
"""
    planted = python(code, environment(CATALOGUE["list_a_checkpoint_without_a_shard"], tmp_path))
    assert planted.stdout.split() == ["False", "tests.kit.planted.storing"], planted.stderr
    off = {name: value for name, value in environment(CATALOGUE["skip_an_example"], tmp_path).items() if name != BUG}
    assert str(OUTSIDE) in off["PYTHONPATH"]
    assert python(code, off).stdout.split() == ["False", "elastic_checkpoint.save.commit"]
