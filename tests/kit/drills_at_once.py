"""Random drills, two at a time: each counts its own processes, files and shared memory only."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
SEED = int(os.environ.get("SEED") or 41)
AT_ONCE = int(os.environ.get("DRILLS_AT_ONCE") or 2)
ENDS_S = 60.0  # what a drill that is told to end needs for that


def run_all(which: Sequence[str], shared: Path | None = None) -> None:
    """Fails if one of these drills does, after all of them.

    shared  a folder for drills of several tests, whose undisturbed runs are done once; it stays
    """
    folder = shared if shared is not None else Path(tempfile.mkdtemp(prefix="elastic-soak-"))
    running = [
        subprocess.Popen([sys.executable, "-m", "tests.kit.run_drills", str(folder), *which[job::AT_ONCE]], cwd=ROOT)
        for job in range(min(AT_ONCE, len(which)))
    ]
    try:
        statuses = [one.wait() for one in running]
    finally:
        end(running)
    assert not any(statuses), f"a drill failed: what it printed is above, and its folder in {folder}"
    if shared is None:
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
