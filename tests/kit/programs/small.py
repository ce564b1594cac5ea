"""A small training script, as a user writes one: dropout, BatchNorm, augmentation, AdamW, clipping, a schedule.

Its defaults make one epoch of `--steps` steps, so that each example is applied once.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import elastic


class Noisy:
    """Points in eight dimensions with a label; each read adds noise, as an augmentation does."""

    def __init__(self, length: int, seed: int) -> None:
        draw = torch.Generator().manual_seed(seed)
        self.points = torch.randn(length, 8, generator=draw)
        self.labels = (self.points.sum(dim=1) > 0).long()

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.points[index] + 0.1 * torch.randn(8), self.labels[index]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--batch-size", type=int, default=24)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--virtual-workers", type=int, default=8)
    parser.add_argument("--length", type=int, help="default: one epoch of all steps")
    parser.add_argument("--save-every", default="2")
    parser.add_argument("--mode", default="exact")
    parser.add_argument("--num-workers", type=int, default=0)
    parser.add_argument("--micro-batch-size", type=int)
    parser.add_argument("--storage", type=json.loads, help="storage_options, as JSON")
    parser.add_argument("--evaluate-every", type=int, help="steps; it evaluates at the end in any case")
    parser.add_argument("--timeout", type=float, default=600.0)
    parser.add_argument("--save-failures-max", type=int, default=10)
    parser.add_argument("--unhurried", type=int, default=0, help="goes slowly while fewer workers than this share it")
    parser.add_argument("--awaits", type=int, default=0, help="goes ever more slowly once fewer than so many do")
    parser.add_argument("--slow-until", type=Path, help="goes ever more slowly until this file is there")
    options = parser.parse_args()

    elastic.seed(options.seed)
    length = options.length or options.steps * options.batch_size
    dataset = Noisy(length, options.seed)
    width = options.width
    model = nn.Sequential(nn.Linear(8, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def correct(points: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"correct": (model(points).argmax(dim=1) == labels).sum()}

    with elastic.Run(
        options.url,
        model=model,
        optimizer=optimizer,
        scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=options.steps),
        dataset=dataset,
        batch_size=options.batch_size,
        virtual_workers=options.virtual_workers,
        steps=options.steps,
        seed=options.seed,
        update=elastic.Update(clip_grad_norm=1.0),
        save_every=int(options.save_every) if options.save_every.isdecimal() else options.save_every,
        compute=elastic.Compute(mode=options.mode, timeout_s=options.timeout),
        data=elastic.Data(num_workers=options.num_workers, micro_batch_size=options.micro_batch_size),
        saving=elastic.Saving(storage_options=options.storage, failures_max=options.save_failures_max),
    ) as run:
        patience_s, most = 0.05, 0
        for step in run:
            for points, labels in step:
                scores = model(points)
                loss = F.cross_entropy(scores, labels, reduction="sum")
                step.backward(loss, count=len(labels))
                step.add(loss=loss, correct=(scores.argmax(dim=1) == labels).sum())
            if run.is_coordinator:
                print(f"step {step.index} loss {step.sums['loss'] / step.count:.4f}")
            if options.evaluate_every and run.step_index % options.evaluate_every == 0:
                run.evaluate(dataset, correct)
            if run.world_size < options.unhurried:
                time.sleep(0.05)  # a run of few steps is to see its lost workers replaced
            if options.slow_until is not None and not options.slow_until.exists():
                time.sleep(0.05 * 60 ** (run.step_index / options.steps))
            most = max(most, run.world_size)
            if run.world_size < min(most, options.awaits):
                time.sleep(patience_s := min(2 * patience_s, 4.0))  # however long a replacement takes on this machine
            else:
                patience_s = 0.05
        found = run.evaluate(dataset, correct)
        if run.is_coordinator:
            print(f"accuracy {found['correct'] / length:.4f}")


if __name__ == "__main__":
    main()
