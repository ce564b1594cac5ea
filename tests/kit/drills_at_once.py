"""Random drills, one here or two at a time: each counts its own processes, files and shared memory only."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.kit.run_drills import run_one

ROOT = Path(__file__).parents[2]
SEED = int(os.environ.get("SEED") or 41)
AT_ONCE = int(os.environ.get("DRILLS_AT_ONCE") or 2)
ENDS_S = 60.0  # what a drill that is told to end needs for that


def run_all(which: Sequence[str], shared: Path | None = None) -> None:
    """Fails if one of these drills does, after all of them.

    shared  a folder for drills of several tests, whose undisturbed runs are done once; it stays
    """
    folder = shared if shared is not None else Path(tempfile.mkdtemp(prefix="elastic-soak-"))
    held = run_one(which[0], folder) if len(which) == 1 else _run_at_once(which, folder)
    assert held, f"a drill failed: what it printed is above, and its folder in {folder}"
    if shared is None:
        shutil.rmtree(folder)


def _run_at_once(which: Sequence[str], folder: Path) -> bool:
    running = [
        subprocess.Popen([sys.executable, "-m", "tests.kit.run_drills", str(folder), *which[job::AT_ONCE]], cwd=ROOT)
        for job in range(min(AT_ONCE, len(which)))
    ]
    try:
        statuses = [one.wait() for one in running]
    finally:
        end(running)
    return not any(statuses)


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
