"""A worker that has left in order, and ended with 0, threw nothing away: what it held is saved, or others have it, too.

What the hub answers, in every order of events, is in tests/pure/test_hub_leaving.py and test_hub_simulated.py.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

import elastic_checkpoint
from elastic.events.event import Event
from elastic.events.reading import read_events
from elastic.report.report import report
from tests.kit.launch import Launch

pytestmark = pytest.mark.nightly(sample=2, of="who leaves and who saves")

PROGRAM = "tests.kit.programs.leaves"
WITHIN_S = 240.0


def under_elastic(folder: Path, workers: int, *args: object) -> Launch:
    flags = ["--standalone", "--no-status", f"--nproc-per-node={workers}"]
    arguments = ["run", *flags, "-m", PROGRAM, folder / "run", folder, *args]
    return Launch("elastic", arguments, env={"ELASTIC_OBSERVER": f"{PROGRAM}:AtSave:{folder}"})


def without_agent(folder: Path, workers: int | None, *args: object) -> Launch:
    """Under torchrun; or alone, where workers is None."""
    env = {"ELASTIC_OBSERVER": f"{PROGRAM}:AtSave:{folder}"}
    return Launch(PROGRAM, [folder / "run", folder, *args], workers=workers, env=env)


def newest(folder: Path) -> int:
    with elastic_checkpoint.Checkpointer(folder / "run") as checkpoints:
        commit = checkpoints.latest()
        assert commit is not None
        return commit.step


def waiting(folder: Path) -> int:
    """How many workers wait until they are told to leave."""
    return len(list(folder.glob("waits-*")))


def of(events: list[Event], name: str) -> list[int]:
    """At which steps."""
    return [event["step"] for event in events if event["event"] == name]


def test_a_worker_that_leaves_saves_where_the_last_other_one_is_killed_at_that_boundary(tmp_path: Path) -> None:
    """It waited to be released, was released because nobody ran, and took the only copy of 21 steps with it."""
    with under_elastic(tmp_path, 2, "--hurt", "alone") as launch:
        output = launch.succeed(within_s=WITHIN_S)
    assert output.count("begins at step 0\n") == 2
    assert output.count("begins at step 21\n") == 1, output
    assert output.count("ends at step 40") == 1
    events = read_events(tmp_path / "run")
    assert of(events, "left") == [21]
    assert sorted(of(events, "saved")) == [0, 21, 40]


@pytest.mark.nightly(sample=1, of="who leaves")
@pytest.mark.parametrize(("launcher", "workers", "kills"), [("elastic", 3, 2), ("torchrun", 2, 1)])
def test_all_leave_and_whoever_begins_the_save_is_killed(
    tmp_path: Path, launcher: str, workers: int, kills: int
) -> None:
    """Out of memory, say: it stages a copy of the state. The others hold it, too, and said that all was saved."""
    start = under_elastic if launcher == "elastic" else without_agent
    (tmp_path / "kills").write_text(str(kills))
    with start(tmp_path, workers, "--hurt", "told") as launch:
        launch.wait_for(lambda: waiting(tmp_path) == workers, "waiting workers", within_s=WITHIN_S)
        launch.send(signal.SIGTERM)
        status = launch.finish(within_s=WITHIN_S)
        output = launch.output
    assert (tmp_path / "kills").read_text() == "0"
    left = of(read_events(tmp_path / "run"), "left")
    assert len(left) == workers - kills, output
    assert {newest(tmp_path)} == set(left) == {31}, output
    assert status == (0 if launcher == "elastic" else 1), output  # torchrun's own: it was told to end, and says so
    assert report(read_events(tmp_path / "run")).state == "left"


def test_the_end_of_a_run_is_saved_though_its_coordinator_is_killed_as_it_begins_to(tmp_path: Path) -> None:
    """Under torchrun, which may be told not to start anything again."""
    (tmp_path / "kills").write_text("1")
    with without_agent(tmp_path, 2) as launch:
        assert launch.finish(within_s=WITHIN_S) == 1
    assert (tmp_path / "kills").read_text() == "0"
    assert newest(tmp_path) == 40
    assert report(read_events(tmp_path / "run")).state == "finished"


@pytest.mark.nightly(sample=1, of="who leaves")
@pytest.mark.parametrize("launcher", ["elastic", "none"])
def test_one_that_leaves_and_cannot_save_says_so_and_fails(tmp_path: Path, launcher: str) -> None:
    args = ("--hurt", "told")
    launched = under_elastic(tmp_path, 1, *args) if launcher == "elastic" else without_agent(tmp_path, None, *args)
    with launched as launch:
        launch.wait_for(lambda: waiting(tmp_path) == 1, "a waiting worker", within_s=WITHIN_S)
        (tmp_path / "breaks").touch()
        launch.send(signal.SIGTERM)
        status = launch.finish(within_s=WITHIN_S)
        output = launch.output
    assert status == 1, output
    assert "what it holds is not saved: " in output
    assert "it goes on from the newest checkpoint" in output
    assert "all is saved" not in output
    assert of(read_events(tmp_path / "run"), "left") == []


def test_a_worker_that_is_killed_at_one_step_again_and_again_ends_the_run(tmp_path: Path) -> None:
    """The kernel's out-of-memory killer took 38 of them in 30 seconds, and would have gone on for ever."""
    with under_elastic(tmp_path, 1, "--hurt", "step") as launch:
        status = launch.finish(within_s=WITHIN_S)
        output = launch.output
    assert status == 1
    assert output.count("begins at step 0") == 7, output
    assert "was killed (SIGKILL) at step 5, as 6 before it in its place, and no step was applied meanwhile" in output
    assert "out-of-memory killer took nothing" in output
    assert "a smaller micro_batch_size" in output
    assert [f"in {seconds} s" in output for seconds in (1, 2, 4, 8)] == [True] * 4
