"""A plain DDP script with checkpoints: three lines of it are about them.

    torchrun --nproc-per-node=2 -m tests.kit.programs.ddp URL STEPS

For the test it prints what each rank holds after loading, and who it is.
"""

from __future__ import annotations

import json
import os
import sys

import torch
import torch.distributed as dist

from elastic_checkpoint import Checkpointer, digest

EXAMPLES = 12  # in a batch, of all ranks together


def main(url: str, steps: int) -> None:
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    net = torch.nn.Sequential(torch.nn.Linear(20, 50), torch.nn.BatchNorm1d(50), torch.nn.Linear(50, 2))
    model = torch.nn.parallel.DistributedDataParallel(net, broadcast_buffers=True)
    optimizer = torch.optim.AdamW(model.parameters())
    state = {"model": net, "optimizer": optimizer, "step": 0}

    checkpoints = Checkpointer(url, group="auto")
    resumed = checkpoints.load(state, default=0) or None
    found = {"rank": rank, "pid": os.getpid(), "resumed": resumed, "digest": digest(state)}
    os.write(1, f"{json.dumps(found)}\n".encode())  # in one piece: the ranks share a pipe

    while (step := int(str(state["step"])) + 1) <= steps:
        x = torch.randn(EXAMPLES, 20, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        model(x[rank::ranks]).square().mean().backward()
        optimizer.step()
        state["step"] = step
        checkpoints.save(step, state, blocking=False)

    checkpoints.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
