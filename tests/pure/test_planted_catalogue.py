"""The catalogue of planted bugs follows the product, and the documentation follows the catalogue."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest

from elastic.drill.report.findings import PROMISES
from tests.kit.planted.bug import Patch
from tests.kit.planted.catalogue import CATALOGUE, table
from tests.kit.planted.plans import WAYS
from tests.kit.planted.planting import COMPARISON, ROOT, parent_of

PAGE = ROOT / "docs" / "internals" / "planted-bugs.md"
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


PATCHES = [*COMPARISON, *(patch for bug in CATALOGUE.values() for patch in bug.patches)]


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.target)
def test_what_a_bug_patches_is_there(patch: Patch) -> None:
    """A refactoring that moves it has to take the bug along, or the catalogue would empty itself."""
    parent_of(importlib.import_module(patch.module), patch)


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.target)
def test_a_bug_takes_what_the_function_takes_whose_place_it_takes(patch: Patch) -> None:
    """Or a run ends in a TypeError before the bug has acted."""
    replaced: Any = vars(parent_of(importlib.import_module(patch.module), patch))[patch.path[-1]]
    right: Any = getattr(replaced, "__func__", replaced)
    if inspect.isfunction(right):
        wrong = patch.make(right, lambda: None)
        takes = inspect.signature(right).parameters.values()
        given = [one for one in takes if one.kind is one.POSITIONAL_OR_KEYWORD]
        named = {one.name: one for one in takes if one.kind is one.KEYWORD_ONLY}
        function: Any = getattr(wrong, "__func__", wrong)
        inspect.signature(function).bind(*given, **named)


def test_the_catalogue_holds_what_was_asked_for_and_every_run_has_a_bug() -> None:
    assert ASKED_FOR.keys() <= CATALOGUE.keys()
    assert {bug.plan for bug in CATALOGUE.values()} == WAYS.keys()
    known = frozenset().union(*PROMISES.values())
    assert all(bug.caught_by and bug.caught_by <= known for bug in CATALOGUE.values())
    assert len({bug.what for bug in CATALOGUE.values()}) == len(CATALOGUE)


def test_the_page_lists_the_catalogue() -> None:
    """python -c 'from tests.kit.planted.catalogue import table; print(table())'"""
    assert table() in PAGE.read_text()
