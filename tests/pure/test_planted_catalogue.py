"""The catalogue of planted bugs follows the product, the documentation follows the catalogue, and off means off."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from elastic.drill.telling.findings import PROMISES
from tests.kit.planted.bug import Bug, Patch
from tests.kit.planted.catalogue import CATALOGUE, table
from tests.kit.planted.plans import WAYS
from tests.kit.planted.planting import BUG, OUTSIDE, ROOT, Unplantable, environment, parent_of

PAGE = ROOT / "recipes" / "DRILLS.md"
ASKED_FOR = {
    "skip_an_example": "skip an example",
    "apply_a_redone_step_twice": "apply a step twice",
    "reuse_random_streams": "reuse a random stream",
    "average_the_workers_means": "mean of means",
    "forget_momentum_in_a_transfer": "forget momentum in a transfer",
    "commit_before_the_data": "commit before the data",
    "ignore_the_claim": "ignore the claim",
    "resume_at_the_wrong_step": "resume at the wrong step",
    "donate_a_torn_state": "donate a torn state",
    "keep_a_dead_generation_s_gradients": "keep a dead generation's gradients",
}


def python(code: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, timeout=60, check=False)


PATCHES = [patch for bug in CATALOGUE.values() for patch in bug.patches]


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.target)
def test_what_a_bug_patches_is_there(patch: Patch) -> None:
    """A refactoring that moves it has to take the bug along, or the catalogue would empty itself."""
    parent_of(importlib.import_module(patch.module), patch)


def test_the_catalogue_holds_what_was_asked_for_and_every_run_has_a_bug() -> None:
    assert ASKED_FOR.keys() <= CATALOGUE.keys()
    assert {bug.plan for bug in CATALOGUE.values()} == WAYS.keys()
    known = frozenset().union(*PROMISES.values())
    assert all(bug.caught_by and bug.caught_by <= known for bug in CATALOGUE.values())
    assert len({bug.what for bug in CATALOGUE.values()}) == len(CATALOGUE)


def test_the_page_lists_the_catalogue() -> None:
    """python -c 'from tests.kit.planted.catalogue import table; print(table())'"""
    assert table() in PAGE.read_text()


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
    code = "import sys, checkpoint.writer; print('torch' in sys.modules, checkpoint.writer.write_object.__module__)"
    planted = python(code, environment(CATALOGUE["list_a_checkpoint_without_a_shard"], tmp_path))
    assert planted.stdout.split() == ["False", "tests.kit.planted.storing"], planted.stderr
    off = {name: value for name, value in environment(CATALOGUE["skip_an_example"], tmp_path).items() if name != BUG}
    assert str(OUTSIDE) in off["PYTHONPATH"]
    assert python(code, off).stdout.split() == ["False", "checkpoint.writer"]
