"""A loop as people have it, over several epochs: dropout, BatchNorm, augmentation, AdamW, clipping, a schedule.

Its body is a plain one but for `if run.updating:`, where it notes the largest gradient, and for `if run.stepped:`,
where it keeps an average of the weights, draws, and counts. Its augmentation grows weaker with the epochs. With
--evaluate, it evaluates in each step: in the body, behind its update, or as part of that (apply). With --metric, it
counts by one of torchmetrics.
With --lose, rank 1 throws the finished exchange of that step away, as if its last message had been lost: it takes the
state over from those who have applied the step. Each worker prints one line of digests.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from typing import Any

import torch
import torch.nn.functional as F
from losing import lose  # type: ignore[import-not-found]  # beside this script
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import elastic
import elastic_checkpoint


class Noisy:
    """Points in eight dimensions with a label; each read adds noise, as much as the loop says."""

    def __init__(self, length: int, seed: int) -> None:
        self.noise, self.reads = 0.1, 0
        draw = torch.Generator().manual_seed(seed)
        self.points = torch.randn(length, 8, generator=draw)
        self.labels = (self.points.sum(dim=1) > 0).long()

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.reads += 1
        return self.points[index] + self.noise * torch.randn(8), self.labels[index]


class Counted:
    """What the loop itself has seen of its steps."""

    def __init__(self) -> None:
        self.steps = 0
        self.drawn: list[float] = []
        self.losses: list[float] = []
        self.largest: list[float] = []

    def state_dict(self) -> dict[str, Any]:
        return {name: list(value) if isinstance(value, list) else value for name, value in vars(self).items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps, self.drawn = state["steps"], list(state["drawn"])
        self.losses, self.largest = list(state["losses"]), list(state["largest"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--steps", type=int, default=24, help="of all epochs together")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--batch-size", type=int, default=24)
    parser.add_argument("--short", type=int, default=0, help="how many examples the last batch of an epoch lacks")
    parser.add_argument("--virtual-workers", type=int, default=8)
    parser.add_argument("--save-every", type=int, default=2)
    parser.add_argument("--mode", default="exact")
    parser.add_argument("--num-workers", type=int, default=0)
    parser.add_argument("--micro-batch-size", type=int)
    parser.add_argument("--storage", type=json.loads, help="storage_options, as JSON")
    parser.add_argument("--unhurried", type=int, default=0, help="goes slowly while fewer workers than this share it")
    parser.add_argument("--lose", type=int)
    parser.add_argument("--weigh", type=int, default=0, help="1: the loss, by how many bodies there were")
    parser.add_argument("--two", type=int, default=0, help="1: an optimizer for each half of the network")
    parser.add_argument("--evaluate", choices=["body", "apply"])
    parser.add_argument("--metric", type=int, default=0, help="1: what was right, by torchmetrics")
    parser.add_argument("--scale", type=int, help="losses are scaled, at first by 2 to the power of this")
    options = parser.parse_args()

    elastic.seed(options.seed)
    dataset = Noisy(options.steps // options.epochs * options.batch_size - options.short, options.seed)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))  # type: ignore[no-untyped-call]
    optimizer = torch.optim.AdamW((model[:3] if options.two else model).parameters(), lr=1e-2)
    optimizers = {"first": optimizer}
    if options.two:
        optimizers["second"] = torch.optim.AdamW(model[3:].parameters(), lr=2e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=options.steps)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**options.scale) if options.scale is not None else None
    counted = Counted()
    parameters: list[Any] = [*model.parameters()]

    def correct(points: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"correct": (model(points).argmax(dim=1) == labels).sum()}

    extra: dict[str, Any] = {"counted": counted, "average": average}
    if options.metric:
        from torchmetrics.classification import BinaryAccuracy

        from elastic.integrations.torchmetrics import Synced

        extra["metric"] = Synced(BinaryAccuracy())

    bodies = 0
    with elastic.Run(
        options.url,
        model=model,
        optimizer=optimizers if options.two else optimizer,
        scheduler=scheduler,
        update=elastic.Update(scaler=scaler),
        dataset=dataset,
        batch_size=options.batch_size,
        virtual_workers=options.virtual_workers,
        epochs=options.epochs,
        seed=options.seed,
        save_every=options.save_every,
        compute=elastic.Compute(mode=options.mode),
        data=elastic.Data(num_workers=options.num_workers, micro_batch_size=options.micro_batch_size),
        saving=elastic.Saving(storage_options=options.storage),
        extra=extra,
    ) as run:

        def evaluate(*_: Any) -> None:
            counted.losses.append(float(run.evaluate(dataset, correct)["correct"]) + torch.rand(()).item())

        if options.metric:
            extra["metric"].follow(run)
        if options.evaluate == "apply":
            run.on_apply(evaluate)
        if options.lose is not None:
            lose(options.lose, run)
        for epoch in run.epochs():
            dataset.noise = 0.1 * 0.8**epoch
            before, foreseen, bar = bodies, len(run.batches()), iter(range(run.steps_per_epoch))
            for points, labels in run.progress(bar):
                for one in optimizers.values():
                    one.zero_grad()
                bodies += 1
                scores = model(points)
                loss: Any = F.cross_entropy(scores, labels) * (bodies if options.weigh else 1)
                if options.metric:
                    extra["metric"].update(scores.argmax(dim=1), labels)
                run.add(loss=loss.detach() * len(labels))
                if scaler is None:
                    loss.backward()
                    if run.updating:
                        counted.largest.append(max(float(one.grad.abs().max()) for one in parameters))
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    for one in optimizers.values():
                        one.step()
                else:
                    scaler.scale(loss).backward()
                    scaler.unscale_(optimizer)
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    scaler.step(optimizer)
                    scaler.update()
                scheduler.step()
                if run.stepped:
                    average.update_parameters(model)
                    counted.steps += 1
                    counted.drawn.append(torch.rand(()).item())
                    counted.losses.append(run.sums["loss"] / run.count)
                    if options.evaluate == "body":
                        evaluate()
                    if run.world_size < options.unhurried:
                        time.sleep(0.05)  # a run of few steps is to see its lost workers replaced
            if options.metric:
                counted.losses.append(extra["metric"].compute().item())
                extra["metric"].reset()
            assert next(bar, None) is None
            os.write(1, f"foreseen: {foreseen}, passed: {bodies - before}\n".encode())
            found = run.evaluate(dataset, correct)
            if run.is_coordinator:
                print(f"epoch {epoch}: {found['correct'] / len(dataset):.4f} correct")
    seen = {name: torch.tensor(value, dtype=torch.float64) for name, value in counted.state_dict().items()}
    state = elastic_checkpoint.digest(
        {"model": model, "average": average, "optimizer": optimizers, "scheduler": scheduler, "counted": seen}
    )
    if scaler is not None:
        os.write(1, f"scale {scaler.get_scale()}\n".encode())
    os.write(1, f"took part: {state} with {counted.steps} steps\n".encode())  # at once: print writes piece by piece


if __name__ == "__main__":
    main()
