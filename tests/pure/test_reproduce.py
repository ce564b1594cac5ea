"""What `elastic reproduce` makes of two records, and of a manifest: its verdict, its causes, what it launches. Pure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elastic.manifest.differences import Difference, differences
from elastic.record import Record, StepRecord
from elastic.reproduce import launch
from elastic.reproduce.source_tree import CannotReproduce, moved_path
from elastic.reproduce.verdict import compare

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
    assert verdict.words() == ["equal, all 1,200 steps"]


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


def test_steps_that_are_on_one_record_alone_are_not_equal() -> None:
    verdict = compare(record(80), record(60), [])
    assert (verdict.equal, verdict.missing, verdict.compared) == (False, [(60, 80)], 60)
    assert compare(record(80), record(60), [], steps=60).equal
    assert not compare(record(80), Record(), []).equal


def test_equal_steps_with_another_tensor_at_their_end_are_not_equal() -> None:
    verdict = compare(record(8), record(8), []).with_tensor("model.weight, of 1 in the checkpoints of step 8")
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
