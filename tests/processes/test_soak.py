"""Many random faults in one run: whatever happens to it, it is the run that nobody touched, and it leaks nothing.

The plan is drawn from a seed, and printed before the run. `make test` and `make nightly` run short ones, the same each
time; the long one is `make soak SEED=7 FAULTS=50`; without them, 200 from a new seed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from elastic.drill.cluster import Cluster
from elastic.drill.end import End
from elastic.drill.machine.holdings import collectives_given_up
from tests.kit.held import beyond, settled
from tests.kit.sampling import NIGHTLY
from tests.kit.soak_plan import soak

SEED = int(os.environ.get("SEED") or 41)
FAULTS = int(os.environ.get("FAULTS") or (12 if NIGHTLY else 6))
PROGRAM = Path(__file__).parents[1] / "kit" / "programs" / "soak.py"
WORKERS = 4


@pytest.mark.nightly(sample=1, of="faults at random")
def test_a_run_of_random_faults_is_the_undisturbed_run_and_leaks_nothing(
    elastic_cluster: Callable[..., Cluster], elastic_undisturbed: Callable[..., End], tmp_path: Path
) -> None:
    """Replay with the first line that it prints.

    Nodes meet by the run's URL: when both workers of the first one were lost, it is the second, and may be told to
    leave. With it a store that it hosts would go, where the next node looks for the run.
    """
    plan = soak(SEED, FAULTS, WORKERS)
    print(f"make soak SEED={SEED} FAULTS={FAULTS}", *plan.faults, sep="\n  ", flush=True)
    enough, url = tmp_path / "enough", tmp_path / "run"
    run = elastic_cluster(
        url=url, script=PROGRAM, workers=WORKERS, launcher="elastic", nodes=2, nodes_max=1000, restarts=10_000,
        options=[f"--rdzv-endpoint={url}"], plan=plan, full=WORKERS, enough=enough,
    )  # fmt: skip
    run.wait_held(within_s=240 + 5 * FAULTS)
    before = settled(run)
    run.let_go()
    run.wait_held(within_s=240 + 5 * FAULTS)
    after = settled(run, at_most=before)
    enough.touch()
    run.let_go()
    end = run.finish(within_s=240)
    print(f"{end.verdict.steps} steps, {len(end.world_sizes)} views, {end.steps_redone} redone\n{before}\n{after}")

    assert end.verdict.ok, f"{plan}\n{end.verdict}\n{end.output}"
    assert (end.exit_code, end.left_behind, end.not_reached) == (0, (), ()), f"{plan}\n{end.output}"
    alone = elastic_undisturbed(script=PROGRAM, stop_after=end.verdict.steps - 1)
    assert end.weights_sha256 == alone.weights_sha256, f"{plan}"
    groups = collectives_given_up(end.events)
    over = beyond(before, after, groups)
    assert not over, f"{plan}\n{over}\nbefore {before}\nafter  {after}, {groups} given up"
