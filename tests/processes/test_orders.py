"""A run in any order loses workers and goes on at another size: each position of the order is applied once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from elastic.drill.cluster import Cluster
from elastic.drill.end import End
from elastic.drill.faults import At

PROGRAM = Path(__file__).parents[1] / "kit" / "programs" / "ordered.py"
STEPS = 14  # in the second epoch of each order, or the third


@pytest.mark.nightly(sample=1)
@pytest.mark.parametrize("order", ["shuffled", "sequential", "drawn", "sampled", "mixture", "bucketed"])
def test_killed_in_any_order_a_run_ends_as_the_undisturbed_one(
    elastic_cluster: Callable[..., Cluster], elastic_undisturbed: Callable[..., End], order: str
) -> None:
    """One worker is killed and the other goes on, then all are, and three resume: in the middle of epochs. The judge
    counts what was read, with multiplicity, and compares weights, sums and the last state with those of one worker."""
    reference = elastic_undisturbed(script=PROGRAM, order=order, steps=STEPS, workers=1)
    assert reference.verdict.ok, f"{reference.verdict}\n{reference.output}"
    run = elastic_cluster(script=PROGRAM, workers=2, launcher="elastic", order=order, steps=STEPS)
    run.kill(worker=1, when=At(step=3, phase="backward"))
    run.kill_all(At(step=9, phase="in_update"))
    run.finish(within_s=240)
    end = run.start(workers=3).finish(within_s=240, reference=reference.events)

    assert end.verdict.ok, f"{end.verdict}\n{end.output}"
    assert (end.exit_code, end.left_behind, end.not_reached) == (0, (), ())
    assert end.world_sizes[-1] == 3
    assert end.examples_applied == reference.examples_applied
    assert end.weights_sha256 == reference.weights_sha256
