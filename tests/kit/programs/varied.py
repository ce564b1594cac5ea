"""A small training script whose options vary what a run is made of: python tests/kit/programs/varied.py URL --steps 20.

What random drills (tests/kit/random_drills.py) train, with loader processes or without, in short epochs that do not
divide, with averaged weights, a history that the script's own code makes after each step, and a habit of habits.py.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
import torch.nn.functional as F
from habits import HABITS, Habit  # type: ignore[import-not-found]  # beside this script
from small import Noisy  # type: ignore[import-not-found]
from torch import nn

import elastic


class History:
    """What the code after each step has made of its sums."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def state_dict(self) -> dict[str, Any]:
        return {"losses": list(self.losses)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.losses = list(state["losses"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--length", type=int, required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--virtual-workers", type=int, required=True)
    parser.add_argument("--micro-batch-size", type=int)
    parser.add_argument("--last-batch", default="short")
    parser.add_argument("--num-workers", type=int, default=0)
    parser.add_argument("--save-every", default="3", help="steps, or a time")
    parser.add_argument("--mode", default="exact")
    parser.add_argument("--norm", choices=("batch", "layer"), default="layer")
    parser.add_argument("--optimizer", choices=("adamw", "sgd"), default="adamw")
    parser.add_argument("--scheduler", action="store_true")
    parser.add_argument("--average", action="store_true", help="the weights, after each update")
    parser.add_argument("--habit", choices=tuple(HABITS))
    parser.add_argument("--evaluate-every", type=int, help="steps")
    parser.add_argument("--stop-after", type=int, help="steps, by run.stop()")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds that a collective may take")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds after each step")
    options = parser.parse_args()

    elastic.seed(11)
    dataset = Noisy(options.length, 11)
    norm = nn.BatchNorm1d(16) if options.norm == "batch" else nn.LayerNorm(16)
    habit: Habit = HABITS[options.habit]() if options.habit else Habit()
    model = habit.model(nn.Sequential(nn.Linear(8, 16), norm, nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2)))
    optimizer: torch.optim.Optimizer
    if options.optimizer == "adamw":
        optimizer = torch.optim.AdamW(habit.optimized(model), lr=1e-2)
    else:
        optimizer = torch.optim.SGD(habit.optimized(model), lr=0.05, momentum=0.9)
    history = History()
    extra: dict[str, Any] = {"history": history, **habit.extra}
    if options.average:
        extra["averaged"] = averaged = torch.optim.swa_utils.AveragedModel(model, use_buffers=True)

    def correct(points: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"correct": (model(points).argmax(dim=1) == labels).sum()}

    with elastic.Run(
        options.url,
        model=model,
        optimizer=optimizer,
        scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=40) if options.scheduler else None,
        dataset=dataset,
        update=elastic.Update(buffers=habit.rules, clip_grad_norm=1.0),
        batch_size=options.batch_size,
        virtual_workers=options.virtual_workers,
        data=elastic.Data(
            micro_batch_size=options.micro_batch_size, last_batch=options.last_batch, num_workers=options.num_workers
        ),
        steps=options.steps,
        epochs=options.epochs,
        seed=11,
        save_every=int(options.save_every) if options.save_every.isdecimal() else options.save_every,
        compute=elastic.Compute(mode=options.mode, timeout_s=options.timeout),
        saving=elastic.Saving(failures_max=1000),  # after each of these steps one: ten are < 1 s of a full disk
        extra=extra,
    ) as run:
        if options.average:
            run.on_apply(lambda _run, _step: averaged.update_parameters(model))
        run.on_apply(habit.apply)
        habit.start(run)
        for step in run:
            habit.before(run, step)
            for points, labels in step:
                scores = model(points)
                loss = F.cross_entropy(scores, labels, reduction="sum") + habit.loss(model, points, scores)
                step.backward(loss, count=len(labels))
                step.add(loss=loss)
            history.losses.append(float(step.sums["loss"]) / step.count)
            habit.after(run, step)
            if options.evaluate_every and run.step_index % options.evaluate_every == 0:
                run.evaluate(dataset, correct)
            if step.index + 1 == options.stop_after:
                run.stop("enough")
            time.sleep(options.pause)
        if run.is_coordinator:
            print("history", *(f"{loss:.4f}" for loss in history.losses), flush=True)


if __name__ == "__main__":
    main()
