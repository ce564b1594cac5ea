"""A worker that computes, reads or holds something else than most is found, named and replaced; no bit differs."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from elastic.events.reading import read_events
from elastic.membership.exit_statuses import WRONG
from tests.kit.launch import Launch

pytestmark = pytest.mark.nightly(sample=3, of="workers that are wrong")

HERE = socket.gethostname()


def trained(url: Path, *flags: object, workers: int = 3, status: int = 0) -> str:
    """What was printed."""
    args = ["run", "--standalone", f"--nproc-per-node={workers}", "-m", "tests.kit.programs.errs", url, *flags]
    with Launch("elastic", args) as launch:
        assert launch.finish(within_s=240) == status, launch.output
        return launch.output


def digest(output: str) -> str:
    return output.split("digest ")[1].split()[0]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    return digest(trained(tmp_path_factory.mktemp("undisturbed") / "run"))


def causes(url: Path) -> list[str]:
    return [event["cause"] for event in read_events(url) if event["event"] == "fault_detected"]


@pytest.mark.parametrize(
    ("kind", "over_steps"),
    [("multiplies", []), ("multiplies", ["--over-steps"]), ("weight", []), ("moment", []), ("reads", [])],
    ids=["multiplies", "multiplies, over steps", "weight", "moment", "reads"],
)
def test_what_it_gave_since_the_last_save_is_computed_again(
    tmp_path: Path, undisturbed: str, kind: str, over_steps: list[str]
) -> None:
    """It began after the save of step 4, and is found in the step before the next one at the latest."""
    url = tmp_path / "run"
    output = trained(url, "--kind", kind, "--once", tmp_path / "once", *over_steps)
    assert f"rank 1 (on {HERE}) computes wrongly, and leaves" in output
    assert f"(local rank 1) ended: exit status {WRONG}" in output
    assert "resuming after step 4 of 16" in output
    assert digest(output) == (digest(trained(tmp_path / "alike", *over_steps)) if over_steps else undisturbed)
    (cause,) = (cause for cause in causes(url) if not cause.startswith("exit status"))
    assert cause.startswith("elastic.errors.ComputesWrongly: ")
    assert f"rank 1 (on {HERE})" in cause
    assert (kind == "reads") == bool(re.search(r"another batch: (dataset\[\d+\], in \[0\](; )?){3}, and 1 more", cause))


@pytest.mark.parametrize("kind", ["gradient", "moment"])
def test_where_all_is_checked_the_others_go_on(tmp_path: Path, undisturbed: str, kind: str) -> None:
    """Nothing is applied that one worker alone has computed, so nothing is computed again but the current step."""
    url = tmp_path / "run"
    output = trained(url, "--kind", kind, "--once", tmp_path / "once", "--cross-check", 1)
    assert digest(output) == undisturbed
    assert "resuming" not in output
    (cause,) = causes(url)
    assert f"rank 1 (on {HERE})" in cause
    redone = {event["step"] for event in read_events(url) if event["event"] == "redo"}
    assert redone <= {5, 6}


def test_a_body_that_counts_is_the_script_s_doing(tmp_path: Path) -> None:
    """It gives other bits on every worker, and each time: no machine is blamed."""
    output = trained(tmp_path / "run", "--kind", "counts", status=1)
    assert "share 5 of step 7 was passed twice, by rank 2" in output
    assert "ComputesWrongly" not in output


def test_a_machine_that_is_wrong_again_and_again_is_gone_on_without(tmp_path: Path, undisturbed: str) -> None:
    output = trained(tmp_path / "run", "--kind", "multiplies")
    assert "wrong 4 times in this place" in output
    assert "the run goes on without it" in output
    assert digest(output) == undisturbed


def test_a_script_that_writes_on_the_coordinator_alone_ends(tmp_path: Path) -> None:
    """Whoever coordinates is found wrong, one after the other."""
    output = trained(tmp_path / "run", "--kind", "clamps", status=1)
    assert "not under\n         `if run.is_coordinator:`" in output


@pytest.mark.parametrize("kind", ["multiplies", "reads", "began"])
@pytest.mark.parametrize("workers", [2, 3])
def test_who_joins_with_other_bits_is_not_let_in(tmp_path: Path, workers: int, kind: str) -> None:
    """Nothing of it is applied, so that nothing has to be computed again, and another one takes its place; where a
    body depends on when its worker began, the others go on without one there."""
    url, flags = tmp_path / "run", ["--steps", 80]
    once = ["--once", tmp_path / "once"] if kind != "began" else []
    output = trained(url, "--kind", kind, "--joins", "--unhurried", workers, *flags, *once, workers=workers)
    assert "elastic.errors.NotLetIn: this worker is not let in: share " in output
    assert f"by rank {workers - 1} (on {HERE})" in output
    assert "resuming" not in output
    assert digest(output) == digest(trained(tmp_path / "whole", *flags, workers=workers))
    came = sum(event["event"] == "loaded" and event["step"] > 0 for event in read_events(url))
    assert came == (2 if once else 4)
    assert ("wrong 4 times in this place" in output) == (kind == "began")


@pytest.mark.parametrize("workers", [2, 3])
def test_who_joins_and_sets_another_rate_is_not_let_in(tmp_path: Path, workers: int) -> None:
    """By a count of its own, which shows in the second step that it has a part in."""
    flags = ["--kind", "rate", "--steps", 80]
    output = trained(tmp_path / "run", *flags, "--joins", "--unhurried", workers, workers=workers)
    assert "elastic.errors.NotLetIn: this worker is not let in: the workers' optimizers, or schedules" in output
    assert f"rank {workers - 1} (on {HERE}) holds other settings" in output
    assert "resuming" not in output
    assert "wrong 4 times in this place" in output
    assert digest(output) == digest(trained(tmp_path / "whole", *flags, workers=workers))
