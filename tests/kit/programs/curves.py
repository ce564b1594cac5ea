"""A loop that logs each step, each tenth step another value, one an epoch, and one at the end, to all files."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import elastic
from elastic.logging import CSV, TensorBoard, WandB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--curves", type=Path, required=True)
    options = parser.parse_args()

    elastic.seed(0)
    x = torch.randn(30 * 16, 16)
    dataset = torch.utils.data.TensorDataset(x, x[:, :4].argmax(1))
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    folder = options.curves
    loggers = [
        CSV(folder / "curves.csv"),
        TensorBoard(folder / "tensorboard"),
        WandB(project="curves", dir=str(folder), mode="offline"),
    ]
    with elastic.Run(
        options.url,
        model=model,
        optimizer=optimizer,
        dataset=dataset,
        batch_size=16,
        virtual_workers=4,
        steps=options.steps,
        save_every=7,
        loggers=loggers,
    ) as run:
        for epoch in run.epochs():
            for x, y in run.batches():
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                run.add(loss=loss.detach() * len(y))
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                if run.stepped:
                    run.log(loss=run.sums["loss"] / run.count)
                    if run.step_index % 10 == 0:
                        run.log(tenth=run.step_index)
                    time.sleep(0.02)
            run.log(epoch=epoch)
    run.log(test=0.5)


if __name__ == "__main__":
    main()
