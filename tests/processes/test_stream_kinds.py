"""Streams of other packages in real runs: nothing of these stands in a fork's way, and they go on at other sizes."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from elastic.drill.cluster import Cluster
from elastic.drill.end import End
from elastic.drill.faults import At, Kill, KillAll, Plan

pa = pytest.importorskip("pyarrow", reason="needs the extra: pip install -e '.[parquet]'")
pq = pytest.importorskip("pyarrow.parquet")
MakeCluster = Callable[..., Cluster]

PROGRAMS = Path(__file__).parents[1] / "kit" / "programs"
STEPS = 24


@pytest.fixture(params=["streamed_rows.py", "streamed_hugging_face.py"])
def program(request: pytest.FixtureRequest) -> Path:
    if "hugging" in request.param:
        pytest.importorskip("datasets", reason="needs the extra: pip install -e '.[datasets]'")
    return PROGRAMS / str(request.param)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight files of unlike lengths for six streams, of a few row groups each."""
    folder, draw = tmp_path_factory.mktemp("rows"), random.Random(5)
    for number in range(8):
        points = [[draw.gauss(0, 1) for _ in range(4)] for _ in range(5 + 9 * number)]
        table = pa.table({"id": range(len(points)), "point": points})
        pq.write_table(table, folder / f"rows-{number}.parquet", row_group_size=7)
    return folder


def finished(make: MakeCluster, program: Path, url: Path, **options: object) -> End:
    end = make(script=program, url=url, steps=STEPS, plain=True, **options).finish(within_s=240)
    assert (end.exit_code, end.left_behind, end.not_reached) == (0, (), ()), end.output
    assert end.verdict.ok, f"{end.verdict}\n{end.output}"
    return end


@pytest.mark.nightly(sample=1, of="streams of other packages")
def test_a_killed_worker_is_replaced_by_a_fork_of_what_is_imported(
    elastic_cluster: MakeCluster, folder: Path, program: Path
) -> None:
    """pyarrow's threads would make each replacement a fresh interpreter, or a fork that hangs where it decodes rows."""
    alone = finished(elastic_cluster, program, folder / f"alone-{program.stem}")
    killed = Plan((Kill(1, At(4, "data")), Kill(1, At(12, "in_exchange"))))
    end = finished(
        elastic_cluster, program, folder / program.stem, workers=3, launcher="elastic", plan=killed, unhurried=3
    )

    assert end.weights_sha256 == alone.weights_sha256
    assert end.world_sizes.count(3) == 3
    assert "fresh" not in end.output, end.output


@pytest.mark.nightly(sample=1, of="streams of other packages")
def test_a_run_goes_on_by_position_at_another_size(elastic_cluster: MakeCluster, folder: Path, program: Path) -> None:
    alone = finished(elastic_cluster, program, folder / f"undisturbed-{program.stem}")
    lost, url = Plan((KillAll(At(11, "in_update")),)), folder / f"lost-{program.stem}"
    first = elastic_cluster(
        script=program, url=url, steps=STEPS, plain=True, workers=4, launcher="elastic", plan=lost
    ).finish(within_s=240)
    assert first.not_reached == ()

    end = finished(elastic_cluster, program, url, workers=2, launcher="elastic")
    assert end.weights_sha256 == alone.weights_sha256


def test_reading_starts_no_thread(tmp_path: Path) -> None:
    """A worker forks writers of checkpoints: what such a thread holds, a fork would wait for in vain."""
    url = tmp_path / "0.parquet"
    pq.write_table(pa.table({"id": range(500), "text": ["long enough" * 99] * 500}), url, row_group_size=100)
    asks = (
        "import os, sys, elastic, pyarrow.parquet\n"
        "streams = elastic.Streams.parquet([sys.argv[1]])\n"
        "streams.assign((1,))\n"
        "before = len(os.listdir('/proc/self/task'))\n"
        "print([streams[i]['id'] for i in range(500)][-1], len(os.listdir('/proc/self/task')) - before)"
    )
    done = subprocess.run([sys.executable, "-c", asks, url], capture_output=True, text=True, check=True, timeout=300,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})  # fmt: skip
    assert done.stdout.split() == ["499", "0"], done.stderr
