"""The judge notices bugs of our own: each of a catalogue is planted in every process of a real run, and named.

With no bug planted the same runs are green, so it is the bug that is noticed and not the fault. Two runs go on at a
time, since most of a run is one process that imports torch. See tests/kit/planted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from elastic.drill.judging.verdict import Verdict
from tests.kit.planted.catalogue import CATALOGUE
from tests.kit.planted.plans import WAYS, Way, judged, undisturbed

Judged = Mapping[str, "Future[tuple[Verdict, str]]"]
_AT_ONCE = 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("planted")


@pytest.fixture(scope="module")
def verdicts(request: pytest.FixtureRequest, folder: Path) -> Iterator[Judged]:
    """Of each run that a test of this session asks for, by the name of its bug or way, once it has ended."""
    nodes = [item for item in request.session.items if item.path == request.path and isinstance(item, pytest.Function)]
    asked = [str(node.callspec.params["name"]) for node in nodes if hasattr(node, "callspec")]
    ways = {name: WAYS[CATALOGUE[name].plan if name in CATALOGUE else name] for name in asked}
    references = {habit: undisturbed(_place(folder, f"reference {habit}"), habit) for habit in _habits(ways.values())}

    def run(name: str) -> tuple[Verdict, str]:
        way = ways[name]
        return judged(way, _place(folder, name), references[way.habit], CATALOGUE.get(name))

    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="planted") as pool:
        futures = {name: pool.submit(run, name) for name in asked}
        yield futures
        for future in futures.values():
            future.cancel()


@pytest.mark.drill
@pytest.mark.parametrize("name", WAYS)
def test_with_no_bug_planted_the_judge_finds_nothing(verdicts: Judged, name: str) -> None:
    verdict, output = verdicts[name].result()
    assert verdict.ok, f"{WAYS[name].what}\n{verdict}\n{output}"


@pytest.mark.drill
@pytest.mark.parametrize("name", CATALOGUE)
def test_a_planted_bug_is_noticed(verdicts: Judged, folder: Path, name: str) -> None:
    """By each of the invariants that it breaks; and it must have acted, or another thing was noticed."""
    bug = CATALOGUE[name]
    verdict, output = verdicts[name].result()

    acted = list((_place(folder, name) / "marks").iterdir())
    assert acted, f"{bug.what} But that never happened: does the run come by {bug.patches[0].target}?\n{output}"
    missed = bug.caught_by - verdict.broken()
    assert not missed, f"{bug.what} The judge does not see {', '.join(sorted(missed))}\n{verdict}\n{output}"


def _habits(ways: Iterable[Way]) -> set[str | None]:
    return {way.habit for way in ways}


def _place(folder: Path, name: str) -> Path:
    return folder / name.replace(" ", "-")
