"""What a view leaves behind goes when the next one begins, not when garbage is collected: memory, sockets, threads.

A broken group that waits for a collector holds the gradients of a step. A loader process that is forked meanwhile has
it, too.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from elastic.drill.cluster import Cluster
from elastic.drill.faults import At, Fault, Kill, Plan, Terminate

PROGRAM = Path(__file__).parents[1] / "kit" / "programs" / "let_go.py"
MOMENTS = ("data", "in_backward", "exchange", "in_exchange", "update", "in_update", "applied")


@pytest.mark.nightly(sample=1)
@pytest.mark.parametrize("loop", ["run", "plain"])
def test_no_group_and_no_exchange_of_a_view_outlives_it(elastic_cluster: Callable[..., Cluster], loop: str) -> None:
    """Whenever in a step somebody is lost or leaves; the program looks after each step."""
    at = [At(6 + 10 * number, moment, later=True) for number, moment in enumerate(MOMENTS)]
    faults: list[Fault] = [Kill(1, moment) for moment in at]
    faults.append(Terminate(1, At(6 + 10 * len(MOMENTS), "forward", later=True)))

    run = elastic_cluster(script=PROGRAM, workers=3, launcher="elastic", plan=Plan(tuple(faults)), loop=loop, steps=100)
    end = run.finish(within_s=240)

    assert (end.exit_code, end.left_behind, end.not_reached) == (0, (), ()), end.output
