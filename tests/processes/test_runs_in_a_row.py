"""Several runs in one script, one after the other: stages, folds, a sweep. Under `elastic run` as in python."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import elastic_checkpoint
from tests.kit.agents import WITHIN_S, Run
from tests.kit.launch import Launch

pytestmark = pytest.mark.nightly(sample=1, of="runs in a row")

STAGES = """
import os, signal, sys
import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset
import elastic

folder, dies = sys.argv[1], [word.split(":") for word in sys.argv[2:]]

def once(*here):
    "Whether this worker is to die here, as none has before it."
    word = [str(one) for one in here]
    if word in dies:
        try:
            os.close(os.open(f"{folder}/{'-'.join(word)}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

os.makedirs(folder, exist_ok=True)
elastic.seed(0)
x = torch.randn(48, 8)
data = TensorDataset(x, x[:, :3].argmax(1))
body = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))
for stage in "pretrain", "tune":
    model = torch.nn.Sequential(body, torch.nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    given = dict(model=model, optimizer=optimizer, dataset=data, batch_size=24, virtual_workers=6)
    with elastic.Run(f"{folder}/{stage}", epochs=6, save_every=4, **given) as run:
        for _ in run.epochs():
            for a, b in run.batches():
                optimizer.zero_grad()
                F.cross_entropy(model(a), b).backward()
                optimizer.step()
                once(stage, run.step_index, run.rank)
        if run.is_coordinator:
            print(f"{stage} ends after {run.step_index} steps")
    once(stage, "between")
"""


STAGE = ("pretrain", "tune")


def ends(output: str) -> list[str]:
    return re.findall(r"(\w+) ends after 12 steps", output)


def results(folder: Path) -> list[str]:
    return [elastic_checkpoint.digest(elastic_checkpoint.Checkpointer(folder / stage).read().tree) for stage in STAGE]


def test_who_is_lost_in_a_later_run_or_between_two_is_replaced_and_passes_the_first(run: Run, tmp_path: Path) -> None:
    """The replacement takes the first one's result, and neither prints nor writes for it: the coordinator has."""
    (tmp_path / "alone.py").write_text(STAGES)
    with Launch("alone", [tmp_path / "alone"], cwd=tmp_path) as alone:
        alone.succeed(within_s=WITHIN_S)
    launch = run(STAGES, "--nproc-per-node=2", args=(str(tmp_path / "two"), "pretrain:between", "tune:5:0", "tune:7:1"))
    assert launch.finish(within_s=WITHIN_S) == 0, launch.output
    assert ends(launch.output) == [*STAGE], launch.output
    assert results(tmp_path / "two") == results(tmp_path / "alone")


def test_a_sole_worker_that_is_killed_between_two_runs_is_replaced(run: Run, tmp_path: Path) -> None:
    """It was taken for one at its script's end, and `elastic run` ended with 0 without the second run."""
    launch = run(STAGES, args=(str(tmp_path / "one"), "pretrain:between", "tune:5:0"))
    assert launch.finish(within_s=WITHIN_S) == 0, launch.output
    assert set(ends(launch.output)) == set(STAGE)
    again = run(STAGES, args=(str(tmp_path / "one"),))
    assert again.finish(within_s=WITHIN_S) == 0, again.output
    assert again.output.count("is finished, with 12 steps applied") == 2
    assert ends(again.output) == [*STAGE]


NESTED = """
import sys, torch, elastic
model = torch.nn.Linear(2, 2)
given = dict(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), dataset=torch.randn(8, 2))
given |= dict(batch_size=4, virtual_workers=2, epochs=1)
with elastic.Run(sys.argv[1] + "/outer", **given), elastic.Run(sys.argv[1] + "/inner", **given):
    pass
"""


def test_a_run_within_another_one_is_refused_by_name(run: Run, tmp_path: Path) -> None:
    launch = run(NESTED, args=(str(tmp_path),))
    assert launch.finish(within_s=WITHIN_S) == 1
    assert f"a Run was entered inside another one, {tmp_path}/outer" in launch.output, launch.output
