"""recipes/gpt.py and its kin, small: what people begin with when they train a language model keeps what the README
promises."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from elastic.drill.cluster import Cluster
from elastic.drill.end import End
from elastic.drill.faults import At, Kill, KillAll, Plan
from recipes.gpt import GPT
from tests.kit.launch import Launch

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


@pytest.mark.parametrize("keep_moments", [False, True], ids=["fresh", "kept"])
def test_rounds_of_many_steps_that_lose_workers_end_as_undisturbed_ones(
    elastic_cluster: MakeCluster, elastic_undisturbed: Undisturbed, data: Path, keep_moments: bool
) -> None:
    """DiLoCo's workers are shares, so what it computes is the same with one process in peace, with three of which two
    are killed, and after the loss of all with two."""
    options: dict[str, Any] = {**SMALL, "script": RECIPES / "diloco.py", "data": data, "steps": 16}
    del options["sample"]
    options |= {"inner_steps": 3, "keep_moments": keep_moments}
    alone = elastic_undisturbed(**options)
    plan = Plan((Kill(1, At(4, "backward")), Kill(0, At(7, "in_update")), KillAll(At(12, "forward"))))
    run = elastic_cluster(**options, workers=3, launcher="elastic", plan=plan)
    run.finish(within_s=240)
    end = run.start(workers=2).finish(within_s=240, reference=alone.events)

    assert end.verdict.ok, f"{end.verdict}\n{end.output}"
    assert (end.exit_code, end.left_behind, end.not_reached) == (0, (), ()), end.output
    assert end.weights_sha256 == alone.weights_sha256
    losses = [float(found) for found in re.findall(r"validation loss (\d\.\d+) nats", end.output + alone.output)]
    assert len(losses) == 2, end.output
    assert losses[0] == losses[1] < math.log(256)


def test_inner_steps_send_nothing_and_a_round_as_much_as_a_step_of_plain_data_parallel(
    data: Path, tmp_path: Path
) -> None:
    """By the kernel's own count. What a slow network gains is this: H steps for the bytes of one."""

    def sent(recipe: str, *flags: str) -> tuple[float, int]:
        """What the first worker sends in a round or step, and all workers within the inner steps of all rounds."""
        url = tmp_path / "-".join((recipe, *flags))
        size = [f"--data={data}", "--layers=1", "--width=32", "--validate=4", "--save-every=1000", "--steps=8"]
        program = ["-m", "tests.kit.programs.sending", recipe, url]
        with Launch("elastic", ["run", "--standalone", "--nproc-per-node=2", *program, *size, *flags]) as launch:
            said = [json.loads(line) for line in launch.succeed(within_s=240).splitlines() if line.startswith("{")]
        by_step = [one["sent"] for one in said if one.get("rank") == 0]
        # The median: the kernel counts what has left, and some of one step's bytes may leave with the next one's.
        return median(after - before for before, after in pairwise(by_step)), sum(one.get("inner", 0) for one in said)

    plain, _ = sent("gpt", "--sample=1")
    few, inside_few = sent("diloco", "--inner-steps=2")
    many, inside_many = sent("diloco", "--inner-steps=8")
    kept, _ = sent("diloco", "--inner-steps=2", "--keep-moments")
    assert plain > 4 * sum(parameter.numel() for parameter in GPT(layers=1, width=32).parameters())
    assert many == pytest.approx(few, rel=0.01)
    assert many == pytest.approx(plain, rel=0.01)
    assert kept == pytest.approx(3 * plain, rel=0.05)
    assert max(inside_few, inside_many) < 4 * plain  # an exchange in each inner step would be 32 or more


def test_a_sharded_gpt_that_loses_a_worker_writes_what_one_process_writes(data: Path, tmp_path: Path) -> None:
    """Two replicas of two, one of which is lost whole and comes back, beside a replica of one."""
    script = RECIPES / "gpt_fsdp2.py"
    size = [f"--data={data}", "--layers=1", "--width=32", "--validate=12", "--save-every=10", "--steps=60"]
    flags = ["--standalone", "--nproc-per-node=4", "--replica-size=2"]
    alone, disturbed = tmp_path / "alone", tmp_path / "disturbed"
    of_one = subprocess.run([sys.executable, script, alone, *size], stdout=subprocess.PIPE, timeout=240, check=True)
    with Launch("elastic", ["run", *flags, script, disturbed, *size]) as launch:
        launch.wait_for(lambda: "step   20" in launch.output, "step 20", within_s=240)
        *_, last = sorted(int(log.stem.rsplit("-", 2)[1]) for log in disturbed.glob("events/*.jsonl"))
        os.kill(last, signal.SIGKILL)
        output = launch.succeed(within_s=240)

    assert "SIGKILL" in output, output
    assert "and its replica with it" in output, output
    assert losses_of(output) == losses_of(of_one.stdout.decode())
    assert digests(disturbed) == digests(alone)


def losses_of(output: str) -> list[str]:
    """What it prints at step 40, at step 60 and in the end."""
    return re.findall(r"(?:step   [46]0  loss|validation loss) (\d\.\d+)", output)


def digests(url: Path) -> bytes:
    """Of the newest checkpoint and its parts."""
    command: list[str | Path] = [sys.executable, "-m", "elastic", "checkpoint", "digest", url]
    return subprocess.run(command, stdout=subprocess.PIPE, timeout=60, check=True).stdout


@pytest.mark.parametrize(
    ("page", "recipe"), [("train-over-a-slow-network.md", "diloco.py"), ("shard-a-model.md", "gpt_fsdp2.py")]
)
def test_a_page_shows_the_loop_of_its_recipe(page: str, recipe: str) -> None:
    text = (RECIPES.parent / "docs/how-to" / page).read_text()
    (shown,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    lines = [line.strip() for line in (RECIPES / recipe).read_text().splitlines()]
    assert [line for line in shown.splitlines() if line.strip() not in lines] == []
