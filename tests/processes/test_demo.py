"""The demo is the first thing that a stranger runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_the_demo_loses_a_worker_and_then_everything_and_ends_with_the_same_weights(tmp_path: Path) -> None:
    """It computes its verdict and exits with it; what is printed is what people are promised to see."""
    shown = subprocess.run(
        [sys.executable, "-m", "recipes.demo", "--keep", str(tmp_path)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )

    assert shown.returncode == 0, shown.stdout + shown.stderr
    for part in (
        "SIGKILL to worker 2, inside its backward pass",
        "SIGKILL to all processes",
        "4 → 4 → 2",
        "The same weights, byte for byte: ",
    ):
        assert part in shown.stdout
