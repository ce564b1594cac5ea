"""A run that goes on until it is told that it is enough: python tests/kit/programs/soak.py URL --full WORKERS.

It goes slowly while fewer than WORKERS share it. Once the file `--enough` is there, or after `--stop-after` steps, it
stops at the boundary after the next step.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from small import Noisy  # type: ignore[import-not-found]  # beside this script
from torch import nn

import elastic


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--full", type=int, default=1)
    parser.add_argument("--enough", type=Path)
    parser.add_argument("--stop-after", type=int)
    parser.add_argument("--save-every", type=int, default=50)
    options = parser.parse_args()

    elastic.seed(3)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))
    with elastic.Run(
        options.url,
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2),
        dataset=Noisy(24 * 40, 3),
        batch_size=24,
        virtual_workers=8,
        steps=100_000,
        seed=3,
        update=elastic.Update(clip_grad_norm=1.0),
        save_every=options.save_every,
    ) as run:
        for step in run:
            for points, labels in step:
                loss = F.cross_entropy(model(points), labels, reduction="sum")
                step.backward(loss, count=len(labels))
                step.add(loss=loss)
            if step.index + 1 == options.stop_after or (options.enough is not None and options.enough.exists()):
                run.stop("enough")
            if run.world_size < options.full:
                time.sleep(0.1)  # few steps until those who are missing are back


if __name__ == "__main__":
    main()
