"""A LightningModule under Lightning's own DDP, with its own checkpoints: `save_last`, and `ckpt_path` to go on."""
# mypy: ignore-errors

import os
import sys
import time

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class Classifier(pl.LightningModule):
    def __init__(self, step_s: float) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 3)
        self.step_s = step_s

    def training_step(self, batch, _):
        x, y = batch
        loss = F.cross_entropy(self.layer(x), y)
        self.log("loss", loss)
        time.sleep(self.step_s)
        if self.global_rank == 0:
            print(f"step {self.global_step} loss {loss.item():.4f}", flush=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def main(folder: str, step_s: float = 0.0) -> None:
    pl.seed_everything(0)
    points = torch.randn(360, 8)
    loader = DataLoader(TensorDataset(points, points[:, :3].argmax(dim=1)), batch_size=8, shuffle=True)
    saves = pl.callbacks.ModelCheckpoint(folder, save_last=True, every_n_train_steps=5)
    trainer = pl.Trainer(
        max_epochs=2,
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
        strategy="ddp",
        callbacks=[saves],
        logger=False,
        enable_progress_bar=False,
    )
    last = os.path.join(folder, "last.ckpt")
    if trainer.global_rank == 0:
        print(f"world size {trainer.world_size}, {'from last.ckpt' if os.path.exists(last) else 'anew'}", flush=True)
    trainer.fit(Classifier(step_s), loader, ckpt_path=last if os.path.exists(last) else None)
    if trainer.global_rank == 0:
        print(f"done: loss {trainer.callback_metrics['loss']:.4f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], *map(float, sys.argv[2:]))
