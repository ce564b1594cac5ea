"""The tools that know the files of deploy/: build/deploy-tools, which `make deploy-tools` fills from
tests/deploy/tools.txt. Where one is missing its tests are skipped, except in CI and under `make deploy-check`.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
TOOLS = ROOT / "build" / "deploy-tools" / "bin"

Said = subprocess.CompletedProcess[str]


def lacks(what: str) -> None:
    """Skip this test, or fail it where it must run."""
    (pytest.fail if os.environ.get("CI") or os.environ.get("DEPLOY") else pytest.skip)(what)


def tool(name: str, *arguments: str | Path, text: str | None = None, deadline_s: float = 300) -> Said:
    """What one of the tools says, and its status: tool("shellcheck", path). "python" has the libraries of tools.txt."""
    if not (TOOLS / name).exists():
        lacks(f"no {name}: make deploy-tools")
    command = [str(TOOLS / name), *map(str, arguments)]
    return subprocess.run(
        command, check=False, input=text, capture_output=True, text=True, timeout=deadline_s, cwd=ROOT
    )
