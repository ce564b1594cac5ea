"""A small training script whose examples come in the order that it is told: python …/ordered.py URL --order mixture."""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from small import Noisy  # type: ignore[import-not-found]  # beside this script
from torch import nn

import elastic
from elastic.orders import Bucketed, Mixture, Order, Sequential, Shuffled, Weighted

LENGTH = 100  # batches of 12 and one of 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--order", required=True)
    parser.add_argument("--steps", type=int, default=14)
    options = parser.parse_args()

    elastic.seed(3)
    weights = torch.rand(LENGTH)
    mixture = Mixture({"large": (Noisy(90, 3), 0.5), "small": (Noisy(7, 4), 0.4), "tiny": (Noisy(3, 5), 0.1)})
    orders: dict[str, Order] = {
        "shuffled": Shuffled(),
        "sequential": Sequential(),
        "drawn": Weighted(weights, replacement=True, per_epoch=60),
        "sampled": Weighted(weights, replacement=False, per_epoch=50),
        "mixture": mixture,
        "bucketed": Bucketed(torch.randint(1, 50, (LENGTH,))),
    }
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))
    with elastic.Run(
        options.url,
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2),
        dataset=mixture.dataset if options.order == "mixture" else Noisy(LENGTH, 3),
        data=elastic.Data(order=orders[options.order], micro_batch_size=2),
        batch_size=12,
        virtual_workers=6,
        steps=options.steps,
        seed=3,
        save_every=2,
    ) as run:
        for step in run:
            for points, labels in step:
                loss = F.cross_entropy(model(points), labels, reduction="sum")
                step.backward(loss, count=len(labels))
                step.add(loss=loss)


if __name__ == "__main__":
    main()
