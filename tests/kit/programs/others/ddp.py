"""DistributedDataParallel over a DistributedSampler; rank 0 saves every few steps, and a resume skips what was read."""
# mypy: ignore-errors

import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS, BATCH, SAVE_EVERY = 2, 8, 5


def main(folder: str, step_s: float = 0.0) -> None:
    dist.init_process_group("gloo")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.manual_seed(0)
    points = torch.randn(360, 8)
    dataset = TensorDataset(points, points[:, :3].argmax(dim=1))
    model = DistributedDataParallel(torch.nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = step = 0
    loss = torch.zeros(())
    path = os.path.join(folder, "checkpoint.pt")
    if os.path.exists(path):
        saved = torch.load(path)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first, step = saved["epoch"], saved["step"]
    if rank == 0:
        print(f"world size {world_size}, from epoch {first}, batch {step}", flush=True)
    sampler = DistributedSampler(dataset, seed=0)
    loader = DataLoader(dataset, batch_size=BATCH, sampler=sampler)
    for epoch in range(first, EPOCHS):
        sampler.set_epoch(epoch)
        for batch, (x, y) in enumerate(loader):
            if batch < step:
                continue
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            time.sleep(step_s)
            if rank == 0:
                print(f"epoch {epoch} batch {batch} loss {loss.item():.4f}", flush=True)
                if batch % SAVE_EVERY == 0:
                    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                    torch.save({**state, "epoch": epoch, "step": batch + 1}, path + ".new")
                    os.replace(path + ".new", path)
        step = 0
    if rank == 0:
        print(f"done: loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], *map(float, sys.argv[2:]))
