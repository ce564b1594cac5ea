"""A script with a bug of its own: its dataset shuffles with a seed from the rank, as samplers of DDP scripts do."""

from __future__ import annotations

import os
import random

import torch
import torch.nn.functional as F
from torch import nn

import elastic


class Shuffled:
    """Points with a label, in an order of their own."""

    def __init__(self, length: int) -> None:
        draw = torch.Generator().manual_seed(1)
        self.points = torch.randn(length, 8, generator=draw)

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        point = self.points[self.order()[index]]
        return point, (point.sum() > 0).long()

    def order(self) -> list[int]:
        order = list(range(len(self.points)))
        random.Random(7 + int(os.environ.get("LOCAL_RANK", "0"))).shuffle(order)
        return order


def main() -> None:
    elastic.seed(0)
    model = nn.Linear(8, 2)
    with elastic.Run(
        "runs/rank_sampler",
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2),
        dataset=Shuffled(24 * 12),
        batch_size=24,
        virtual_workers=8,
        epochs=1,
        save_every=2,
    ) as run:
        for step in run:
            for points, labels in step:
                step.backward(F.cross_entropy(model(points), labels, reduction="sum"), count=len(labels))


if __name__ == "__main__":
    main()
