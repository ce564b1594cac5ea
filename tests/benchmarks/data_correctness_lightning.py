"""What data_correctness.py runs under torchrun: Lightning's Trainer, which resumes from its last checkpoint.

    torchrun --nproc-per-node=3 -m tests.benchmarks.data_correctness_lightning FOLDER LOADER BATCH STEPS

Each rank notes in FOLDER what each step reads, and ends at once after so many (0: at the end).
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import elastic

EXAMPLES, EPOCHS, PER_RANK, BATCH, SAVE_EVERY = 1003, 2, 16, 48, 4
PHASES = ((3, 10), (2, 9), (4, None))
"""Ranks, and after how many steps they are killed."""


class Rows(Dataset[int]):
    """Example i is i."""

    def __len__(self) -> int:
        return EXAMPLES

    def __getitem__(self, index: int) -> int:
        return index


def main(folder: Path, loader: str, batch: int, steps: int) -> None:
    pytorch: Any = import_module("lightning.pytorch")
    data = (
        elastic.ElasticLoader(Rows(), BATCH)
        if loader == "ElasticLoader"
        else DataLoader(Rows(), batch_size=batch, shuffle=True)
    )

    class Module(pytorch.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(1, 1)
            self.steps = 0

        def training_step(self, indices: torch.Tensor, _: int) -> torch.Tensor:
            weight = getattr(data, "weight", 1.0)
            self.steps += 1
            if steps and self.steps > steps:
                os._exit(1)
            with (folder / f"rank-{self.global_rank}").open("a") as notes:
                read = indices.tolist() if weight else []
                notes.write(f"{json.dumps([self.global_step, self.current_epoch, read])}\n")
            loss: torch.Tensor = self.linear(indices[:, None] / EXAMPLES).square().mean() * weight
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    saves = pytorch.callbacks.ModelCheckpoint(folder, save_last=True, every_n_train_steps=SAVE_EVERY)
    trainer = pytorch.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        devices=int(os.environ["WORLD_SIZE"]),
        strategy="ddp",
        callbacks=[saves],
        logger=False,
        enable_progress_bar=False,
    )
    last = folder / "last.ckpt"
    trainer.fit(Module(), data, ckpt_path=last if last.exists() else None)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
