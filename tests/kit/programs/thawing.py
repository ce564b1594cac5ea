"""A script that trains other parameters as it goes on: python tests/kit/programs/thawing.py URL --steps 40.

Layer after layer is unfrozen, frozen and given a group of its own; an adapter joins the model (`rebuild` makes it
again); a hook, registered once the run has begun, changes gradients; two of the layers take turns from step to step.
BatchNorm is frozen in eval mode, once.
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.nn.functional as F
from small import Noisy  # type: ignore[import-not-found]  # beside this script
from torch import nn

import elastic

EVERY = 5
GROWS_AT = 12


class Adapted(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.adapter = layer, nn.Linear(16, 16)
        nn.init.constant_(self.adapter.weight, 0.01)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(x) + self.adapter(x)
        return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--save-every", type=int, default=7)
    parser.add_argument("--awaits", type=int, default=0, help="goes ever more slowly while fewer workers share it")
    options = parser.parse_args()

    elastic.seed(9)
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Linear(16, 16), nn.Linear(16, 2))
    for number in (1, 2, 3):
        model[number].requires_grad_(False)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2, weight_decay=0.1)

    def rebuild(step: int) -> None:
        if step > GROWS_AT:
            model[1] = Adapted(model[1])

    def damp(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad.mul_(0.9).clamp_(-5, 5)

    with elastic.Run(
        options.url,
        model=model,
        optimizer=optimizer,
        dataset=Noisy(24 * options.steps, 9),
        batch_size=24,
        virtual_workers=8,
        steps=options.steps,
        save_every=options.save_every,
        update=elastic.Update(clip_grad_norm=1.0, rebuild=rebuild),
    ) as run:
        for parameter in trained:
            parameter.register_post_accumulate_grad_hook(damp)  # type: ignore[no-untyped-call]
        patience_s = 0.05
        for step in run:
            model[0].requires_grad_(step.index % 2 == 0)
            for points, labels in step:
                step.backward(F.cross_entropy(model(points), labels, reduction="sum"), count=len(labels))
            number, now = divmod(step.index, EVERY)
            if now == EVERY - 1 and number < 3:
                thawed = model[3 - number]
                thawed.requires_grad_(True)
                known = {id(p) for group in optimizer.param_groups for p in group["params"]}
                new = [p for p in thawed.parameters() if id(p) not in known]
                optimizer.add_param_group({"params": new, "lr": 1e-3 / (1 + number)})
            if step.index == 3 * EVERY:
                model[3].requires_grad_(False)
                model[2].eval()
            if step.index == GROWS_AT:
                elastic.seed(10)
                rebuild(step.index + 1)
                joined = [parameter for name, parameter in model.named_parameters() if "adapter" in name]
                optimizer.add_param_group({"params": joined})
            if run.world_size < options.awaits:
                time.sleep(patience_s := min(2 * patience_s, 4.0))
            else:
                patience_s = 0.05


if __name__ == "__main__":
    main()
