"""What `elastic reproduce` makes of two records, and of a manifest: its verdict, its causes, what it launches. Pure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from elastic.manifest.differences import Difference, differences
from elastic.record import Part, Record, StepRecord
from elastic.reproduce import launch
from elastic.reproduce.source_tree import CannotReproduce, moved_path
from elastic.reproduce.verdict import compare
from elastic_checkpoint.storage import open_storage

READ, SCRIPT, LIBRARY = "data.identity", "script.sha256", "packages.versions.numpy"


def record(steps: int, *, other: int | None = None, **apart: Any) -> Record:
    """A record of so many steps; from `other` on they differ."""
    known: dict[str, Any] = {"count": 24.0, "sums": {"loss": 1.0}, "shares": ((1, 2), (3, 4))}
    return Record(
        steps={
            at: StepRecord(step=at, **{**known, **(apart if other is not None and at >= other else {})})
            for at in range(steps)
        },
        mode="exact",
    )


def apart(*paths: str) -> list[Difference]:
    """Differences in these fields, as manifests have them."""

    def nested(path: str, value: str) -> dict[str, Any]:
        first, _, rest = path.partition(".")
        return {first: nested(rest, value) if rest else value}

    found = [differences(nested(path, "a"), nested(path, "b")) for path in paths]
    return [one for each in found for one in each]


def test_two_records_that_say_the_same_are_equal() -> None:
    verdict = compare(record(1200), record(1200), apart(LIBRARY))
    assert verdict.equal
    said = "what was read in 1,200, each share's loss and sums in 1,200, the batch's sums in 1,200"
    assert verdict.words() == ["equal, all 1,200 steps", f"  compared  {said}"]
    with_tensors = verdict.with_checkpoints(1200, None).words()[-1]
    assert with_tensors.endswith("in 1,200, all tensors of the checkpoints of step 1200")


def test_two_records_of_what_was_read_alone_are_not_called_equal() -> None:
    """A loop that adds nothing up has neither loss nor sum on record where its backward pass is on a GPU."""
    read = record(6, other=0, sums={}, shares=((1, 0), (3, 0)))
    verdict = compare(read, read, [])
    assert not verdict.equal
    assert verdict.words() == ["only what was read is compared: it is the same in all 6 steps"]
    assert verdict.with_checkpoints(6, None).equal


def test_what_another_number_of_workers_computes_in_fast_mode_is_not_held_against_it() -> None:
    verdict = compare(record(6), record(6, other=2, sums={"loss": 1.5}), apart(LIBRARY), only_read=True)
    assert (verdict.step, verdict.causes, verdict.equal) == (None, [], False)
    other_data = compare(record(6), record(6, other=2, sums={"loss": 1.5}, count=23.0), [], only_read=True)
    assert [part for part, _ in other_data.parts] == [Part.READ]

    launches = [{"run": {"world_size": 3}}, {"run": {"world_size": 2}}]
    assert launch.other_size("exact", launches, 2) is None
    assert launch.other_size("fast", launches[1:], 2) is None
    said = launch.other_size("fast", launches, 2)
    assert said == "what is computed: in fast mode 2 workers give other bits than 2 and 3"


def test_what_was_installed_from_a_folder_is_said_to_be_taken_as_it_is_now(tmp_path: Path) -> None:
    lock = "# What was installed\nnumpy==2.3.0\n# mine==0.1.0 was installed from file:///home/me/mine\n"
    (tmp_path / "lock.txt").write_text(lock)
    manifest = {"packages": {"lock": {"file": "lock.txt"}}}
    said = launch.installed_from_folders(manifest, open_storage(str(tmp_path)))
    assert said == ["mine==0.1.0 was installed from file:///home/me/mine, and is taken as it is here now"]
    assert launch.installed_from_folders({}, open_storage(str(tmp_path))) == []


@pytest.mark.parametrize(
    ("differs", "known", "first_cause"),
    [
        ({"shares": ((1, 2), (9, 4))}, (SCRIPT, READ), READ),
        ({"shares": ((1, 2), (9, 4))}, (LIBRARY,), "the data itself"),
        ({"shares": ((1, 2), (3, 9))}, (READ, SCRIPT), SCRIPT),
        ({"sums": {"loss": 1.5}}, (LIBRARY,), LIBRARY),
        ({"sums": {"loss": 1.5}}, (), "nothing that the manifests know"),
    ],
)
def test_the_first_step_that_differs_is_named_with_what_explains_it(
    differs: dict[str, Any], known: tuple[str, ...], first_cause: str
) -> None:
    verdict = compare(record(80), record(80, other=57, **differs), apart(*known))
    assert (verdict.equal, verdict.step) == (False, 57)
    causes = [words for words in verdict.words() if words.startswith("  cause  ")]
    assert causes[0].removeprefix("  cause  ").startswith(first_cause)


def test_the_first_tensor_is_named_by_the_first_record_that_has_some_or_by_checkpoints() -> None:
    one, other = record(80), record(80, other=57, sums={"loss": 1.5})
    by_checkpoints = compare(one, other, []).with_checkpoints(60, "1.bias, of 2 in the checkpoints of step 60")
    assert by_checkpoints.tensor == "1.bias, of 2 in the checkpoints of step 60"
    for found, prefixes in ((one, (1, 2, 3)), (other, (1, 4, 5))):
        found.steps[60] = replace(found.steps[60], gradient_prefixes=prefixes, parameters=("0.weight", "1.weight", "b"))
    verdict = compare(one, other, []).with_checkpoints(60, "1.bias, of 2 in the checkpoints of step 60")
    assert (verdict.step, verdict.tensor) == (57, "1.weight, in its gradient of step 60")
    assert "  tensor  1.weight, in its gradient of step 60" in verdict.words()
    assert compare(one, other, [], only_read=True).tensor is None


def test_steps_that_are_on_one_record_alone_are_not_equal() -> None:
    verdict = compare(record(80), record(60), [])
    assert (verdict.equal, verdict.missing, verdict.compared) == (False, [(60, 80)], 60)
    assert compare(record(80), record(60), [], steps=60).equal
    assert not compare(record(80), Record(), []).equal


def test_equal_steps_with_another_tensor_at_their_end_are_not_equal() -> None:
    verdict = compare(record(8), record(8), []).with_checkpoints(8, "model.weight, of 1 in the checkpoints of step 8")
    assert not verdict.equal
    assert "model.weight" in verdict.words()[-1]


def test_an_argument_that_held_a_secret_has_to_be_given() -> None:
    manifest = {"script": {"arguments": ["--token", "***"]}}
    with pytest.raises(CannotReproduce, match="held a secret"):
        launch.arguments(manifest, [])
    assert launch.arguments(manifest, ["--token", "mine"]) == ["--token", "mine"]


def test_what_is_imported_from_the_repository_comes_from_the_worktree() -> None:
    at = Path("/tmp/tree")
    assert moved_path("/home/me/code/src:/opt/lib::", "/home/me/code", at) == "/tmp/tree/src:/opt/lib::"
    assert moved_path("/opt/lib", None, at) == "/opt/lib"
