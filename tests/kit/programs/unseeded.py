"""A script with a bug of its own: its weights are initialised without a seed."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import elastic


def main() -> None:
    points = torch.linspace(-1, 1, 24 * 12 * 8).reshape(-1, 8)
    model = nn.Linear(8, 2)
    elastic.seed(0)
    with elastic.Run(
        "runs/unseeded",
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2),
        dataset=TensorDataset(points, (points.sum(dim=1) > 0).long()),
        batch_size=24,
        virtual_workers=8,
        epochs=1,
        save_every=2,
    ) as run:
        for step in run:
            for inputs, labels in step:
                step.backward(F.cross_entropy(model(inputs), labels, reduction="sum"), count=len(labels))


if __name__ == "__main__":
    main()
