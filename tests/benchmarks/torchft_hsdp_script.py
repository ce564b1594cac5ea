"""One worker of the comparison with torchft: a model that its replica holds together, trained under torchft or a Run.

    torchrun --nproc-per-node=2 torchft_hsdp_script.py OUT --torchft REPLICA:OF     one torchrun for each replica
    elastic run --nproc-per-node=4 --replica-size=2 torchft_hsdp_script.py OUT

Under torchft as its README has it: fully_shard within the replica, `Manager.allreduce` in its all-reduce hook, its
optimizer's wrapper. Replica r of N takes the r-th of N parts of each step's batch. Each worker writes a line for each
step that is over: when, which, whether it was applied, how often it was given up, and of how many replicas it is.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import IO, Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.utils.data import Dataset

import elastic
import elastic_checkpoint

FEATURES, CLASSES, BATCH, SHARES = 256, 10, 64, 8
PAUSE_S = 0.0025  # for each example, so that a step is as long as one of a larger model


class Points(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """The same for whoever reads them."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(FEATURES, generator=torch.Generator().manual_seed(index)), torch.tensor(index % CLASSES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--width", type=int, required=True)
    parser.add_argument("--torchft", help="REPLICA:OF, by torchft; else by a Run")
    options = parser.parse_args()
    torch.set_num_threads(1)
    elastic.seed(0)
    torch.manual_seed(0)
    mesh, width = elastic.device_mesh("cpu"), options.width
    model = nn.Sequential(
        nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, CLASSES)
    )
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    with (options.out / f"{options.torchft or 'run'}-{os.getpid()}.jsonl").open("w", buffering=1) as lines:
        if options.torchft:
            replica, count = map(int, options.torchft.split(":"))
            by_torchft(model, optimizer, options.steps, replica, count, lines)
        else:
            by_run(model, optimizer, options, lines)
        whole = {name: one.full_tensor() for name, one in model.state_dict().items()}
        print(json.dumps({"digest": elastic_checkpoint.digest(whole)}), file=lines)


def by_run(model: nn.Module, optimizer: torch.optim.Optimizer, options: argparse.Namespace, lines: IO[str]) -> None:
    with elastic.Run(
        f"{options.out}/run",
        model=model,
        optimizer=optimizer,
        dataset=Points(),
        batch_size=BATCH,
        virtual_workers=SHARES,
        steps=options.steps,
        epochs=1,
        save_every="1h",
        data=elastic.Data(order=elastic.orders.Sequential()),
    ) as run:
        for step in run:
            for x, y in step:
                time.sleep(PAUSE_S * len(y))
                step.backward(F.cross_entropy(model(x), y, reduction="sum"), count=len(y))
            said(lines, step.index, applied=True, given_up=step.attempt, replicas=run.replica.count)


def by_torchft(
    model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, replica: int, count: int, lines: IO[str]
) -> None:
    from torchft import Manager, Optimizer, ProcessGroupGloo

    held: list[Any] = [*model.parameters()]  # its state is asked for in the midst of a pass, which finds others there

    def state() -> dict[str, Any]:
        """What a replica that comes back is given: the parts at this place."""
        parts = [parameter.to_local() for parameter in held]
        kept = [optimizer.state.get(parameter, {}) for parameter in held]
        moments = [{name: one.to_local() if hasattr(one, "to_local") else one for name, one in s.items()} for s in kept]
        return {"parts": parts, "moments": moments}

    def load(given: dict[str, Any]) -> None:
        for parameter, part, moments in zip(held, given["parts"], given["moments"], strict=True):
            with torch.no_grad():
                parameter.to_local().copy_(part)
            for name, one in moments.items():
                if name == "step":
                    optimizer.state[parameter]["step"] = one.clone()
                else:
                    kept = optimizer.state[parameter].setdefault(name, torch.zeros_like(parameter))
                    kept.to_local().copy_(one)

    known_as = f"replica{replica}"
    manager = Manager(
        pg=ProcessGroupGloo(), load_state_dict=load, state_dict=state, min_replica_size=1, replica_id=known_as
    )
    managed = Optimizer(manager, optimizer)

    def between_replicas(output: torch.Tensor) -> None:
        manager.allreduce(output).wait()

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_all_reduce_hook(between_replicas)
    data, part, place = Points(), BATCH // count, torch.distributed.get_rank()
    mine = part // torch.distributed.get_world_size()
    while manager.current_step() < steps:
        managed.zero_grad()  # asks who is there
        index = manager.current_step()
        first = index * BATCH + replica * part + place * mine
        pairs = [data[number] for number in range(first, first + mine)]
        x, y = torch.stack([x for x, _ in pairs]), torch.stack([y for _, y in pairs])
        time.sleep(PAUSE_S * mine)
        torch.autograd.backward(F.cross_entropy(model(x), y))
        managed.step()
        applied = manager.current_step() > index
        said(lines, index, applied=applied, given_up=int(not applied), replicas=manager.num_participants())
    manager.shutdown(wait=False)


def said(lines: IO[str], step: int, **found: object) -> None:
    print(json.dumps({"t": time.time(), "step": step, **found}), file=lines)


if __name__ == "__main__":
    main()
