"""Shell that runs on somebody's machines, as root and unread: shellcheck finds what a shell would do otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.deploy_tools import DEPLOY, ROOT, tool

_BEGINS = (b"#!/bin/sh", b"#!/bin/bash", b"#!/usr/bin/env bash")


def is_shell(path: Path) -> bool:
    return path.is_file() and (path.suffix in (".sh", ".sbatch") or path.read_bytes().startswith(_BEGINS))


SCRIPTS = [ROOT / ".ci" / "run", *sorted(filter(is_shell, (*DEPLOY.rglob("*"), *Path(__file__).parent.rglob("*"))))]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_shellcheck_finds_nothing_in(script: Path) -> None:
    said = tool("shellcheck", script)
    assert said.returncode == 0, said.stdout
