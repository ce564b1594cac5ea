"""Workers of a replica that do not pass the same units, or one that passes the model alone: refused by name, at once.

They would wait for each other in messages that never meet; or, where as many of the same size go round, take those of
one unit for those of another, and train on.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from elastic.events.reading import read_events
from tests.kit.launch import Launch
from tests.kit.programs.apart import BETWEEN, WAYS

WITHIN_S = 120.0
PROGRAM = "tests.kit.programs.apart"
SCRIPT = Path(__file__).parents[1] / "kit" / "programs" / "apart.py"
DIFFER = "CollectiveMismatch: the workers of a replica do not pass the same units of fully_shard"
OUTSIDE = "StepError: a forward pass of model, a unit of fully_shard, outside the loop's body and run.evaluate"
FOUND = {
    "skips": ("gathers model.layers.2", "gathers model.layers.1"),
    "skips-last": ("gathers model.layers.2", "gathers model.last"),
    "swaps": ("gathers model.layers.1", "gathers model.layers.0"),
    "cuts": ("sums the gradients of model", "sums the gradients of model.layers.1"),
    "twice": ("gathers model.layers.0", "gathers model.last"),
    "more": ("gathers model", "is past this pass"),
}
"""What the worker that goes its way is about to do, and what the others are, where they first differ."""


def launched(url: Path, way: str, *options: str, workers: int = 2, size: int | None = None) -> Launch:
    env = {"OMP_NUM_THREADS": "1"}
    if size is None:
        return Launch(PROGRAM, [url, way, *options], workers=workers, env=env)
    of_run = ["run", "--no-status", f"--nproc-per-node={workers}", f"--replica-size={size}", SCRIPT]
    return Launch("elastic", [*of_run, url, way, *options], env=env)


def steps(url: Path) -> set[int]:
    return {event["step"] for event in read_events(url) if event["event"] == "step_applied"}


@pytest.mark.nightly(sample=2)
@pytest.mark.parametrize("loop", [(), ("--plain",), ("--fast",)], ids=["steps", "batches", "fast"])
@pytest.mark.parametrize("member", [0, 1])
@pytest.mark.parametrize("way", WAYS)
def test_members_that_use_different_units_are_refused_by_name(
    tmp_path: Path, way: str, member: int, loop: tuple[str, ...]
) -> None:
    """Before the pass in which they do has given anything: the step is not applied, nor any later one."""
    with launched(tmp_path / "run", way, f"--member={member}", *loop) as launch:
        assert launch.finish(within_s=WITHIN_S)
        output = launch.output
    assert output.count(f"{DIFFER}, and") == 2, output
    apart, others = FOUND[way]
    for place, does in ((member, apart), (1 - member, others)):
        assert f"  worker {place} of the replica {does}\n" in output, output
    assert steps(tmp_path / "run") == {0}
    errors = [event["error"] for event in read_events(tmp_path / "run") if event["event"] == "error"]
    assert len(errors) == 2
    assert all(error.startswith(DIFFER) for error in errors)


def test_of_three_members_all_are_told_of_the_one(tmp_path: Path) -> None:
    with launched(tmp_path / "run", "skips", "--member=2", workers=3) as launch:
        assert launch.finish(within_s=WITHIN_S)
        assert launch.output.count(f"{DIFFER}, and") == 3, launch.output
        for place, layer in enumerate((1, 1, 2)):
            assert f"  worker {place} of the replica gathers model.layers.{layer}\n" in launch.output, launch.output


@pytest.mark.nightly(sample=1)
@pytest.mark.parametrize("way", [*BETWEEN, "skips"])
def test_replicas_whose_workers_go_apart_end_the_run_and_say_so(tmp_path: Path, way: str) -> None:
    """Whatever comes in the place of a replica that ends so does the same."""
    with launched(tmp_path / "run", way, workers=4, size=2) as launch:
        assert launch.finish(within_s=WITHIN_S)
        assert (DIFFER if way == "skips" else OUTSIDE) in launch.output, launch.output


@pytest.mark.parametrize("way", BETWEEN)
def test_a_pass_between_two_steps_is_refused_by_name(tmp_path: Path, way: str) -> None:
    """On the worker that makes it, whose mates may be waiting for it to come to a save."""
    with launched(tmp_path / "run", way) as launch:
        assert launch.finish(within_s=WITHIN_S)
        assert OUTSIDE in launch.output


def test_workers_that_pass_the_model_alike_are_not_refused(tmp_path: Path) -> None:
    with launched(tmp_path / "run", "none", workers=4, size=2) as launch:
        assert launch.succeed(within_s=WITHIN_S).count("took part") == 4
