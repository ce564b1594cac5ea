"""Random drills: whatever a seed draws, every invariant holds. And those that failed once are run again.

`make nightly` runs four, the same each time, and `make test` one of them; the long test is `make soak DRILLS=200
SEED=7`. Of those, two run at a time: each counts its own processes, files and shared memory only.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.kit.sampling import seeds

ROOT = Path(__file__).parents[2]
SEED = int(os.environ.get("SEED") or 41)
DRILLS = os.environ.get("DRILLS")
AT_ONCE = int(os.environ.get("DRILLS_AT_ONCE") or 2)
FAILED_ONCE = sorted((ROOT / "tests" / "kit" / "drills").glob("*.json"))
ENDS_S = 60.0  # what a drill that is told to end needs for that


@pytest.mark.nightly(sample=1, of="drills at random")
@pytest.mark.timeout(4 * 3600)
def test_random_drills_keep_every_promise() -> None:
    """Each prints the command that replays it before it runs; one that fails keeps its folder."""
    run_all([str(SEED + at) for at in (range(int(DRILLS)) if DRILLS else seeds(4, sample=1))])


@pytest.mark.nightly(sample=1, of="drills at random")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("path", FAILED_ONCE, ids=lambda path: path.stem)
def test_drills_that_failed_once_keep_every_promise(path: Path) -> None:
    """What each of them found is in tests/kit/drills/README.md."""
    run_all([str(path)])


def run_all(which: Sequence[str]) -> None:
    """Fails if one of these drills does, after all of them."""
    folder = Path(tempfile.mkdtemp(prefix="elastic-soak-"))
    running = [
        subprocess.Popen([sys.executable, "-m", "tests.kit.run_drills", str(folder), *which[job::AT_ONCE]], cwd=ROOT)
        for job in range(min(AT_ONCE, len(which)))
    ]
    try:
        statuses = [one.wait() for one in running]
    finally:
        end(running)
    assert not any(statuses), f"a drill failed: what it printed is above, and its folder in {folder}"
    shutil.rmtree(folder)


def end(running: Sequence[subprocess.Popen[bytes]]) -> None:
    """They clear away what they have started. While one does so after a drill, it hears no signal."""
    deadline = time.monotonic() + ENDS_S
    while any(one.poll() is None for one in running) and time.monotonic() < deadline:
        for one in running:
            one.terminate()
        time.sleep(0.5)
    for one in running:
        one.kill()
        one.wait()
