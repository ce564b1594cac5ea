"""deploy/ray on a Ray cluster whose nodes come and go: the weights are those of an undisturbed run."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from elastic.events.reading import read_events
from elastic_checkpoint.net.secret import VARIABLE, generated_secret
from tests.kit.deploy_tools import DEPLOY, ROOT, program

WITHIN_S = 500
SCRIPT = """
import pathlib, sys, time
import torch
from torch.nn import functional as F
import elastic

url, seen = sys.argv[1], pathlib.Path(sys.argv[2])
elastic.seed(0)
model = torch.nn.Linear(20, 5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
points = torch.randn(600, 20)
dataset = torch.utils.data.TensorDataset(points, points[:, :5].argmax(dim=1))
with elastic.Run(
    url, model=model, optimizer=optimizer, dataset=dataset, batch_size=60, virtual_workers=6, epochs=60, save_every=50
) as run:
    for epoch in run.epochs():
        for x, y in run.batches():
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            if run.stepped and run.is_coordinator and not (seen / "hurry").exists():
                (seen / "new").write_text(str(run.world_size))
                (seen / "new").replace(seen / "world_size")
                time.sleep(0.2)
    if run.is_coordinator:
        (seen / "weights").write_bytes(b"".join(one.detach().numpy().tobytes() for one in model.state_dict().values()))
"""


def trained(seen: Path) -> str:
    return hashlib.sha256((seen / "weights").read_bytes()).hexdigest()


@pytest.mark.nightly
def test_agents_come_and_go_with_the_nodes_of_a_cluster(tmp_path: Path) -> None:
    python = program("python", of="ray")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    for folder in ("alone", "fleet"):
        (tmp_path / folder).mkdir()
    (tmp_path / "alone" / "hurry").touch()
    subprocess.run([sys.executable, script, tmp_path / "run-alone", tmp_path / "alone"], check=True, timeout=WITHIN_S)

    run, seen = tmp_path / "run", tmp_path / "fleet"
    elastic = shutil.which("elastic", path=str(Path(sys.executable).parent))
    fleet: list[object] = [python, ROOT / "tests/deploy/ray_cluster.py", DEPLOY / "ray/train.py", seen]
    fleet += [f"--elastic={elastic}", "--nodes-max=4", run, script, run, seen]
    environ = {**os.environ, VARIABLE: generated_secret(), "ELASTIC_NOTICES": "none"}
    said = subprocess.run(
        [str(part) for part in fleet], env=environ, check=False, capture_output=True, text=True, timeout=WITHIN_S
    )
    assert said.returncode == 0, said.stderr[-6000:]
    did = [json.loads(line) for line in said.stdout.splitlines() if line.startswith("{")]
    assert [next(iter(one)) for one in did] == ["killed", "added", "drained", "told", "status"]
    assert did[-2:] == [{"told": 75}, {"status": 0}]
    assert trained(seen) == trained(tmp_path / "alone")

    events = read_events(run)
    views = {tuple(event["workers"]): event["world_size"] for event in events if event["event"] == "view_formed"}
    sizes = list(views.values())
    assert [3, 2, 3, 2] in [sizes[at : at + 4] for at in range(len(sizes))]
    notices = [event["signal"].rpartition(": ")[2] for event in events if event["event"] == "notice"]
    assert notices[0] == "Ray drains the node"
