"""Random drills: whatever a seed draws, every invariant holds. And those that failed once are run again.

`make nightly` runs four, the same each time, and `make test` one of them; the long test is `make soak DRILLS=200
SEED=7`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.kit.drills_at_once import ROOT, SEED, run_all
from tests.kit.sampling import seeds

pytestmark = pytest.mark.nightly(sample=1, of="drills at random")

DRILLS = os.environ.get("DRILLS")
FAILED_ONCE = sorted((ROOT / "tests" / "kit" / "drills").glob("*.json"))


@pytest.mark.timeout(4 * 3600)
def test_random_drills_keep_every_promise() -> None:
    """Each prints the command that replays it before it runs; one that fails keeps its folder."""
    run_all([str(SEED + at) for at in (range(int(DRILLS)) if DRILLS else seeds(4, sample=1))])


@pytest.mark.timeout(900)
@pytest.mark.parametrize("path", FAILED_ONCE, ids=lambda path: path.stem)
def test_drills_that_failed_once_keep_every_promise(path: Path) -> None:
    """What each of them found is in tests/kit/drills/README.md."""
    run_all([str(path)])
