"""A run of streams in this process, which can be interrupted, and what it read."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

import elastic
from elastic.data.streams import Streams


def train_on(url: Path, streams: Streams, until: int | None = None) -> list[Any]:
    """The examples read; the run is interrupted after `until` steps."""
    model = torch.nn.Linear(1, 1)
    read: list[Any] = []
    run = elastic.Run(url, model=model, optimizer=torch.optim.SGD(model.parameters()), dataset=streams, batch_size=6,
                      virtual_workers=3, steps=4, save_every=1, data=elastic.Data(collate_fn=list),
                      checks=elastic.Checks(cross_check=None))  # fmt: skip
    with suppress(KeyboardInterrupt), run:
        for batch in run.batches():
            read += batch
            model(torch.ones(1)).mean().backward()
            (optimizer,) = run.optimizers.values()
            optimizer.step()
            if run.step_index == until:
                raise KeyboardInterrupt
    return read
