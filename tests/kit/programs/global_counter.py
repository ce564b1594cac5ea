"""A script with a bug of its own: its dataset counts how often it was read, and the examples depend on it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

import elastic

reads = 0


class Curriculum:
    """Points with a label, noisier after a while: later than in the first step, where the run itself would find it."""

    def __init__(self, length: int) -> None:
        self.points = torch.randn(length, 8, generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        global reads
        reads += 1
        point = self.points[index]
        return point * (1.1 if reads > 220 else 1.0), (point.sum() > 0).long()


def main() -> None:
    elastic.seed(0)
    model = nn.Linear(8, 2)
    with elastic.Run(
        "runs/global_counter",
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2),
        dataset=Curriculum(24 * 12),
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
