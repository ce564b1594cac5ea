"""What tests/benchmarks/recovery.py trains: a model of a given size on random data, in steps of some tens of ms.

SIGUSR1 makes a worker raise in the loop's body, at the next share.
"""

from __future__ import annotations

import argparse
import signal
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

import elastic

FEATURES = 256


class Points(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Not a TensorDataset, so that loader processes have something to read."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(FEATURES), torch.tensor(index % 10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--width", type=int, default=640, help="640: about 1 M parameters; 4,900: about 50 M")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--num-workers", type=int, default=0)
    parser.add_argument("--away", type=float, default=0.0, help="seconds asleep in each share, as if on an accelerator")
    parser.add_argument("--sharded", action="store_true", help="by fully_shard, over this worker's replica")
    parser.add_argument("--batches", action="store_true", help="a loop over batches, and none over steps")
    parser.add_argument("--device", default="cpu", help="workers beyond the number of GPUs share them")
    options = parser.parse_args()
    told: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, _frame: told.append(number))

    elastic.seed(0)
    width = options.width
    model = nn.Sequential(
        nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, 10),
    )  # fmt: skip
    if options.sharded:
        from torch.distributed.fsdp import fully_shard

        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=elastic.device_mesh())
        fully_shard(model, mesh=elastic.device_mesh())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with elastic.Run(
        options.url,
        model=model,
        optimizer=optimizer,
        dataset=Points(),
        batch_size=options.batch_size,
        virtual_workers=8,
        epochs=1_000,
        save_every="1h",
        data=elastic.Data(num_workers=options.num_workers),
        compute=elastic.Compute(device=options.device),
    ) as run:
        for points, labels in run.batches() if options.batches else ():
            if told:
                raise RuntimeError(f"raised at {time.time()!r}")
            time.sleep(options.away)
            optimizer.zero_grad()
            torch.autograd.backward(F.cross_entropy(model(points), labels))
            optimizer.step()
        for step in run if not options.batches else ():
            for points, labels in step:
                if told:
                    raise RuntimeError(f"raised at {time.time()!r}")  # recovery_events.py reads it there
                time.sleep(options.away)
                loss = F.cross_entropy(model(points), labels, reduction="sum")
                step.backward(loss, count=len(labels))


if __name__ == "__main__":
    main()
