"""Trains a little, prints the instruction set and the digest of the weights: python -m ... URL [--portable]."""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import elastic
import elastic_checkpoint


def main() -> None:
    elastic.seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 10))
    data = TensorDataset(torch.randn(96, 64), torch.arange(96) % 10)
    with elastic.Run(
        sys.argv[1],
        model=model,
        optimizer=torch.optim.AdamW(model.parameters()),
        dataset=data,
        batch_size=24,
        virtual_workers=4,
        epochs=1,
        compute=elastic.Compute(portable="--portable" in sys.argv),
    ) as run:
        for step in run:
            for x, y in step:
                step.backward(F.cross_entropy(model(x), y, reduction="sum"), count=len(y))
    if run.is_coordinator:
        print(f"found {torch.backends.cpu.get_cpu_capability()} {elastic_checkpoint.digest(model)}")


if __name__ == "__main__":
    main()
