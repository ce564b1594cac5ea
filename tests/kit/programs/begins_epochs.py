"""A training script that halves its learning rate at the beginning of every epoch, as scripts do by hand.

    python -m tests.kit.programs.begins_epochs FOLDER NAME KILLED_AT

The worker of rank 1 kills itself in that step's body, once. FOLDER/NAME.json has the rate and the weights at the end.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset

import elastic


def main(folder: Path, name: str, killed_at: int) -> None:
    elastic.seed(0)
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    generator = torch.Generator().manual_seed(1)
    data = torch.randn(64, 4, generator=generator), torch.randint(0, 3, (64,), generator=generator)
    killed = folder / "killed"
    with elastic.Run(
        folder / name,
        model=model,
        optimizer=optimizer,
        dataset=TensorDataset(*data),
        batch_size=16,
        virtual_workers=4,
        epochs=4,
        seed=0,
        save_every=3,
    ) as run:
        for _ in run.epochs():
            for group in optimizer.param_groups:
                group["lr"] *= 0.5
            for x, y in run.batches():
                if run.step_index == killed_at and run.rank == 1 and not killed.exists():
                    killed.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                optimizer.zero_grad()
                loss: Any = F.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
        weights = [weight.tolist() for weight in model.parameters()]
        if run.rank == 0:
            rate = optimizer.param_groups[0]["lr"]
            (folder / f"{name}.json").write_text(json.dumps({"rate": rate, "weights": weights}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
