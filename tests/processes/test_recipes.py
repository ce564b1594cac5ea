"""recipes/gan.py and recipes/recurrent.py, short: whoever copies one keeps what the README promises."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elastic.drill.cluster import Cluster
from elastic.drill.end import End
from elastic.drill.faults import At, Kill, KillAll, Plan

RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.mark.nightly(sample=1, of="loaders and recipes of loops that stay")
@pytest.mark.parametrize("recipe", ["gan.py", "recurrent.py"])
def test_a_recipe_that_loses_workers_writes_what_an_undisturbed_one_writes(
    elastic_cluster: Callable[..., Cluster], elastic_undisturbed: Callable[..., End], recipe: str
) -> None:
    """The same weights and losses: with one worker in peace, with three of which two are killed, and after the loss of
    all with two."""
    options: dict[str, Any] = {"script": RECIPES / recipe, "epochs": 2, "save_every": 5}
    alone = elastic_undisturbed(**options)
    plan = Plan((Kill(1, At(7, "in_backward")), Kill(0, At(12, "in_update")), KillAll(At(18, "forward"))))
    run = elastic_cluster(**options, workers=3, launcher="elastic", plan=plan)
    run.finish(within_s=240)
    end = run.start(workers=2).finish(within_s=240, reference=alone.events)

    assert end.verdict.ok, f"{end.verdict}\n{end.output}"
    assert (end.exit_code, end.left_behind, end.not_reached) == (0, (), ()), end.output
    assert end.weights_sha256 == alone.weights_sha256
    last = [re.findall(r"loss (\d\.\d{4})", output)[-1] for output in (alone.output, end.output)]
    assert last[0] == last[1]
