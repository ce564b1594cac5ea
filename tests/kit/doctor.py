"""`elastic doctor`, and what it finds."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from elastic.__main__ import main

WITHIN_S = 240.0
ROOT = Path(__file__).parents[2]


def doctor(
    *arguments: str,
    within: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    preload: Mapping[str, str] | None = None,
) -> tuple[int, dict[str, dict[str, Any]]]:
    """The exit status, and each finding by its name. In this process, unless it is to run in another one's place.

    within   what starts it: in a namespace, with another limit
    preload  variables that a process has from its beginning
    """
    command = ["doctor", "--json", *arguments]
    with pytest.MonkeyPatch.context() as patched:
        for name, value in (env or {}).items():
            patched.setenv(name, value)
        if within or preload:
            said = subprocess.run(
                [*within, sys.executable, "-m", "elastic", *command],
                env={**os.environ, **(preload or {})},
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=WITHIN_S,
                check=False,
            )
            assert said.stdout, said.stderr
            status, text = said.returncode, said.stdout
        else:
            with contextlib.redirect_stdout(io.StringIO()) as out:
                status, text = main(command), out.getvalue()
    answer = json.loads(text)
    assert status == (0 if answer["ok"] else 1)
    return status, {one["name"]: one for one in answer["findings"]}


def wrong(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The names of what is wrong; each says what to do."""
    assert all(one["next"] for one in found.values() if one["verdict"] == "wrong")
    return [name for name, one in found.items() if one["verdict"] == "wrong"]
