"""What a save goes on from: the checkpoint that was loaded, here or elsewhere; never over another job's head."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from elastic_checkpoint import Checkpointer, ClaimLost, RunMovedOn, StorageError
from elastic_checkpoint.format.names import claim_key
from elastic_checkpoint.storage import Buffer, Storage, open_storage
from elastic_checkpoint.testing import Error, Faults, Plan
from tests.kit.ranks import returned, run_ranks
from tests.storage.together import ranks_of

Make = Callable[..., Checkpointer]


def state(value: float) -> dict[str, Any]:
    return {"w": torch.full((4,), float(value))}


def steps(runs: Checkpointer) -> list[int]:
    return [commit.step for commit in runs.list() if commit.in_lineage]


def newest(folder: Path) -> tuple[int, float]:
    """What a restart goes on from: the step, and what it holds."""
    found = Checkpointer(folder).read()
    return found.step, float(found.tree["w"][0])


def test_a_job_that_loaded_before_another_went_on_is_refused_at_its_first_save(
    tmp_path: Path, checkpointer: Make
) -> None:
    """An accidental second launch: the first one finishes meanwhile, so nobody holds the claim. What the second one
    saved would outrank the finished run, and sweep it away."""
    first, second = checkpointer(tmp_path, keep=2), checkpointer(tmp_path, keep=2)
    first.save(100, state(100))
    here = state(0)
    assert second.load(here, default=0) == 100
    for step in (900, 1000):
        first.save(step, state(step))
    first.close()

    for _ in range(2):  # it stays refused
        with pytest.raises(RunMovedOn, match=r"newest checkpoint is step 1000(.|\n)*this job loaded c00000001.s0*100-"):
            second.save(110, here)
    assert list(open_storage(tmp_path).list("claims")) == ["claims/00000001.json"]
    assert newest(tmp_path) == (1000, 1000.0)

    assert second.load(here) == 1000  # going on from there is right
    second.save(1010, here)
    assert steps(second) == [1010, 1000]


def test_of_two_jobs_that_began_a_run_the_second_is_refused(tmp_path: Path, checkpointer: Make) -> None:
    first, second = checkpointer(tmp_path), checkpointer(tmp_path)
    assert first.load(state(0), default=0) == second.load(state(0), default=0) == 0
    first.save(5, state(5))
    first.close()
    with pytest.raises(RunMovedOn, match="found no checkpoint, and began anew"):
        second.save(3, state(3))
    assert newest(tmp_path) == (5, 5.0)


def test_what_is_only_looked_at_means_nothing_for_a_save(tmp_path: Path, checkpointer: Make) -> None:
    runs = checkpointer(tmp_path, keep=9)
    for step in (1, 2, 3):
        runs.save(step, state(step))
    assert runs.load(state(0), step=1, resume=False) == 1
    assert runs.read(step=2).step == 2
    runs.save(4, state(4))
    assert [(commit.claim, commit.step) for commit in runs.list()] == [(1, 4), (1, 3), (1, 2), (1, 1)]


@pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "background"])
@pytest.mark.parametrize("again", [False, True], ids=["same process", "new process"])
def test_going_back_to_an_older_step_makes_a_branch(
    tmp_path: Path, again: bool, blocking: bool, checkpointer: Make
) -> None:
    """After a spike in the loss, say. What came after that step is the run's no more; it is not what a restart finds,
    and goes after the grace. What is saved now is never taken for old, whatever its step."""
    runs = checkpointer(tmp_path, keep=3)

    def save(step: int, value: float) -> None:
        if blocking:
            runs.save(step, state(value))
        else:
            runs.save(step, state(value), blocking=False).wait(60)

    for step in (50, 80, 90, 100):
        save(step, step)
    if again:
        runs.close()
        runs = checkpointer(tmp_path, keep=3)
    here = state(0)
    assert runs.load(here, step=80) == 80
    for step in (82, 84):
        save(step, -step)
        assert newest(tmp_path) == (step, -step)
    runs.wait()
    assert [(commit.step, commit.in_lineage) for commit in runs.list()] == [
        (84, True), (82, True), (80, True), (100, False), (90, False),
    ]  # fmt: skip
    runs.close()

    swept = checkpointer(tmp_path, orphan_grace_s=0)
    assert swept.load(here) == 84
    swept.save(86, here)
    assert steps(swept) == [86, 84, 82]
    assert len(swept.list()) == 3


def test_a_loop_that_is_run_again_loses_nothing(tmp_path: Path, checkpointer: Make) -> None:
    """A notebook's cell: its steps begin again while the process holds its claim."""
    runs = checkpointer(tmp_path, keep=3)
    for turn, step in itertools.product((1, 2), (10, 20, 30)):
        runs.save(step, state(turn))
        assert newest(tmp_path) == (step, float(turn))
    runs.save(30, state(3))
    assert newest(tmp_path) == (30, 3.0)
    assert [(commit.claim, commit.step) for commit in runs.list()] == [(2, 30), (2, 30), (2, 20)]


def test_a_damaged_checkpoint_that_was_passed_over_stays_the_runs(tmp_path: Path, checkpointer: Make) -> None:
    """Nobody asked to go back: it may be whole again tomorrow, and a person looks at it."""
    runs = checkpointer(tmp_path, keep=9)
    commits = [runs.save(step, state(step)) for step in (1, 2, 3)]
    whole = (tmp_path / commits[2].id.shard_key(0)).read_bytes()
    (tmp_path / commits[2].id.shard_key(0)).write_bytes(whole[:-1])
    assert runs.load(state(0)) == 2
    assert runs.save(3, state(33)).claim == 2
    assert newest(tmp_path) == (3, 33.0)
    assert [(commit.claim, commit.step) for commit in runs.list()] == [(2, 3), (1, 3), (1, 2), (1, 1)]


def test_who_was_replaced_cannot_branch(tmp_path: Path, checkpointer: Make) -> None:
    old = checkpointer(tmp_path)
    for step in (1, 2):
        old.save(step, state(step))
    new = checkpointer(tmp_path, take_over=True)
    new.save(3, state(3))
    old.load(state(0), step=1)
    with pytest.raises(ClaimLost, match="claim 2 is newer"):
        old.save(2, state(22))
    with pytest.raises(ClaimLost):
        old.save(0, state(0))
    assert steps(new) == [3, 2, 1]


def test_a_commit_that_was_reported_as_failed_is_gone_back_from_too(tmp_path: Path, checkpointer: Make) -> None:
    """Its manifest is there, and the storage answered no more. What is saved of earlier steps under the same claim
    would be older than it: swept as it is committed, and not what a restart loads."""
    unanswered = Error("timeout", path="*/commits/*s000000100-*", on=("read", "look"))
    faults = Faults(Plan(unanswered))
    url, options = faults.around(str(tmp_path), {"auto_mkdir": True})
    runs = checkpointer(url, storage_options=options, retry_s=0.2, keep=2)
    runs.save(50, state(50))
    with pytest.raises(StorageError, match="may be committed"):
        runs.save(100, state(100))
    faults.heal()
    for step in (60, 70, 80):
        assert runs.save(step, state(step)).claim == 2
        assert newest(tmp_path) == (step, float(step))


class Failing:
    """Lists nothing from the moment on that the second claim is there, until it is well again."""

    def __init__(self, inner: Storage) -> None:
        self._inner, self.failing = inner, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def put_new(self, key: str, data: Buffer) -> None:
        self._inner.put_new(key, data)
        self.failing = self.failing or key == claim_key(2)

    def list(self, prefix: str) -> dict[str, int]:
        if self.failing:
            raise StorageError("no answer for long", operation="list", key=prefix, attempts=9)
        return self._inner.list(prefix)


@pytest.mark.parametrize("then", [1, 4], ids=["goes back again", "goes on"])
def test_a_claim_that_a_failing_storage_left_half_taken_does_not_stand_against_its_own_taker(
    then: int, tmp_path: Path, checkpointer: Make
) -> None:
    """It was told that another job had replaced it, and stopped: the newer claim was its own."""
    storage = Failing(open_storage(tmp_path))
    runs = checkpointer(storage, keep=9)
    for step in (1, 2, 3):
        runs.save(step, state(step))
    with pytest.raises(StorageError):
        runs.save(1, state(11))
    storage.failing = False
    claim = runs.save(then, state(44)).claim
    assert claim == (3 if then == 1 else 1)
    assert newest(tmp_path) == (then, 44.0)
    assert steps(runs) == [then, 3, 2, 1]


def go_back(rank: int, size: int, folder: str) -> list[tuple[int, int, bool]]:
    with ranks_of(folder, rank, size, name="back") as (runs, _):
        here = state(0)
        assert runs.load(here, default=0) == 0
        for step in (1, 2, 3):
            runs.save(step, state(step))
        assert runs.load(here, step=1) == 1
        assert float(here["w"][0]) == 1.0
        runs.save(2, state(22), blocking=False).wait(60)
        for step in (3, 2):
            runs.save(step, state(10 * step))
        return [(commit.claim, commit.step, commit.in_lineage) for commit in runs.list()]


def test_ranks_that_go_back_together_make_one_branch(tmp_path: Path) -> None:
    found = returned(run_ranks(go_back, 2, str(tmp_path)))
    assert found[0][:2] == found[1][:2] == [(3, 2, True), (2, 3, True)]
    assert {(1, 2, False), (1, 3, False)} <= set(found[0])
