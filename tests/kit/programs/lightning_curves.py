"""A script of Lightning's Trainer with loggers of its own: each step, each epoch, and a test behind the run."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import LearningRateMonitor
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import elastic
from elastic.integrations.lightning import ElasticStrategy

BATCH, PAUSE_S = 16, 0.02


def points(batches: int, seed: int) -> TensorDataset:
    x = torch.randn(batches * BATCH, 16, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, x[:, :4].argmax(1))


class Classifier(L.LightningModule):  # type: ignore[misc]
    def __init__(self, width: int, steps: int) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, 4))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss

    def on_train_batch_end(self, *_: Any) -> None:
        time.sleep(PAUSE_S)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", F.cross_entropy(self.net(batch[0]), batch[1]))

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.log("test_loss", F.cross_entropy(self.net(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.hparams.steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": cosine, "interval": "step"}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--curves", type=Path, required=True)
    options = parser.parse_args()
    elastic.seed(0)
    trainer = L.Trainer(
        max_epochs=3,
        logger=[TensorBoardLogger(options.curves), CSVLogger(options.curves, prefix="of")],
        callbacks=[LearningRateMonitor(logging_interval="step")],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
        strategy=ElasticStrategy(options.url, virtual_workers=4, save_every=7),
    )
    held_out = DataLoader(points(2, 2), batch_size=BATCH)
    trainer.fit(
        model := Classifier(32, options.steps),
        DataLoader(points(options.steps // 3, 1), batch_size=BATCH, shuffle=True),
        held_out,
    )
    trainer.test(model, held_out, verbose=False)


if __name__ == "__main__":
    main()
