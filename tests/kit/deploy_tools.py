"""The tools that know the files of deploy/: build/deploy-tools, which `make deploy-tools` fills from
tests/deploy/tools.txt, and for the night build/deploy-NAME of tests/deploy/NAME.txt, which do not go with these.
Where one is missing its tests are skipped, except in CI and under `make deploy-check`.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"

Said = subprocess.CompletedProcess[str]


def lacks(what: str) -> None:
    """Skip this test, or fail it where it must run."""
    (pytest.fail if os.environ.get("CI") or os.environ.get("DEPLOY") else pytest.skip)(what)


def program(name: str, *, of: str) -> Path:
    """In build/deploy-OF. "python" has its libraries."""
    path = ROOT / "build" / f"deploy-{of}" / "bin" / name
    if not path.exists():
        lacks(f"no {name}: make build/deploy-{of}/.installed")
    return path


def tool(
    name: str,
    *arguments: str | Path,
    of: str = "tools",
    text: str | None = None,
    env: Mapping[str, str] | None = None,
    deadline_s: float = 300,
) -> Said:
    """What one of the tools says, and its status: tool("shellcheck", path). "python" has the libraries of tools.txt."""
    command = [str(program(name, of=of)), *map(str, arguments)]
    return subprocess.run(
        command, check=False, input=text, capture_output=True, text=True, timeout=deadline_s, cwd=ROOT, env=env
    )
