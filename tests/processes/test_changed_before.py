"""What a script changes before a step's inner loop is changed once, also where a worker is lost in that step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.kit.launch import Launch

pytestmark = pytest.mark.nightly(sample=1, of="what is changed before an epoch, or lost with a coordinator")

WITHIN_S = 240.0
PROGRAM = "tests.kit.programs.counts_before"


def test_a_resume_does_not_change_it_once_more(tmp_path: Path) -> None:
    """Under plain torchrun the survivor saved what it held in the midst of step 6: its count was 7 by then, and 8 after
    the resume, in the same step; the run came to its end with other weights."""
    with Launch(PROGRAM, [tmp_path, "alone", -1]) as launch:
        launch.succeed(within_s=WITHIN_S)
    torchrun = ("--standalone", "--max-restarts=2")
    with Launch(PROGRAM, [tmp_path, "disturbed", 6], workers=2, torchrun=torchrun) as launch:
        output = launch.succeed(within_s=WITHIN_S)
    alone, disturbed = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("alone", "disturbed"))
    assert (tmp_path / "killed").exists()
    assert disturbed == alone
    assert alone["count"] == 12
    assert "extra.counter: changed in step 6 before its inner loop" in output
    assert "resuming after step 4 of 12" in output


@pytest.mark.parametrize("killed_at", [8, 10])
def test_the_beginning_of_an_epoch_is_not_passed_once_more(tmp_path: Path, killed_at: int) -> None:
    """Killed in an epoch's first step, the survivor saved what it held, its rate halved; the resume halved it again. So
    it did where it came into the middle of an epoch."""
    program = "tests.kit.programs.begins_epochs"
    with Launch(program, [tmp_path, "alone", -1]) as launch:
        launch.succeed(within_s=WITHIN_S)
    torchrun = ("--standalone", "--max-restarts=2")
    with Launch(program, [tmp_path, "disturbed", killed_at], workers=2, torchrun=torchrun) as launch:
        launch.succeed(within_s=WITHIN_S)
    alone, disturbed = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("alone", "disturbed"))
    assert (tmp_path / "killed").exists()
    assert disturbed == alone
    assert alone["rate"] == 1 / 16
