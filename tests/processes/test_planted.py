"""The judge notices bugs of our own: each of a catalogue is planted in every process of a real run, and named.

With no bug planted the same runs are green, so it is the bug that is noticed and not the fault. Of both `make test`
runs a sample, another one each day, and `make nightly` all. See tests/kit/planted.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit.planted.catalogue import CATALOGUE
from tests.kit.planted.plans import WAYS, Undisturbed, judged, undisturbed

Reference = Callable[[str | None], Undisturbed]
REFUSED = (
    "was read twice, by",
    "was passed twice, by",
    "gives other gradients than before the run was ended",
    "its update other weights than before the run was ended",
    "its commits are gone",
)
"""What a run says of another share, or another first step, than others have computed, and of saves that are missing."""
MADE_GOOD = "ComputesWrongly: "
"""Of a worker that most have found wrong: it is replaced, and what it may have spoilt is computed again."""


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """The undisturbed run of a script with that habit, run when it is first asked for."""
    folder, made = tmp_path_factory.mktemp("undisturbed"), dict[str | None, Undisturbed]()

    def of(habit: str | None) -> Undisturbed:
        if habit not in made:
            made[habit] = undisturbed(folder / str(habit), habit)
        return made[habit]

    return of


@pytest.mark.nightly(sample=1)
@pytest.mark.elastic_drill
@pytest.mark.parametrize("name", WAYS)
def test_with_no_bug_planted_the_judge_finds_nothing(reference: Reference, tmp_path: Path, name: str) -> None:
    verdict, output = judged(WAYS[name], tmp_path, reference(WAYS[name].habit))
    assert verdict.ok, f"{WAYS[name].what}\n{verdict}\n{output}"


@pytest.mark.elastic_drill
@pytest.mark.nightly(sample=3)
@pytest.mark.parametrize("name", CATALOGUE)
def test_a_planted_bug_is_noticed(reference: Reference, tmp_path: Path, name: str) -> None:
    """By each of the invariants that it breaks, or by the run itself before that; and it must have acted, or another
    thing was noticed."""
    bug = CATALOGUE[name]
    verdict, output = judged(WAYS[bug.plan], tmp_path, reference(WAYS[bug.plan].habit), bug)

    acted = list((tmp_path / "marks").iterdir())
    assert acted, f"{bug.what} But that never happened: does the run come by {bug.patches[0].target}?\n{output}"
    is_refused = "finished" in verdict.broken() and any(words in output for words in REFUSED)
    missed = set[str]() if is_refused or MADE_GOOD in output else bug.caught_by - verdict.broken()
    assert not missed, f"{bug.what} The judge does not see {', '.join(sorted(missed))}\n{verdict}\n{output}"
