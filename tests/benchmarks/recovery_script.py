"""What tests/benchmarks/recovery.py trains: a model of a given size on random data, in steps of some tens of ms."""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

import elastic


class Points(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Not a TensorDataset, so that loader processes have something to read."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(256), torch.tensor(index % 10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=640, help="640: about 1.0 M parameters; 4,900: about 50 M")
    parser.add_argument("--num-workers", type=int, default=0)
    parser.add_argument("--raise-at", type=int, nargs="*", default=[], help="steps at which rank 1 raises, once each")
    options = parser.parse_args()

    elastic.seed(0)
    width = options.width
    model = nn.Sequential(
        nn.Linear(256, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, 10),
    )  # fmt: skip
    with elastic.Run(
        options.url,
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
        dataset=Points(1_000_000),
        batch_size=256,
        virtual_workers=8,
        steps=options.steps,
        save_every="1h",
        num_workers=options.num_workers,
    ) as run:
        for step in run:
            for points, labels in step:
                loss = F.cross_entropy(model(points), labels, reduction="sum")
                if step.index in options.raise_at and run.rank == 1 and step.attempt == 0:
                    raise RuntimeError(f"a fault of the script at step {step.index}")
                step.backward(loss, count=len(labels))


if __name__ == "__main__":
    main()
