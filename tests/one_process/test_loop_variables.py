"""What a loop keeps by itself is told of: as a run begins, of what counts shares; after a resume, of all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.one_process.test_other_modules import step
from tests.one_process.test_plain_misuse import Plain

BY_SHARE = "keeps seen, losses from batch to batch by itself, and a batch is a share"


def trained(url: Path, *, steps: int, mode: str = "exact") -> None:
    loop, seen, losses, steps_done, best = Plain(url, epochs=None, steps=steps, mode=mode), 0, [], 0, 9.0
    with loop.run as run:
        for _ in run.epochs():
            total = 0.0
            for x, y in run.batches():
                step(loop, x, y)
                seen += len(y)
                losses.append(seen)
                total += seen
                if run.stepped:
                    steps_done += 1
            best = min(best, total)
    assert (seen, steps_done, best) != (0, 0, 9.0)


def test_a_new_run_is_told_once_of_what_counts_shares(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained(tmp_path, steps=8)
    said = capsys.readouterr().err
    assert said.count(BY_SHARE.replace("losses", "losses, total")) == 1
    assert "began anew" not in said


def test_a_count_in_fast_mode_is_of_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its body runs once a step, whatever the world size; what goes on begins anew all the same."""
    trained(tmp_path, steps=6, mode="fast")
    assert "a batch is a share" not in capsys.readouterr().err
    trained(tmp_path, steps=12, mode="fast")
    assert "began anew with it: seen, losses, total" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("before", "names"),
    [(6, "seen, losses, total, steps_done, best"), (4, "seen, losses, steps_done, best")],
    ids=["in an epoch's midst", "where one begins"],
)
def test_one_that_goes_on_is_told_of_all_that_began_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], before: int, names: str
) -> None:
    """A warm-up by `seen` would come once more, and what was the best is forgotten."""
    trained(tmp_path, steps=before)
    capsys.readouterr()
    trained(tmp_path, steps=12)
    said = capsys.readouterr().err
    told = f"step {before} is the first one here, and what the script keeps from turn to turn by itself began anew"
    assert said.count(told) == 1
    (line,) = (line for line in said.splitlines() if told in line)
    assert sorted(line.rpartition(": ")[2].split(", ")) == sorted(names.split(", "))
    assert "a batch is a share" not in said


def test_a_count_that_begins_at_the_run_s_is_not_begun_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As the pages write it, for Accelerate's scripts too."""
    for steps in (6, 12):
        loop = Plain(tmp_path, epochs=None, steps=steps)
        with loop.run as run:
            completed_steps = run.step_index
            for _ in run.epochs():
                for x, y in run.batches():
                    step(loop, x, y)
                    if run.stepped:
                        completed_steps += 1
        assert completed_steps == steps
    assert "keeps" not in capsys.readouterr().err


def test_a_loop_that_keeps_nothing_is_told_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for epochs in (1, 2):
        loop = Plain(tmp_path, epochs=epochs)
        with loop.run as run:
            for x, y in run.batches():
                step(loop, x, y)
    said = capsys.readouterr().err
    assert "by itself" not in said


def test_what_enumerate_counts_is_told_of_with_what_else_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """For a rate, a decay or a cadence it would be wrong; two notices of one fact are read as two faults."""
    for steps in (6, 8):
        loop, running = Plain(tmp_path, epochs=None, steps=steps), 0.0
        with loop.run as run:
            for _ in run.epochs():
                for at, (x, y) in iter(enumerate(run.batches())):
                    step(loop, x, y)
                    running += at
    said = capsys.readouterr().err
    assert said.count("the script keeps at, running from batch to batch by itself") == 1
    assert said.count("run.step_in_epoch") == 2
    assert said.count("a batch is a share") == 1
    assert said.count("began anew with it: at, running") == 1


def test_a_count_that_no_body_reads_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loop = Plain(tmp_path)
    with loop.run as run:
        for _ in run.epochs():
            for _number, (x, y) in enumerate(run.batches()):
                step(loop, x, y)
    assert "a batch is a share" not in capsys.readouterr().err


def test_a_loop_over_steps_is_told_likewise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for steps in (3, 6):
        loop, shares, done = Plain(tmp_path, epochs=None, steps=steps, cross_check=None), 0, 0
        with loop.run as run:
            for taken in run:
                for x, y in taken:
                    taken.backward(loop.loss(x, y) * len(y), count=len(y))
                    shares += 1
                done += 1
        assert (shares, done) == (9, 3)
    said = capsys.readouterr().err
    assert said.count("keeps shares from batch to batch by itself") == 1
    assert said.count("step 3 is the first one here, and what the script keeps from turn to turn by itself") == 1
    assert "shares, done" in said
