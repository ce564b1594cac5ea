"""What a worker that outlives another may still do: save what is applied, exactly as it was applied."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from elastic.drill.cluster import Cluster
from elastic.drill.end import End
from elastic.drill.faults import At


@pytest.mark.nightly(sample=1, of="what is changed before an epoch, or lost with a coordinator")
@pytest.mark.parametrize("phase", ["applied", "forward"])
def test_the_save_of_a_coordinator_that_lost_a_worker_holds_the_step_s_buffers(
    elastic_cluster: Callable[..., Cluster], elastic_undisturbed: Callable[..., End], phase: str
) -> None:
    """Between two steps BatchNorm's averages are those of the step that was applied; inside one, those of its start."""
    run = elastic_cluster(workers=2, steps=8, seed=7, save_every=1)
    run.kill(worker=1, when=At(step=4, phase=phase))
    end = run.finish(within_s=240, reference=elastic_undisturbed(steps=8, seed=7).events)

    assert end.verdict.ok, f"{end.verdict}\n{end.output}"
    assert (end.exit_code, end.left_behind, end.not_reached) == (0, (), ())
    assert end.steps_redone <= (phase == "forward")  # the step in flight
