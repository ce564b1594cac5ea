"""A script that can be told to leave at any moment of its life: it compiles, warms up, evaluates, has long sections.

It goes on until the file of --stop-when is there, or to the end of its steps.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import elastic
from tests.kit import told_import  # noqa: F401  # importing it takes long
from tests.kit.told_at import FOLDER, asked_for, hold

LENGTH = 240


class Loaded:
    """State of the script's own, which takes long to load."""

    def state_dict(self) -> dict[str, int]:
        return {"one": 1}

    def load_state_dict(self, state: dict[str, int]) -> None:
        hold("loading")


def backend(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> Any:
    hold("compiling")
    return graph.forward


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--stop-when", type=Path)
    parser.add_argument("--pace-s", type=float, default=0.0)
    options = parser.parse_args()

    hold("begins")
    elastic.seed(7)
    draw = torch.Generator().manual_seed(7)
    points = torch.randn(LENGTH, 8, generator=draw)
    dataset = TensorDataset(points, (points.sum(dim=1) > 0).long())
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))
    compiled = torch.compile(model, backend=backend)

    def correct(points: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        hold("evaluating")
        return {"correct": (model(points).argmax(dim=1) == labels).sum()}

    with elastic.Run(
        options.url,
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
        dataset=dataset,
        extra={"loaded": Loaded()},
        batch_size=24,
        virtual_workers=4,
        steps=options.steps,
        seed=7,
        save_every=10,
    ) as run:
        hold("warming up")
        for step in run:
            if asked_for("compiling"):
                torch.compiler.reset()
            for points, labels in step:
                hold("body")
                step.backward(F.cross_entropy(compiled(points), labels, reduction="sum"), count=len(labels))
            hold("between")
            with run.long_section():
                hold("section")
            run.on_coordinator(lambda: hold("on coordinator"))
            if run.step_index % 7 == 0:
                run.evaluate(dataset, correct)
            if FOLDER in os.environ:
                (Path(os.environ[FOLDER]) / f"steps-{run.world_size}").touch()
            if options.stop_when is not None and options.stop_when.exists():
                run.stop("all notices were given")
            time.sleep(options.pace_s)


if __name__ == "__main__":
    main()
