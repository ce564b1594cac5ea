"""What tests/benchmarks/read_ahead.py starts."""

from __future__ import annotations

import sys

import slow_import  # type: ignore[import-not-found]
import torch
from torch import nn
from torch.utils.data import TensorDataset

import elastic


def main(url: str, mib: int, steps: int) -> None:
    assert slow_import.done
    torch.manual_seed(0)
    model = nn.Linear(1024, mib * 2**20 // 4 // 1024, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = TensorDataset(torch.randn(512, 1024))
    with elastic.Run(
        url, model=model, optimizer=optimizer, dataset=data, batch_size=8, virtual_workers=2, steps=steps
    ) as run:
        for step in run:
            for (x,) in step:
                step.backward(model(x).sum(), count=len(x))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
