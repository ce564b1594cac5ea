"""Fabric's own idiom, as in its examples, with a run's lines in place of its loader's."""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.nn.functional as F
from losing import lose  # type: ignore[import-not-found]  # beside this script
from torch import nn

import elastic
import elastic_checkpoint
from elastic.integrations.fabric import Fabric


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--steps", type=int, default=24, help="of two epochs")
    parser.add_argument("--num-workers", type=int, default=0)
    parser.add_argument("--unhurried", type=int, default=0, help="goes slowly while fewer workers than this share it")
    parser.add_argument("--lose", type=int, help="the step whose last message rank 1 loses")
    options = parser.parse_args()

    fabric = Fabric(precision="bf16-mixed")
    fabric.print("it begins")
    elastic.seed(5)
    points = torch.randn(options.steps // 2 * 24 - 21, 8)
    dataset = torch.utils.data.TensorDataset(points, (points.sum(dim=1) > 0).long())
    model: nn.Module = nn.Sequential(nn.Linear(8, 32), nn.LayerNorm(32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 2))
    plain_optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.LambdaLR(plain_optimizer, lambda step: min(1.0, (step + 1) / 5))

    with elastic.Run(
        options.url,
        model=model,
        optimizer=plain_optimizer,
        scheduler=scheduler,
        dataset=dataset,
        batch_size=24,
        virtual_workers=8,
        epochs=2,
        save_every=3,
        data=elastic.Data(num_workers=options.num_workers),
    ) as run:
        if options.lose is not None:
            lose(options.lose, run)
        fabric.follow(run)
        wrapped, optimizer = fabric.setup(model, plain_optimizer)
        for epoch in run.epochs():
            wrapped.train()
            for inputs, labels in run.batches():
                loss = F.cross_entropy(wrapped(inputs), labels)
                fabric.backward(loss)
                fabric.clip_gradients(wrapped, optimizer, max_norm=1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                if run.stepped and run.world_size < options.unhurried:
                    time.sleep(0.1)  # a run of few steps is to see its lost workers replaced
            fabric.print(f"epoch {epoch} of {run.step_index} steps is over")
    digest = elastic_checkpoint.digest({"model": model, "optimizer": plain_optimizer, "scheduler": scheduler})
    line = f"took part: {digest} at rate {scheduler.get_last_lr()}\n"
    os.write(1, line.encode())  # at once: print writes piece by piece


if __name__ == "__main__":
    main()
