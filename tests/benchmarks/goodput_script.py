"""What tests/benchmarks/goodput.py trains under `elastic run` and under plain torchrun: one model, one batch, cut into
the same shares, each asleep for a while as if on an accelerator. Whoever is rank 0 notes each applied step.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

FEATURES, SHARES, SHARE_EXAMPLES = 64, 12, 16
_PLAIN_WITHIN = timedelta(seconds=30)


class Points(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.full((FEATURES,), (index % 97) / 97), torch.tensor(index % 10)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 256), nn.ReLU(), nn.Linear(256, 10))


class Notes:
    """A line for each applied step: when, how many are applied, by how many workers."""

    def __init__(self, folder: Path) -> None:
        self._file = os.open(folder / "steps", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def applied(self, steps: int, world_size: int) -> None:
        os.write(self._file, json.dumps([time.time(), steps, world_size]).encode() + b"\n")


def plain(folder: Path, away_s: float, save_s: float) -> None:
    """A loop as people write it for torchrun: all start again from the newest torch.save."""
    dist.init_process_group("gloo", timeout=_PLAIN_WITHIN)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    newest, steps = folder / "newest.pt", 0
    if newest.exists():
        state = torch.load(newest)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        steps = state["steps"]
    notes, points, saved_s = Notes(folder), Points(), time.monotonic()
    share_of = range(rank * SHARES // world_size, (rank + 1) * SHARES // world_size)
    while True:
        optimizer.zero_grad()
        for share in share_of:
            time.sleep(away_s)
            first = (steps * SHARES + share) * SHARE_EXAMPLES
            examples = [points[(first + at) % len(points)] for at in range(SHARE_EXAMPLES)]
            x, y = torch.stack([x for x, _ in examples]), torch.stack([y for _, y in examples])
            loss = F.cross_entropy(model(x), y, reduction="sum") / (SHARES * SHARE_EXAMPLES)
            torch.autograd.backward(loss)
        for parameter in model.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
        optimizer.step()
        steps += 1
        if rank == 0:
            notes.applied(steps, world_size)
            if time.monotonic() - saved_s >= save_s:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "steps": steps}
                torch.save(state, folder / "next.pt")
                (folder / "next.pt").replace(newest)
                saved_s = time.monotonic()


def ours(folder: Path, away_s: float, save_s: float) -> None:
    import elastic

    elastic.seed(0)
    model = network()
    notes = Notes(folder)
    with elastic.Run(
        folder / "run",
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
        dataset=Points(),
        batch_size=SHARES * SHARE_EXAMPLES,
        virtual_workers=SHARES,
        epochs=1000,
        save_every=f"{save_s}s",
    ) as run:
        for step in run:
            for x, y in step:
                time.sleep(away_s)
                step.backward(F.cross_entropy(model(x), y, reduction="sum"), count=len(y))
            if run.is_coordinator:
                notes.applied(step.index + 1, run.world_size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("how", choices=["plain", "ours"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--away", type=float, required=True)
    parser.add_argument("--save-every", type=float, required=True)
    options = parser.parse_args()
    (plain if options.how == "plain" else ours)(options.folder, options.away, options.save_every)


if __name__ == "__main__":
    main()
