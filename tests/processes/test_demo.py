"""The demo is the first thing that a stranger runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.nightly(sample=1, of="what the pages show")
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
    assert "The same weights, byte for byte: " in shown.stdout
    assert told(shown.stdout) == told(readme_block())


def readme_block() -> str:
    """What the README shows under `make demo`."""
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    return readme.partition("<!-- demo:")[2].partition("```text\n")[2].partition("```")[0]


def told(output: str) -> list[str]:
    """The lines without their numbers: times vary, and digests with the machine's instruction set."""
    lines = [re.sub(r"[0-9a-f]{16,}", "#", line).rstrip() for line in output.splitlines()]
    return [re.sub(r"\s*\d[\d,.]*\s*", " # ", line).strip() for line in lines if line.strip()]
