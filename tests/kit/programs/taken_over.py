"""A script whose state is of odd kinds, and of which one worker takes a step over from another.

python tests/kit/programs/taken_over.py URL [--lose STEP]; alone, or under `elastic run` with two workers or more.

Its update draws noise, its code after the inner loop draws and keeps what it drew, assigns buffers anew, changes plain
attributes and modes, and evaluates, and what it draws before its loop takes part in every step. With --lose, rank 1
throws the finished exchange of that step away, as if its last message had been lost: it takes the state over from those
who have applied the step.
Each worker prints one line of digests.
"""

from __future__ import annotations

import argparse
import copy
import random
import time
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import elastic
import elastic_checkpoint
from elastic.errors import PeerLost
from elastic.loop.gradient_sync import GradientSync


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.temperature: torch.Tensor
        self.recent: torch.Tensor
        self.hidden: torch.Tensor
        self.register_buffer("temperature", torch.tensor(1.0))
        self.register_buffer("recent", torch.zeros(4))
        self.register_buffer("hidden", torch.zeros(4), persistent=False)
        self.register_buffer("low", torch.tensor([]))
        self.sharpness, self.updates = 1.0, 0
        self.norm = nn.BatchNorm1d(4)
        self.out = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        low = self.get_buffer("low")
        if self.training and not low.numel():
            low.resize_(4).zero_()
        scores: torch.Tensor = self.out(self.norm(x) + self.recent + self.hidden)
        return scores / self.temperature * self.sharpness

    def get_extra_state(self) -> dict[str, Any]:
        return {"sharpness": self.sharpness, "updates": self.updates}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.sharpness, self.updates = state["sharpness"], state["updates"]


class Drawn:
    """What the code after each step drew."""

    def __init__(self) -> None:
        self.numbers: list[float] = []

    def state_dict(self) -> dict[str, Any]:
        return {"numbers": list(self.numbers)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.numbers = list(state["numbers"])


def draw() -> float:
    return torch.rand(()).item() + random.random() + float(np.random.rand())


def lose(step: int, run: elastic.Run) -> None:
    """Once, on rank 1."""
    carry_out = GradientSync.carry_out
    again = [True]

    def throws_it_away(self: GradientSync, position: tuple[int, int, int], *arguments: Any, **named: Any) -> Any:
        agreed = carry_out(self, position, *arguments, **named)
        if position[1] == step and run.rank == 1 and again:
            again.pop()
            raise PeerLost("thrown away on purpose", step=step, phase="test")
        return agreed

    GradientSync.carry_out = throws_it_away  # type: ignore[method-assign]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--lose", type=int)
    options = parser.parse_args()
    elastic.seed(3)
    model = Scaled()
    teacher = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    drawn = Drawn()
    points = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randint(3, (64,)))

    def noisy(run: elastic.Run, step: elastic.Step) -> None:
        optimizer.step()
        teacher.updates += 1
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1e-3 * torch.randn_like(parameter) + 1e-3 * draw())
            for mean, weight in zip(teacher.parameters(), model.parameters(), strict=True):
                mean.lerp_(weight, min(0.2, 1 / teacher.updates))

    with elastic.Run(
        options.url,
        model=model,
        optimizer=optimizer,
        dataset=points,
        batch_size=16,
        virtual_workers=4,
        steps=16,
        update=elastic.Update(apply=noisy),
        extra={"drawn": drawn, "teacher": teacher},
    ) as run:
        if options.lose is not None:
            lose(options.lose, run)
        offset = 0.01 * torch.randn(4)
        drawn.numbers[:] = drawn.numbers or [draw()]
        fullest, patience_s = 0, 0.05
        for step in run:
            weight = draw()
            for x, y in step:
                with torch.no_grad():
                    target = teacher(x).softmax(dim=1)
                loss = F.cross_entropy(model(x + offset), y, reduction="sum") * weight
                step.backward(loss + F.cross_entropy(model(x), target, reduction="sum"), count=len(y))
            drawn.numbers.append(draw())
            model.temperature = model.temperature * 0.98
            model.recent[step.index % 4] += 0.01
            model.hidden.data.add_(0.01)
            model.sharpness *= 0.99
            teacher.train(step.index < 8)
            if step.index % 4 == 3:
                found = run.evaluate(points, lambda x, _: {"sum": model(x).sum() + teacher(x).sum()})
                drawn.numbers += [found["sum"], draw()]
            fullest = max(fullest, run.world_size)
            if run.world_size < fullest:
                time.sleep(patience_s := min(2 * patience_s, 4.0))  # however long a replacement takes on this machine
        state = {"model": model, "hidden": model.hidden, "teacher": teacher, "drawn": drawn, "last": draw()}
        print(f"took part: {elastic_checkpoint.digest(state)}", flush=True)


if __name__ == "__main__":
    main()
