"""A network of some MB, trained in few steps; it says how many bytes left its host in each.

elastic run … -m tests.kit.programs.wide URL [--flat] [--mode fast]
torchrun … -m tests.kit.programs.wide --ddp
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import sys
import time
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import elastic
from elastic.group import hierarchical_sum

BATCH = 64
WIDTH = 768
WARM_STEPS = 3


def sent_bytes() -> int:
    """That have left this host; 0 where it has no network."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        interface, _, counts = line.partition(":")
        if interface.strip() == "eth0":
            return int(counts.split()[8])
    return 0


class Meter:
    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._before = 0
        self._times: list[float] = []

    def applied(self, step: int, model: nn.Module) -> None:
        self._times.append(time.perf_counter())
        if step == WARM_STEPS - 1:
            self._before = sent_bytes()
        if step < self._steps - 1:
            return
        per_step = (sent_bytes() - self._before) / (self._steps - WARM_STEPS)
        weights = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
        said = {
            "bytes": per_step,
            "seconds": statistics.median(end - begin for begin, end in pairwise(self._times[WARM_STEPS - 1 :])),
            "weights": len(weights),
            "digest": hashlib.sha256(weights).hexdigest(),
        }
        os.write(1, f"\n{json.dumps(said)}\n".encode())  # in one piece: the ranks share a pipe


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", nargs="?")
    parser.add_argument("--steps", type=int, default=13)
    parser.add_argument("--mode", default="exact")
    parser.add_argument("--flat", action="store_true", help="all sums go as on one host")
    parser.add_argument("--ddp", action="store_true", help="in a plain loop")
    options = parser.parse_args()
    if options.flat:
        hierarchical_sum.WORTH_BYTES = sys.maxsize

    elastic.seed(0)
    model = nn.Sequential(
        nn.Linear(256, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(),
        nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10),
    )  # fmt: skip
    draw = torch.Generator().manual_seed(1)
    points = torch.randn(BATCH * options.steps, 256, generator=draw)
    data = TensorDataset(points, torch.arange(len(points)) % 10)
    (train_with_ddp if options.ddp else train)(model, data, options)


def train(model: nn.Module, data: TensorDataset, options: argparse.Namespace) -> None:
    meter = Meter(options.steps)
    with elastic.Run(
        options.url,
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
        dataset=data,
        batch_size=BATCH,
        virtual_workers=8,
        steps=options.steps,
        compute=elastic.Compute(mode=options.mode, bucket_bytes=3 << 20),
        save_every="1h",
    ) as run:
        for step in run:
            for points, labels in step:
                loss = F.cross_entropy(model(points), labels, reduction="sum")
                step.backward(loss, count=len(labels))
            meter.applied(step.index, model)


def train_with_ddp(model: nn.Module, data: TensorDataset, options: argparse.Namespace) -> None:
    meter = Meter(options.steps)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    replica = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    points, labels = data.tensors
    for step in range(options.steps):
        mine = slice(step * BATCH + rank, (step + 1) * BATCH, ranks)
        optimizer.zero_grad()
        torch.autograd.backward(F.cross_entropy(replica(points[mine]), labels[mine]))
        optimizer.step()
        meter.applied(step, model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
