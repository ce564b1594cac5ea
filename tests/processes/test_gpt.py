"""recipes/gpt.py, small: what people begin with when they train a language model keeps what the README promises."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elastic.drill.cluster import Cluster
from elastic.drill.end import End
from elastic.drill.faults import At, Kill, KillAll, Plan

pytestmark = pytest.mark.nightly(sample=1, of="loaders and recipes of loops that stay")

MakeCluster = Callable[..., Cluster]
Undisturbed = Callable[..., End]

RECIPES = Path(__file__).parents[2] / "recipes"
SMALL: dict[str, Any] = {"layers": 1, "width": 32, "validate": 12, "sample": 20, "save_every": 5}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its token files, of this project's own source."""
    folder = tmp_path_factory.mktemp("gpt-data")
    command: list[str | Path] = [
        sys.executable,
        RECIPES / "gpt_data.py",
        "--source",
        RECIPES.parent / "elastic",
        "--data",
        folder,
    ]
    subprocess.run(command, check=True, timeout=60)
    return folder


def validated(end: End) -> tuple[float, float]:
    """(validation loss, unigram entropy) as it prints them."""
    found = re.search(r"validation loss (\d\.\d+) nats a byte; unigram entropy (\d\.\d+)", end.output)
    assert found is not None, end.output
    return float(found[1]), float(found[2])


def test_a_gpt_that_loses_workers_writes_what_an_undisturbed_one_writes(
    elastic_cluster: MakeCluster, elastic_undisturbed: Undisturbed, data: Path
) -> None:
    """The same weights, loss and sample: with one worker in peace, with three of which two are killed, and after the
    loss of all with two."""
    options: dict[str, Any] = {**SMALL, "script": RECIPES / "gpt.py", "data": data, "steps": 30}
    alone = elastic_undisturbed(**options)
    plan = Plan((Kill(1, At(8, "in_backward")), Kill(0, At(12, "in_update")), KillAll(At(20, "forward"))))
    run = elastic_cluster(**options, workers=3, launcher="elastic", plan=plan)
    run.finish(within_s=240)
    end = run.start(workers=2).finish(within_s=240, reference=alone.events)

    assert end.verdict.ok, f"{end.verdict}\n{end.output}"
    assert (end.exit_code, end.left_behind, end.not_reached) == (0, (), ()), end.output
    assert end.weights_sha256 == alone.weights_sha256
    assert validated(end) == validated(alone)


@pytest.mark.parametrize("recipe", ["gpt_hf.py", "gpt_lightning.py"])
def test_the_same_model_under_a_trainer_loses_workers_and_writes_the_same(
    elastic_cluster: MakeCluster, elastic_undisturbed: Undisturbed, data: Path, recipe: str
) -> None:
    options: dict[str, Any] = {**SMALL, "script": RECIPES / recipe, "data": data, "steps": 30}
    alone = elastic_undisturbed(**options)
    plan = Plan((Kill(1, At(8, "in_backward")), Kill(0, At(12, "in_update")), KillAll(At(20, "forward"))))
    run = elastic_cluster(**options, workers=3, launcher="elastic", plan=plan)
    run.finish(within_s=240)
    end = run.start(workers=2).finish(within_s=240, reference=alone.events)

    assert end.verdict.ok, f"{end.verdict}\n{end.output}"
    assert (end.exit_code, end.left_behind, end.not_reached) == (0, (), ()), end.output
    assert end.weights_sha256 == alone.weights_sha256
    losses = [float(found) for found in re.findall(r"validation loss (\d\.\d+) nats", end.output + alone.output)]
    assert len(losses) == 2, end.output
    assert losses[0] == losses[1] < math.log(256)


def test_a_gpt_learns_more_than_how_frequent_bytes_are(elastic_cluster: MakeCluster, data: Path) -> None:
    """Small as it is; the whole one takes two minutes."""
    options: dict[str, Any] = {**SMALL, "width": 64, "steps": 100}
    end = elastic_cluster(script=RECIPES / "gpt.py", data=data, workers=2, launcher="elastic", **options).finish(
        within_s=240
    )
    loss, unigram = validated(end)
    assert loss < unigram - 0.3
    assert unigram < math.log(256)
