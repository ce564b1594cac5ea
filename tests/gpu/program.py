"""What tests/gpu trains: a network of images in channels_last, with BatchNorm, dropout, AdamW and clipping, on a GPU.

Its modules' settings ask for GPUs while they are imported, as many do. Says how it got there: the fork server it was
forked from, or an interpreter of its own.
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.nn.functional as F
from torch import nn

import elastic

HAS_GPU = torch.cuda.is_available()  # at import: a fork of a process that has asked the driver could not use it


def network() -> nn.Sequential:
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.Flatten(),
        nn.Dropout(0.2), nn.Linear(64 * 64, 10),
    )  # fmt: skip
    return model.to(memory_format=torch.channels_last)  # type: ignore[no-any-return, call-overload]


class Images:
    def __init__(self, length: int) -> None:
        draw = torch.Generator().manual_seed(0)
        self.images = torch.randn(length, 3, 16, 16, generator=draw)
        self.labels = torch.randint(10, (length,), generator=draw)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.images[index] + 0.1 * torch.randn(3, 16, 16), self.labels[index]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--num-workers", type=int, default=0)
    parser.add_argument("--save-every", type=int, default=4)
    parser.add_argument("--unhurried", type=int, default=0, help="goes slowly while fewer workers than this share it")
    options = parser.parse_args()

    elastic.seed(0)
    model = network()
    with elastic.Run(
        options.url,
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
        dataset=Images(options.steps * 48),
        batch_size=48,
        virtual_workers=6,
        steps=options.steps,
        seed=0,
        update=elastic.Update(clip_grad_norm=1.0),
        compute=elastic.Compute(device=options.device),
        data=elastic.Data(num_workers=options.num_workers),
        save_every=options.save_every,
    ) as run:
        on = torch.cuda.current_device() if run.device.type == "cuda" else None
        print(f"worker on {run.device}, current device {on}, GPUs seen at import: {HAS_GPU}", flush=True)
        for step in run:
            for images, labels in step:
                loss = F.cross_entropy(model(images), labels, reduction="sum")
                step.backward(loss, count=len(labels))
                step.add(loss=loss)
            if run.world_size < options.unhurried:
                time.sleep(0.05)


if __name__ == "__main__":
    main()
