"""A worker that takes a step over ends with the bits of those who applied it, whatever the script's own code does."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elastic.drill.cluster import Cluster
from elastic.drill.faults import At, Kill, Plan

MakeCluster = Callable[..., Cluster]

PROGRAM = Path(__file__).parents[1] / "kit" / "programs" / "taken_over.py"


def digests(elastic_cluster: MakeCluster, **options: Any) -> list[str]:
    run = elastic_cluster(script=PROGRAM, **options)
    end = run.finish(within_s=240)
    assert end.exit_code == 0, end.output
    assert end.not_reached == ()
    return re.findall("took part: ([0-9a-f]{64})", end.output)


@pytest.mark.nightly(sample=1, of="what a newcomer trains")
def test_noise_and_buffers_of_a_step_that_was_taken_over_are_those_of_who_applied_it(
    elastic_cluster: MakeCluster,
) -> None:
    """One worker's update has drawn noise and its code has assigned buffers anew; the other's has not, when it gets the
    state: it runs that code itself. A replacement joins later, and draws before its loop what all drew."""
    alone = digests(elastic_cluster)
    assert len(alone) == 1

    assert digests(elastic_cluster, workers=2, launcher="elastic", lose=7) == alone * 2
    killed = Plan((Kill(1, At(5, "forward")), Kill(0, At(None, "applied", world_size=3))))
    together = digests(elastic_cluster, workers=3, launcher="elastic", plan=killed)
    assert len(together) >= 2
    assert set(together) == set(alone)
