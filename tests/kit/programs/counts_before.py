"""A training script that counts in extra= before each step's inner loop, and whose loss is scaled by the count.

    python -m tests.kit.programs.counts_before FOLDER NAME KILLED_AT

The worker of rank 1 kills itself in that step's body, once. FOLDER/NAME.json has the count and the weights at the end.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset

import elastic


class Counter:
    def __init__(self) -> None:
        self.count = 0

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = state["count"]


def main(folder: Path, name: str, killed_at: int) -> None:
    elastic.seed(0)
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(1)
    data = torch.randn(64, 4, generator=generator), torch.randint(0, 3, (64,), generator=generator)
    counter, killed = Counter(), folder / "killed"
    with elastic.Run(
        folder / name,
        model=model,
        optimizer=optimizer,
        dataset=TensorDataset(*data),
        batch_size=16,
        virtual_workers=4,
        epochs=3,
        seed=0,
        extra={"counter": counter},
        save_every=4,
    ) as run:
        for step in run:
            counter.count += 1
            for x, y in step:
                if step.index == killed_at and run.rank == 1 and not killed.exists():
                    killed.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                scale = 1 + 0.05 * counter.count
                step.backward(F.cross_entropy(model(x), y, reduction="sum") * scale, len(y))
        weights = [weight.tolist() for weight in model.parameters()]
        if run.rank == 0:
            (folder / f"{name}.json").write_text(json.dumps({"count": counter.count, "weights": weights}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
