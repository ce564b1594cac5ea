"""`elastic check` names a script that keeps something the run was not handed, and lets one be that only counts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.nightly(sample=1, of="what check says")

SCRIPT = """
import sys, torch, elastic, torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

elastic.seed(0)
data = TensorDataset(torch.randn(96, 4), torch.arange(96) % 2)
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 2))
optimizer = torch.optim.AdamW(model.parameters())
kind, seen, losses = sys.argv[1], 0, []
given = {"batch_size": 24, "virtual_workers": 4, "epochs": 9}
with elastic.Run("nowhere", model=model, optimizer=optimizer, dataset=data, **given) as run:
    if kind == "steps":
        for step in run:
            for x, y in step:
                step.backward(F.cross_entropy(model(x), y, reduction="sum"), count=len(y))
    else:
        for x, y in run.batches():
            seen += 1
            weight = 1 + seen / 100 if kind == "counts" else 1.0
            weight += run.rank / 1000 if kind == "ranks" else 0.0
            optimizer.zero_grad()
            loss = weight * F.cross_entropy(model(x), y)
            losses.append(loss.item())
            loss.backward()
            optimizer.step()
"""


def checked(tmp_path: Path, kind: str) -> tuple[int, str]:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "elastic", "check", str(script), "--steps=8", "--", kind]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert not (tmp_path / "nowhere").exists()
    return ended.returncode, ended.stdout + ended.stderr


@pytest.mark.parametrize("kind", ["batches", "steps"])
def test_a_script_that_is_the_same_whatever_happens_holds(tmp_path: Path, kind: str) -> None:
    status, said = checked(tmp_path, kind)
    assert status == 0, said
    for struck in ("SIGKILL to worker 2", "another node arrives", "SIGKILL to everything", "Every promise held"):
        assert struck in said


def test_what_depends_on_the_number_of_bodies_is_named_at_one_worker(tmp_path: Path) -> None:
    status, said = checked(tmp_path, "counts")
    assert status == 1, said
    assert "elastic check: the run refuses the script, on one worker and without faults\nStepError: share 0 of" in said
    assert "of the script's variables it changed seen, losses" in said


def test_what_depends_on_the_worker_is_named_with_step_share_and_workers(tmp_path: Path) -> None:
    status, said = checked(tmp_path, "ranks")
    assert status == 1, said
    assert " of step 0 was passed twice, by rank " in said
    assert "gave other gradients the second time: 0.bias" in said
