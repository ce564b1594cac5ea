"""`elastic replay` computes a step again, alone: bit by bit what was recorded, and a NaN is an example's number.

Real runs of all loops, of two workers, whose steps are replayed alone; on_bad, the debugger, the profiler, anomalies.
Those of trainers are test_reproduce_elsewhere.py's.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.kit.launch import ROOT, Launch

pytestmark = pytest.mark.nightly(sample=4, of="steps that are computed again")

WITHIN_S = 240.0
SCRIPT = """
import sys
import torch
import torch.nn.functional as F
import elastic
from elastic.logging import CSV

url, kind, bad, on_bad = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
plain = kind.startswith("plain")


class Points:
    def __len__(self):
        return 480

    def __getitem__(self, index):
        return torch.full((4,), float("nan")) if index == bad else torch.randn(4) + index % 2, index % 2


elastic.seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(16, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
models, optimizers = model, optimizer
if kind.endswith("two models"):
    other = torch.nn.Linear(4, 4)
    models, model = {"first": other, "second": model}, torch.nn.Sequential(other, model)
    optimizers = {"first": torch.optim.SGD(other.parameters(), lr=0.1), "second": optimizer}
with elastic.Run(
    url, model=models, optimizer=optimizers, dataset=Points(), batch_size=8, virtual_workers=4, epochs=1,
    data=elastic.Data(micro_batch_size=1 if kind.endswith("micro") else None),
    loggers=[CSV("curves.csv")],
    save_every=10, update=elastic.Update(on_bad=None if on_bad == "none" else on_bad),
) as run:
    if plain:
        for x, y in run.batches():
            for one in run.optimizers.values():
                one.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            for one in run.optimizers.values():
                one.step()
            if run.stepped:
                run.log(one=1.0)
    else:
        for step in run:
            for x, y in step:
                loss = F.cross_entropy(model(x), y, reduction="sum")
                if kind == "anomaly" and step.index == 21:
                    loss = loss + (0 * model(x)).sum().sqrt()
                step.backward(loss, count=len(y))
                step.add(loss=loss)
            run.log(one=1.0)
print("the script's end")
"""


def made(folder: Path, *args: object, workers: int = 2, ends: bool = True) -> Path:
    (folder / "train.py").write_text(SCRIPT)
    words = ["run", "--standalone", f"--nproc-per-node={workers}", folder / "train.py", folder / "run", *args]
    with Launch("elastic", words, cwd=folder) as launch:
        status = launch.finish(within_s=WITHIN_S)
        assert (status == 0) is ends, launch.output
    return folder / "run"


def replay(url: Path, *flags: object) -> tuple[int, str]:
    with Launch("elastic", ["replay", url, *flags], cwd=url.parent) as launch:
        return launch.finish(within_s=WITHIN_S), launch.output


def document(output: str) -> dict[str, Any]:
    """What --json prints."""
    (line,) = [line for line in output.splitlines() if line.startswith('{"step"')]
    found: dict[str, Any] = json.loads(line)
    return found


@pytest.mark.parametrize("loop", ["plain", "steps", "plain micro", "micro", "plain two models", "two models"])
def test_a_step_is_computed_again_bit_by_bit(loop: str, tmp_path: Path) -> None:
    url = made(tmp_path, loop, -1, "none")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert tmp_path / "curves.csv" in before
    status, output = replay(url, "--step", 43, "--json")
    assert status == 0, output
    assert "from the checkpoint of step 40" in output
    assert "the script's end" not in output
    found = document(output)
    assert (found["recorded"], found["differs"]) == (True, [])
    assert [one["share"] for one in found["shares"]] == [0, 1, 2, 3]
    assert all(len(one["indices"]) == 2 and float(one["loss"]) > 0 and one["gradients"] for one in found["shares"])
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before, "the run is only read"
    assert {"read", "gradients"} <= {*found["compared"]}
    assert ("gave" in found["compared"]) is not loop.startswith("plain"), "the plain loop adds nothing up"

    status, output = replay(url, "--step", 43, "--share", 1)
    assert status == 0, output
    assert "share 1: loss" in output
    assert "share 2" not in output
    assert "share 1 of step 43 reads what the run has on record; what it computes is not on record" in output
    assert "bit by bit" not in output
    assert replay(url, "--step", 60)[0] == 2


@pytest.mark.parametrize("on_bad", ["none", "stop"])
def test_a_nan_is_an_examples_number(on_bad: str, tmp_path: Path) -> None:
    url = made(tmp_path, "steps", 417, on_bad, ends=on_bad == "none")
    step = step_that_reads(417)
    status, output = replay(url, "--step", step)
    assert "NOT FINITE: numbers in example 417\n" in output, output
    assert status == (0 if on_bad == "none" else 1), output


def step_that_reads(example: int) -> int:
    """As the order of such a run has it."""
    program = [
        "import elastic",
        "from elastic.config.config import order_of",
        "from elastic.data.data_plan import DataPlan",
        "plan = DataPlan(dataset_length=480, batch_size=8, virtual_workers=4, seed=0, last_batch='short', epochs=1,",
        "    micro_batch_size=None, steps=None, order=order_of(range(480), elastic.Data().order))",
        f"print(next(at for at in range(60) if {example} in plan.step(at).indices.tolist()))",
    ]
    command = [sys.executable, "-c", "\n".join(program)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout)


@pytest.mark.parametrize("flags", [[], ["--plain"]])
def test_a_step_of_streams_is_computed_again(flags: list[str], tmp_path: Path) -> None:
    for name in ("streamed", "lines", "losing"):
        shutil.copy(ROOT / "tests" / "kit" / "programs" / f"{name}.py", tmp_path)
    words = ["run", "--standalone", "--nproc-per-node=2", tmp_path / "streamed.py", tmp_path / "run", "--write", *flags]
    with Launch("elastic", words, cwd=tmp_path) as launch:
        launch.succeed(within_s=WITHIN_S)
    status, output = replay(tmp_path / "run", "--step", 13, "--json")
    assert status == 0, output
    found = document(output)
    assert (found["recorded"], found["differs"]) == (True, [])
    assert {"read", "gradients"} <= {*found["compared"]}


@pytest.mark.parametrize("loop", ["steps", "plain"])
def test_a_step_is_looked_at_in_a_debugger_and_under_the_profiler(loop: str, tmp_path: Path) -> None:
    url = made(tmp_path, loop, -1, "none", workers=1)
    command = [sys.executable, "-m", "elastic", "replay", str(url), "--step", "21", "--share", "2", "--pdb"]
    typed = "p x.shape, run.step_index\nc\n"
    said = subprocess.run(
        command, input=typed, capture_output=True, text=True, timeout=WITHIN_S, cwd=tmp_path, check=False
    )
    assert "(torch.Size([2, 4]), 21)" in said.stdout, said.stdout + said.stderr
    assert "share 2: loss" in said.stdout
    assert said.returncode == 0, said.stdout + said.stderr

    status, output = replay(url, "--step", 21, "--profile")
    assert status == 0, output
    assert "aten::addmm" in output
    assert json.loads((tmp_path / "replay-step-21.json").read_text())["traceEvents"]


def test_the_operation_that_gives_a_nan_in_the_backward_pass_is_named_with_its_share(tmp_path: Path) -> None:
    url = made(tmp_path, "anomaly", -1, "none")
    status, output = replay(url, "--step", 21, "--detect-anomaly")
    assert status == 1, output
    assert "Error detected in MulBackward0" in output
    assert "loss = loss + (0 * model(x)).sum().sqrt()" in output, "the line of the script"
    assert "share 0: loss" in output
    assert "share 1: loss" not in output
    assert "the script ended with status 1 in it" in output
    status, output = replay(url, "--step", 20, "--detect-anomaly")
    assert status == 0, output
