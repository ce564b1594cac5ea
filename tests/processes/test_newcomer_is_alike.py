"""A newcomer holds what the others hold, in other words here and there: it is no worker whose state has parted."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.kit.launch import Launch

SCRIPT = """
    import copy, os, sys, time
    import torch, elastic_checkpoint, elastic
    import torch.nn.functional as F
    from torch import nn

    url, habit, disturbed = sys.argv[1], sys.argv[2], len(sys.argv) > 3

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
            self.other.weight = self.one.weight
            self.dropout, self.last, self.temperature = nn.Dropout(0.1), nn.Linear(8, 3), 1.0

        def forward(self, x):
            return self.last(self.dropout(self.other(F.relu(self.one(x))))) / self.temperature

    class Best:
        def __init__(self):
            self.step, self.weights = 0, {}

        def state_dict(self):
            return {"step": self.step, "weights": dict(self.weights)}

        def load_state_dict(self, state):
            self.step = float(state["step"])
            self.weights = {name: weight.clone() for name, weight in state["weights"].items()}

    def temperature(step):
        return 1 / (1 + 0.1 * step)

    def between(run):
        match habit:
            case "sets by the step":
                model.temperature = temperature(run.step_index)
            case "replaces a module" if run.step_index == 2:
                model.dropout = nn.Dropout(0.4)
            case "replaces it, and sets it back":
                if run.step_index == 2:
                    model.dropout = nn.Dropout(0.4)
                if run.step_index == 3:
                    model.dropout.p = 0.1
            case "keeps numbers":
                best.step = run.step_index
            case "keeps tied weights" if run.step_index == 2:
                best.weights = copy.deepcopy(model.state_dict())

    elastic.seed(0)
    model, best, mark = Net(), Best(), url + ".killed"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x = torch.randn(96, 8)
    data = torch.utils.data.TensorDataset(x, x[:, :3].argmax(1))
    with elastic.Run(
        url, model=model, optimizer=optimizer, dataset=data, batch_size=16, virtual_workers=4, steps=30,
        extra={"best": best},
    ) as run:
        if habit == "sets by the step":
            model.temperature = temperature(run.step_index)
        joined = False
        for x, y in run.batches():
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            if not run.stepped:
                continue
            between(run)
            if not disturbed:
                continue
            if run.step_index == 4 and not run.is_coordinator and not os.path.exists(mark):
                open(mark, "w").close()
                os.kill(os.getpid(), 9)
            if run.step_index > 4 and not (joined := joined or run.world_size == 2):
                time.sleep(0.4)  # else it would end without the newcomer
    if run.is_coordinator:
        sys.stdout.write(f"digest {elastic_checkpoint.digest(model)} p={model.dropout.p}\\n")
    if joined:
        sys.stdout.write("joined\\n")
"""
HABITS = (
    "sets by the step",
    "replaces a module",
    "replaces it, and sets it back",
    "keeps numbers",
    "keeps tied weights",
)


@pytest.mark.nightly(sample=2)
@pytest.mark.parametrize("habit", HABITS)
def test_a_newcomer_trains_on_with_the_others(tmp_path: Path, habit: str) -> None:
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT))
    found = []
    for workers, more in ((1, []), (2, ["disturbed"])):
        command = ["run", "--standalone", "--no-status", f"--nproc-per-node={workers}", tmp_path / "script.py"]
        with Launch("elastic", [*command, tmp_path / f"run-{workers}", habit, *more]) as launch:
            assert launch.finish(within_s=240) == 0, launch.output
            found.append([line for line in launch.output.splitlines() if line.startswith("digest ")])
            joined = "joined" in launch.output.splitlines()
    assert joined, "nobody joined"
    assert found[0] == found[1], habit
