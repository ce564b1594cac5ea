"""A loop of one's own under plain DDP, whose data goes on at any number of ranks.

    torchrun --nproc-per-node=3 -m tests.kit.programs.own_loop FOLDER NAME STOP

For the test each rank notes in FOLDER what its steps read, and after step STOP (0: at no step) all stand still, until
they are killed. At the end rank 0 notes the weights.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.data import TensorDataset

import elastic
from elastic_checkpoint import Checkpointer

EXAMPLES, BATCH, EPOCHS, SAVE_EVERY = 201, 22, 2, 3
"""Three examples are left for an epoch's last batch, and no number of ranks above two divides a batch."""


Wrap = Callable[[nn.Module], nn.Module]


def train(folder: Path, name: str, stop: int, wrap: Wrap, stopped: Callable[[], object], num_workers: int = 1) -> None:
    """wrap: makes of a network what averages its ranks' gradients   stopped: what comes after step `stop`"""
    rank = dist.get_rank()
    torch.manual_seed(0)
    points = torch.randn(EXAMPLES, 8)
    dataset = TensorDataset(points, points[:, :3].argmax(dim=1), torch.arange(EXAMPLES))
    net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 3))
    model = wrap(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    loader = elastic.ElasticLoader(dataset, BATCH, seed=3, num_workers=num_workers)
    elastic.audit(loader).check()

    checkpoints = Checkpointer(str(folder / "checkpoints"), group="auto")
    state = {"model": net, "optimizer": optimizer, "loader": loader}
    checkpoints.load(state, default=0)
    with (folder / f"{name}-{rank}").open("w", buffering=1) as notes:
        for _ in range(loader.epoch, EPOCHS):
            for x, y, indices in loader:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y) * loader.weight
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                notes.write(f"{json.dumps([loader.step, indices.tolist() if loader.weight else []])}\n")
                if loader.step == stop:
                    stopped()
                if loader.step % SAVE_EVERY == 0:
                    checkpoints.save(loader.step, state)
    checkpoints.close()
    weights = {key: one.full_tensor() if isinstance(one, DTensor) else one for key, one in net.state_dict().items()}
    if rank == 0:
        torch.save(weights, folder / f"{name}.pt")


def main(folder: Path, name: str, stop: int) -> None:
    dist.init_process_group("gloo")
    train(folder, name, stop, nn.parallel.DistributedDataParallel, threading.Event().wait)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
