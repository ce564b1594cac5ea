"""Training without a garbage collector: python -m tests.kit.programs.let_go URL [--loop plain] [--steps N].

What a view leaves behind must go by itself, and what summed the gradients of parameters that are not trained any more:
after each step a worker fails that still holds it.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections import Counter

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import elastic
from elastic.group.form import DistributedGroup
from elastic.group.gradients import GradientSum
from elastic.loop.gradient_sync import GradientSync

_WORKERS = 3


def look(run: elastic.Run, model: nn.Sequential) -> None:
    """Raises AssertionError. Three sets of parameters take turns. Waits a moment for those who are to come back."""
    kinds = DistributedGroup, GradientSync, GradientSum
    held = Counter(type(thing).__name__ for thing in gc.get_objects() if isinstance(thing, kinds))
    most = Counter({DistributedGroup.__name__: 1, GradientSync.__name__: 1, GradientSum.__name__: 2})
    assert held <= most, f"step {run.step_index}, generation {run.generation}: {dict(held)}"
    first, last = model[0].bias, model[3].bias
    assert isinstance(first, torch.Tensor)
    assert isinstance(last, torch.Tensor)
    first.requires_grad_(run.step_index % 3 != 0)
    last.requires_grad_(run.step_index % 3 != 1)
    if run.world_size < _WORKERS:
        time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--loop", choices=("run", "plain"), default="run")
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    elastic.seed(0)
    data = TensorDataset(torch.randn(96, 4), torch.arange(96) % 2)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-2)
    gc.disable()
    with elastic.Run(
        options.url,
        model=model,
        optimizer=optimizer,
        dataset=data,
        batch_size=12,
        virtual_workers=6,
        steps=options.steps,
        update=elastic.Update(clip_grad_norm=1.0 if options.loop == "run" else None),
    ) as run:
        if options.loop == "run":
            for step in run:
                for x, y in step:
                    step.backward(F.cross_entropy(model(x), y, reduction="sum"), count=len(y))
                look(run, model)
            return
        for x, y in run.batches():
            optimizer.zero_grad()
            loss: torch.Tensor = F.cross_entropy(model(x), y)
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if run.stepped:
                look(run, model)


if __name__ == "__main__":
    main()
