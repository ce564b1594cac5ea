"""A sharded model that the workers of a replica do not pass alike: one of them goes its own WAY from step 1 on.

Each layer is a unit, all but the last are of one size. `--member` is the worker that goes apart, in each replica.

    skips, skips-last  leaves a layer out
    swaps              takes its layers in another order
    cuts               lets no gradient through to a layer
    twice              passes the model twice in its body
    more               passes it once more behind its backward pass
    between, all-between  passes it between two steps: that worker alone, or all of them
    none               is as the others
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import TensorDataset

import elastic

WAYS = ("skips", "skips-last", "swaps", "cuts", "twice", "more")
BETWEEN = ("between", "all-between")
WIDTH = 6


class Network(nn.Module):
    """apart: the way that this pass goes; None: as the others."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.last = nn.Linear(WIDTH, WIDTH, bias=False)
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.apart: str | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        order = [1, 0, 2] if self.apart == "swaps" else [0, 2] if self.apart == "skips" else [0, 1, 2]
        for number in order:
            y = self.layers[number](x)
            x = x + (y.detach() if self.apart == "cuts" and number == 1 else y)
        if self.apart != "skips-last":
            x = self.last(x)
        return x * self.scale


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("way", choices=[*WAYS, *BETWEEN, "none"])
    parser.add_argument("--member", type=int, default=0)
    parser.add_argument("--plain", action="store_true", help="the loop over run.batches()")
    parser.add_argument("--fast", action="store_true")
    options = parser.parse_args()
    elastic.seed(0)
    torch.manual_seed(0)
    mesh, model = elastic.device_mesh("cpu"), Network()
    for layer in (*model.layers, model.last):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)
    goes = dist.get_rank() == options.member

    def once_more(way: str, step: int) -> None:
        if step > 0 and (goes or way == "all-between") and options.way == way:
            with torch.no_grad():
                model(torch.zeros(1, WIDTH))

    def loss_of(x: torch.Tensor, step: int) -> torch.Tensor:
        once_more("twice", step)
        model.apart = options.way if goes and step > 0 else None
        loss: torch.Tensor = model(x).square().mean(1).sum()
        return loss

    with elastic.Run(
        options.url,
        model=model,
        optimizer=optimizer,
        dataset=TensorDataset(torch.randn(48, WIDTH)),
        batch_size=12,
        virtual_workers=6,
        steps=4,
        save_every=1,
        compute=elastic.Compute(mode="fast" if options.fast else "exact"),
        checks=elastic.Checks(cross_check=None),
    ) as run:
        if options.plain:
            for (x,) in run.batches():
                optimizer.zero_grad()
                index = run.step_index
                (loss_of(x, index) / len(x)).backward()  # type: ignore[no-untyped-call]
                once_more("more", index)
                optimizer.step()
        else:
            for step in run:
                for (x,) in step:
                    step.backward(loss_of(x, step.index), count=len(x))
                    once_more("more", step.index)
                once_more("between", step.index)
                once_more("all-between", step.index)
    print("took part", flush=True)


if __name__ == "__main__":
    main()
