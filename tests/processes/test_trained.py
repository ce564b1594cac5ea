"""What a run trains changes as it goes on: whoever joins, takes over or resumes trains what the others train.

What is refused, and that a restart carries it, is in tests/one_process/test_trained.py.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elastic.drill.cluster import Cluster
from elastic.drill.end import End
from elastic.drill.faults import OF_A_STEP, At, Fault, Kill, KillAll, Plan

MakeCluster = Callable[..., Cluster]
Undisturbed = Callable[..., End]

PROGRAM = Path(__file__).parents[1] / "kit" / "programs" / "thawing.py"
STEPS = 90


@pytest.mark.nightly(sample=1, of="what a newcomer trains")
def test_a_newcomer_a_survivor_and_a_resume_train_what_the_others_train(
    elastic_cluster: MakeCluster, elastic_undisturbed: Undisturbed
) -> None:
    """Layers thaw, groups and a module join, layers take turns; workers are killed at every moment of a step, between
    those changes and after them, and then all of them. Their scripts start from the first line each time."""
    faults: list[Fault] = [Kill(n % 3, At(None, phase, world_size=3)) for n, phase in enumerate(OF_A_STEP)]
    faults += [KillAll(At(STEPS - 10, "forward"))]
    options: dict[str, Any] = {"steps": STEPS, "awaits": 3}
    run = elastic_cluster(script=PROGRAM, workers=3, launcher="elastic", plan=Plan(tuple(faults)), **options)
    assert run.finish(within_s=240).exit_code == -signal.SIGKILL
    end, alone = run.start().finish(within_s=240), elastic_undisturbed(script=PROGRAM, steps=STEPS)

    assert end.verdict.ok, f"{end.verdict}\n{end.output}"
    assert (end.exit_code, end.left_behind, end.not_reached) == (0, (), ()), end.output
    assert end.weights_sha256 == alone.weights_sha256
