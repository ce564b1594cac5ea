"""Streams in real runs: the same examples and the same bits at every world size, through losses and restarts."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from elastic.drill.cluster import Cluster
from elastic.drill.end import End
from elastic.drill.faults import At, Kill, KillAll, Plan
from tests.kit.programs.lines import write_lines

pytestmark = pytest.mark.nightly(sample=1, of="what comes of streams")

MakeCluster = Callable[..., Cluster]

PROGRAM = Path(__file__).parents[1] / "kit" / "programs" / "streamed.py"
STEPS = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("streams")
    write_lines(folder)
    return folder


@pytest.fixture(scope="module", params=["steps", "plain"])
def plain(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "plain")


def ran(make: MakeCluster, folder: Path, name: str, **options: object) -> End:
    url = folder / name
    return make(script=PROGRAM, url=url, steps=STEPS, **options).finish(within_s=240)


@pytest.fixture(scope="module")
def known() -> dict[bool, set[str]]:
    return {}


@pytest.fixture
def alone(elastic_cluster: MakeCluster, folder: Path, plain: bool, known: dict[bool, set[str]]) -> set[str]:
    """The digest of one process that nobody touched; run once for each kind of loop."""
    if plain not in known:
        known[plain] = digests(ran(elastic_cluster, folder, f"alone-{plain}", plain=plain))
        assert len(known[plain]) == 1
    return known[plain]


def digests(end: End, *, nobody_lost: bool = False) -> set[str]:
    assert (end.exit_code, end.left_behind, end.not_reached) == (0, (), ()), end.output
    assert end.verdict.ok or nobody_lost, f"{end.verdict}\n{end.output}"
    return set(re.findall("took part: ([0-9a-f]{64})", end.output))


@pytest.mark.nightly(sample=1, of="streams")
@pytest.mark.parametrize(
    "options",
    [
        {"workers": 2},
        {"workers": 6},
        {"workers": 3, "plan": Plan((Kill(2, At(5, "in_backward")), Kill(0, At(14, "in_update"))))},
        {"workers": 3, "plan": Plan((Kill(1, At(4, "data")), Kill(1, At(12, "in_exchange")))), "unhurried": 3},
    ],
    ids=["two", "as many as streams", "kills", "kills while others read"],
)
def test_who_reads_a_stream_leaves_the_bits_alone(
    elastic_cluster: MakeCluster,
    folder: Path,
    tmp_path: Path,
    plain: bool,
    alone: set[str],
    options: dict[str, object],
) -> None:
    shared = ran(elastic_cluster, folder, f"shared-{tmp_path.name}", plain=plain, launcher="elastic", **options)

    assert digests(shared) == alone


def test_who_takes_a_step_over_reads_on_from_behind_it(
    elastic_cluster: MakeCluster, folder: Path, tmp_path: Path, plain: bool, alone: set[str]
) -> None:
    lost = ran(elastic_cluster, folder, f"lost-{tmp_path.name}", plain=plain, workers=3, launcher="elastic", lose=6)

    assert digests(lost, nobody_lost=True) == alone


def test_a_run_goes_on_by_position_at_another_size(
    elastic_cluster: MakeCluster, folder: Path, tmp_path: Path, plain: bool, alone: set[str]
) -> None:
    lost, name = Plan((KillAll(At(11, "in_update")),)), f"run-{tmp_path.name}"
    first = ran(elastic_cluster, folder, name, plain=plain, workers=4, launcher="elastic", plan=lost)
    assert first.not_reached == ()

    assert digests(ran(elastic_cluster, folder, name, plain=plain, workers=2, launcher="elastic")) == alone
