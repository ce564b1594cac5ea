"""A script with a state of some megabytes, that others join while it trains.

python tests/kit/programs/newcomers.py URL [--writes WHEN]; alone, or under `elastic run` with two workers or more.

With --writes before, it writes to its weights between the boundary and each step; with `after`, behind each step.
Whoever is fewer than once were waits for a replacement. Each worker prints one line: its digest, and of the steps that
it took part in, how many it had no share of.
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.nn.functional as F
from torch import nn

import elastic
import elastic_checkpoint


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--writes", choices=("before", "after"))
    options = parser.parse_args()
    elastic.seed(5)
    model = nn.Sequential(nn.Linear(64, 1500), nn.BatchNorm1d(1500), nn.Linear(1500, 1500), nn.Linear(1500, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    points = torch.utils.data.TensorDataset(torch.randn(64, 64), torch.randint(4, (64,)))

    def decay() -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.999)

    with elastic.Run(
        options.url, model=model, optimizer=optimizer, dataset=points, batch_size=16, virtual_workers=4, steps=24
    ) as run:
        fullest, patience_s, idle = 0, 0.05, 0
        for step in run:
            if options.writes == "before":
                decay()
            shares = 0
            for x, y in step:
                shares += 1
                step.backward(F.cross_entropy(model(x), y, reduction="sum"), count=len(y))
            idle += shares == 0
            if options.writes == "after":
                decay()
            fullest = max(fullest, run.world_size)
            if run.world_size < fullest:
                time.sleep(patience_s := min(2 * patience_s, 4.0))  # however long a replacement takes on this machine
        digest = elastic_checkpoint.digest({"model": model, "optimizer": optimizer})
        print(f"took part: {digest} idle {idle}", flush=True)


if __name__ == "__main__":
    main()
