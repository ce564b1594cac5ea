"""The GPT of gpt.py, sharded by torch's `fully_shard` over replicas of several workers.

    python recipes/gpt_data.py                    # the source of Python's standard library, as token files
    elastic run --standalone --nproc-per-node=4 --replica-size=2 recipes/gpt_fsdp2.py runs/gpt-fsdp2

Each two workers hold one copy of the model together. The bits are those of `python recipes/gpt_fsdp2.py`, in one
process, at any number and size of replicas.
"""

from typing import Any

import torch
import torch.nn.functional as F
from gpt import BATCH, CONTEXT, GPT, PEAK_LR, SHARES, arguments, decay_groups, warm_up_and_cosine  # type: ignore[import-not-found]  # beside this script
from torch.distributed.fsdp import fully_shard
from torch.utils.data import Subset

import elastic


def main() -> None:
    options = arguments(__doc__, "runs/gpt-fsdp2")
    elastic.seed(options.seed)
    held_out = elastic.TokenDataset(options.data / "val.npy", CONTEXT)
    validation_set = Subset(held_out, range(0, len(held_out), max(1, len(held_out) // options.validate)))
    mesh = elastic.device_mesh()  # over the workers of this one's replica
    model = GPT(options.layers, options.width).to(mesh.device_type)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(decay_groups(model), lr=PEAK_LR, betas=(0.9, 0.95), foreach=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: warm_up_and_cosine(step, options.steps))

    with elastic.Run(
        options.run,  # a folder or s3://bucket/…: the same command resumes what lies there
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        dataset=elastic.TokenDataset(options.data / "train.npy", CONTEXT),
        batch_size=BATCH,
        virtual_workers=SHARES,
        steps=options.steps,
        seed=options.seed,
        save_every=options.save_every,
    ) as run:
        for inputs, targets in run.batches():
            optimizer.zero_grad()
            loss: Any = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
            run.add(loss=loss.detach() * len(inputs))
            loss.backward()
            optimizer.step()
            scheduler.step()
            if run.stepped and run.is_coordinator and run.step_index % 20 == 0:
                print(f"step {run.step_index:4}  loss {run.sums['loss'] / run.count:.3f}  {run.world_size} worker(s)")

        sums = run.evaluate(
            validation_set, lambda x, y: {"loss": F.cross_entropy(model(x).flatten(0, 1), y.flatten()) * len(x)}
        )
        if run.is_coordinator:
            print(f"validation loss {sums['loss'] / len(validation_set):.3f} nats a byte")


if __name__ == "__main__":
    main()
