"""What tests/benchmarks/start.py starts: says that its imports are made, or that a step is applied, and ends."""

from __future__ import annotations

import os
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

IMPORTED, APPLIED = "imported", "applied"


def main(how: str, url: str) -> None:
    if how == "imports":
        _say(IMPORTED)
        return
    if how == "all":
        import elastic

        _ = elastic.Run, torch.optim.AdamW([nn.Parameter(torch.zeros(1))])
        _say(IMPORTED)
        return
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(512, 32), torch.randint(4, (512,)))
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if how == "run":
        _in_run(url, model, optimizer, data)
        return
    if how == "ddp":
        torch.distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)  # type: ignore[assignment]
    optimizer.zero_grad()
    F.cross_entropy(model(data.tensors[0][:64]), data.tensors[1][:64]).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    _say(APPLIED)


def _in_run(url: str, model: nn.Module, optimizer: torch.optim.Optimizer, data: TensorDataset) -> None:
    import elastic

    with elastic.Run(
        url, model=model, optimizer=optimizer, dataset=data, batch_size=64, virtual_workers=4, steps=1, save_every="1h"
    ) as run:
        for step in run:
            for x, y in step:
                step.backward(F.cross_entropy(model(x), y, reduction="sum"), count=len(y))
            _say(APPLIED)


def _say(word: str) -> None:
    """At once: print writes piece by piece, and others write there, too."""
    os.write(1, f"{word}\n".encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
