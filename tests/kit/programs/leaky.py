"""A script with a bug of its own: it opens connections for each view that it is in, and closes none."""

from __future__ import annotations

import socket
import sys
import time

import torch
from torch import nn
from torch.utils.data import TensorDataset

import elastic

REPLACED_BY = 14  # the step before which a worker that was lost is back


def main() -> None:
    elastic.seed(7)
    points = torch.randn(240, 8)
    model = nn.Linear(8, 2)
    dashboards: dict[int, list[tuple[socket.socket, socket.socket]]] = {}
    with elastic.Run(
        sys.argv[1],
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        dataset=TensorDataset(points, (points.sum(dim=1) > 0).long()),
        batch_size=12,
        virtual_workers=6,
        epochs=1,
    ) as run:
        fullest, patience_s = 0, 0.05
        for step in run:
            for batch, labels in step:
                loss = nn.functional.cross_entropy(model(batch), labels, reduction="sum")
                step.backward(loss, count=len(labels))
            if run.generation not in dashboards:
                dashboards[run.generation] = [socket.socketpair() for _ in range(5)]
            fullest = max(fullest, run.world_size)
            if run.world_size < fullest and step.index < REPLACED_BY:
                time.sleep(patience_s := min(2 * patience_s, 4.0))  # however long a replacement takes on this machine


if __name__ == "__main__":
    main()
