"""Scripts that keep something of their own, under `elastic check`: it names what does harm, and lets the rest be.

The scripts are those that once were told apart by a look at their source and their variables: kit/programs/kept.py.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import pytest

from elastic.drill import check_command
from tests.kit.forked_drill import ForkedDrill
from tests.kit.needs import needs_transformers
from tests.kit.programs.kept import SCRIPTS

PROGRAM = Path(__file__).parents[1] / "kit" / "programs" / "kept.py"
STEPS = 8
GRADIENTS = "gave other gradients the second time"
BATCHES = "the batches are not the same"

IN_THE_FIRST_STEPS = {
    "running_mean_in_an_attribute": GRADIENTS,
    "hidden_state_handed_on_by_the_loop": GRADIENTS,
    "teacher_that_each_body_moves": GRADIENTS,
    "another_loader_read_on": GRADIENTS,
    "momentum_encoder_in_the_model": "the body of the inner loop wrote to weights in step 0: key.weight",
    "critic_with_an_optimizer_of_its_own": "a SGD that the run does not know steps in one body of the loop",
    "break_by_a_count_of_batches": "was left before its inner loop ended",
    "harder_by_a_count_of_reads_in_a_loader": BATCHES,
    "augmented_in_place": BATCHES,
    "collates_with_a_generator_of_the_script_s": BATCHES,
    "hardness_set_in_each_body": BATCHES,
}
"""Found by one worker, without faults. Words that say what it is."""

REFUSED = "the run refused what the script does: "
# When a newcomer has its first part of a step depends on how long it took: whoever is not turned away by then is found
# by the resume after the loss of all, or by the judge. One that came as an epoch ended has it right, and alone.
BY_THE_RESUME = "than (it did )?before the run was ended"
NOT_LET_IN = f"not let in|differs from the undisturbed run's: digest|{BY_THE_RESUME}"
READ_OTHERWISE = f"{BATCHES}|was not the same when it was read elsewhere or again|{BY_THE_RESUME}"
SET_OTHERWISE = "are set differently|differs from the undisturbed run's: digest"
WHERE_WORKERS_COME_AND_GO = {
    "temperature_in_an_attribute": NOT_LET_IN,
    "teacher_in_a_loop_over_steps": NOT_LET_IN,
    "back_to_the_best_weights": f"{REFUSED}CollectiveMismatch: the workers no longer hold the same",
    "evaluates_on_the_coordinator_and_forgets": f"{REFUSED}CollectiveMismatch: the workers no longer hold the same",
    "warm_up_by_a_count_of_steps": SET_OTHERWISE,
    "temperature_by_the_own_loss": GRADIENTS,
    "meter_in_extra_of_the_own_loss": "the last checkpoints differ in 1 entries: extra.meter.total",
    "hardness_raised_each_epoch": READ_OTHERWISE,
    "split_that_nobody_has_seeded": READ_OTHERWISE,
    "augmented_once_and_cached": READ_OTHERWISE,
}
"""Found by three workers, by one that comes, or by those that go on."""

TRAINERS = {
    "lightning_callback_that_counts_for_the_rate": SET_OTHERWISE,
    "lightning_list_that_shares_fill": "",
    "transformers_trainer_that_weighs_by_its_count": GRADIENTS,
}
"""The same with a trainer; without words: harmless. Their imports take longer than all else."""

HARMLESS = (
    "caches_and_last_inputs",
    "collates_and_takes_its_examples_apart",
    "counts_caches_and_opens_late",
    "counts_prints_and_bests",
    "frozen_modules_and_copies_to_look_at",
    "teacher_that_was_handed_over",
    "temperature_in_the_extra_state",
)
"""They only count, print and cache, or hand over what they keep."""

NOT_FOUND = {
    "average_that_only_the_end_reads": "a worker that came, or went on, has begun it anew: its file is another one",
    "optimizer_made_anew_in_the_loop": "it has no effect; but on one worker as on many, and so it was from the start",
}
"""No share depends on what they keep, so no bit of the run is another one. What harm it does all the same.

(At a run's end workers may honestly hold other copies: one to look at is made anew where the next epoch ends.)"""


@pytest.fixture(autouse=True)
def _drills_are_made_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "drills").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "drills"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "drills"))


def check(name: str, said: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Its status, and all that it said."""
    given = [f"--steps={STEPS}", "--keep", str(PROGRAM), "--", name]
    status = check_command.main(given, drill=ForkedDrill)
    return status, "".join(said.readouterr())


def advice(drills: Path) -> list[str]:
    """What workers said of the script: every such word ends by what to do next.

    Where all are killed, a worker may still see that its writer process is gone; and a run of another test may ask
    after a dead holder at a port that has been given to this one since, with another secret.
    """
    outputs = [path.read_text(errors="replace") for path in drills.glob("*/*/output-*.txt")]
    assert outputs
    lines = [line for output in outputs for line in output.splitlines() if re.match(r"  (found|next) ", line)]
    return [line for line in lines if "a new writer process" not in line and "ELASTIC_SECRET" not in line]


def test_of_each_script_it_is_said_what_becomes_of_it() -> None:
    said = [*IN_THE_FIRST_STEPS, *WHERE_WORKERS_COME_AND_GO, *HARMLESS, *NOT_FOUND, *TRAINERS]
    assert sorted(said) == sorted(SCRIPTS)


@pytest.mark.nightly(sample=2)
@pytest.mark.parametrize("name", IN_THE_FIRST_STEPS)
def test_what_one_worker_finds_is_named_in_a_first_step(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, said = check(name, capsys)
    assert status == 1, said
    assert "elastic check: the run refuses the script, on one worker and without faults\nStepError: " in said
    assert IN_THE_FIRST_STEPS[name] in said


@pytest.mark.nightly(sample=1)
@pytest.mark.parametrize("name", WHERE_WORKERS_COME_AND_GO)
def test_what_shows_where_workers_come_and_go_is_named(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, said = check(name, capsys)
    assert status == 1, said
    assert re.search(WHERE_WORKERS_COME_AND_GO[name], said), said


@pytest.mark.nightly(sample=1)
@pytest.mark.parametrize("name", HARMLESS)
def test_what_does_no_harm_passes_without_a_word(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, said = check(name, capsys)
    assert status == 0, said
    assert "In the script" not in said
    assert advice(tmp_path / "drills") == []


@pytest.mark.nightly
@pytest.mark.parametrize("name", NOT_FOUND)
def test_what_no_share_depends_on_is_not_found(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """So that people are told of it, in docs/how-to/keep-your-loop.md, as long as it holds."""
    status, said = check(name, capsys)
    assert status == 0, said


@pytest.mark.nightly
@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=needs_transformers if one.startswith("transformers") else ()) for one in TRAINERS]
)
def test_with_a_trainer_it_is_alike(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = TRAINERS[name]
    status, said = check(name, capsys)
    assert status == bool(words), said
    assert re.search(words, said), said
