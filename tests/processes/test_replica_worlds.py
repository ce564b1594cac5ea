"""Replicas of several workers, as a script finds them that knows torch.distributed alone."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from tests.kit.agents import WITHIN_S, Run
from tests.kit.launch import Launch

MESH = """
    import os, sys
    import torch, torch.distributed as dist
    if "bare" in sys.argv:
        dist.init_process_group()
    import elastic
    mesh = elastic.device_mesh()
    total = torch.tensor([10 ** int(os.environ.get("LOCAL_RANK", "0"))])
    dist.all_reduce(total, group=mesh.get_group())
    sys.stdout.write(f"mesh {mesh.size()} sum {total.item()}\\n")
"""
SUMS = re.compile(r"mesh (\d+) sum (\d+)")


def sums(output: str) -> list[tuple[str, str]]:
    return sorted(SUMS.findall(output))


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_a_replica_has_a_world_of_its_own_where_torchs_groups_need_no_argument(run: Run, method: str) -> None:
    flags = ["--nproc-per-node=4", "--replica-size=2", f"--start-method={method}"]
    output = run(MESH, *flags, args=("bare",)).succeed(within_s=WITHIN_S)
    assert sums(output) == [("2", "11")] * 2 + [("2", "1100")] * 2, output


def test_a_worker_that_is_a_replica_by_itself_has_a_mesh_of_one(run: Run) -> None:
    assert sums(run(MESH, "--nproc-per-node=2").succeed(within_s=WITHIN_S)) == [("1", "1"), ("1", "10")]


@pytest.mark.parametrize(("workers", "found"), [(2, [("2", "11")] * 2), (None, [("1", "1")])])
def test_the_mesh_is_over_all_of_torchruns_workers_and_of_one_without_any(
    tmp_path: Path, workers: int | None, found: list[tuple[str, str]]
) -> None:
    (tmp_path / "script.py").write_text(textwrap.dedent(MESH))
    with Launch("script", workers=workers, cwd=tmp_path) as launch:
        assert sums(launch.succeed(within_s=WITHIN_S)) == found
