"""A model cut by fully_shard, saved and loaded by torch.distributed.checkpoint, each time into a folder of its own."""
# mypy: ignore-errors

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

STEPS, SAVE_EVERY = 40, 5


def main(folder: str, step_s: float = 0.0) -> None:
    mesh = init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    begin = 0
    saved = sorted(Path(folder).glob("step-*/.metadata"))
    if saved:
        weights, moments = get_state_dict(model, optimizer)
        state = {"model": weights, "optimizer": moments, "step": 0}
        dcp.load(state, checkpoint_id=saved[-1].parent)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        begin = state["step"]
    if dist.get_rank() == 0:
        print(f"world size {dist.get_world_size()}, from step {begin}", flush=True)
    for step in range(begin, STEPS):
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(step * 1000 + dist.get_rank()))
        loss = (model(x) - x.sum(dim=1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(step_s)
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if (step + 1) % SAVE_EVERY == 0:
            weights, moments = get_state_dict(model, optimizer)
            state = {"model": weights, "optimizer": moments, "step": step + 1}
            dcp.save(state, checkpoint_id=Path(folder) / f"step-{step + 1:04}")
    if dist.get_rank() == 0:
        print(f"done: loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], *map(float, sys.argv[2:]))
