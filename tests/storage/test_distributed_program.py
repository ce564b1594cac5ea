"""The plain DDP script of the README, run, killed and continued under torchrun, on other numbers of ranks."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from elastic_checkpoint import Checkpointer, digest
from elastic_checkpoint.runs.orphans import wait_for_orphans
from tests.kit.launch import Launch

PROGRAM = "tests.kit.programs.ddp"
ENOUGH = 1_000_000  # steps; it is killed before
WITHIN_S = 240.0


def said(launch: Launch) -> list[dict[str, Any]]:
    return [json.loads(line) for line in launch.output.splitlines() if line.startswith('{"rank"')]


@pytest.mark.nightly(sample=1, of="killed at any moment beside training")
def test_a_ddp_script_is_killed_and_goes_on_with_three_ranks_and_with_one(tmp_path: Path) -> None:
    with Launch(PROGRAM, [tmp_path, ENOUGH], workers=2) as first, Checkpointer(tmp_path) as runs:

        def third() -> bool:
            newest = runs.latest()
            return newest is not None and newest.step >= 3

        first.wait_for(third, "third checkpoint", within_s=WITHIN_S)
        os.kill(next(one["pid"] for one in said(first) if one["rank"] == 0), signal.SIGKILL)
        assert first.finish(within_s=WITHIN_S) != 0
        wait_for_orphans(runs.url, within_s=WITHIN_S, log=print)  # what both ranks had staged is committed yet

    for workers in (3, 1):
        with Checkpointer(tmp_path) as runs:
            whole = runs.read()
        with Launch(PROGRAM, [tmp_path, whole.step + 2], workers=workers) as again:
            again.succeed(within_s=WITHIN_S)
            found = said(again)
        assert sorted(one["rank"] for one in found) == list(range(workers))
        assert {(one["resumed"], one["digest"]) for one in found} == {(whole.step, digest(whole.tree))}
        with Checkpointer(tmp_path) as runs:
            newest = runs.read()
        assert newest.step == newest.tree["step"] == whole.step + 2
