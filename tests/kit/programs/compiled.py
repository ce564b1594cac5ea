"""A script that compiles its model. Shares have 14 and 15 examples."""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import elastic


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--steps", type=int, default=4)
    options = parser.parse_args()

    elastic.seed(3)
    dataset = TensorDataset(torch.randn(29 * options.steps, 4, 17), torch.arange(29 * options.steps) % 3)
    convolution = nn.Sequential(nn.Conv1d(4, 8, 3), nn.BatchNorm1d(8), nn.GELU())
    model = nn.Sequential(convolution, nn.Dropout(0.1), nn.Flatten(), nn.Linear(120, 3))
    compiled = torch.compile(model)
    with elastic.Run(
        options.url,
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2),
        dataset=dataset,
        batch_size=29,
        virtual_workers=2,
        steps=options.steps,
    ) as run:
        for step in run:
            for points, labels in step:
                loss = F.cross_entropy(compiled(points), labels, reduction="sum")
                step.backward(loss, count=len(labels))


if __name__ == "__main__":
    main()
