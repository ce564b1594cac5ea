"""Random faults in a test: drawn from the test's seed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from elastic.drill.cluster import Cluster
from elastic.drill.end import End
from elastic.drill.plan.draw import draw_faults


@pytest.mark.nightly(sample=1, of="faults at random")
def test_drawn_faults_change_nothing(
    elastic_cluster: Callable[..., Cluster], elastic_undisturbed: Callable[..., End], elastic_drill_seed: int
) -> None:
    run = elastic_cluster(workers=3, steps=20, launcher="elastic", faults="kill,exception", rate=0.1)
    assert run.plan.faults == draw_faults(
        elastic_drill_seed + 1, kinds=["kill", "exception"], rate=0.1, steps=20, workers=3, nodes=1, resume_workers=3
    )
    end = run.finish(within_s=240)
    assert end.verdict.ok, f"{run.plan}\n{end.verdict}\n{end.output}"
    assert len(run.plan.faults) == 2
    assert end.not_reached == ()
    assert end.weights_sha256 == elastic_undisturbed(steps=20).weights_sha256


def test_what_cannot_be_drawn_is_said(elastic_cluster: Callable[..., Cluster]) -> None:
    with pytest.raises(pytest.UsageError, match=r"it takes steps=, no plan=, and kinds of kill, stop"):
        elastic_cluster(workers=3, faults="kill")
    with pytest.raises(pytest.UsageError, match="faults='meteor'"):
        elastic_cluster(workers=3, steps=20, faults="meteor")
