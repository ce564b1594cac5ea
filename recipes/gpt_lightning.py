"""The GPT of gpt.py under Lightning's Trainer: its loop, schedule, clipping and log, on any number of workers.

    python recipes/gpt_data.py                    # the source of Python's standard library, as token files
    elastic run --standalone --nproc-per-node=2 recipes/gpt_lightning.py runs/gpt-lightning

What a script without elastic lacks are the two lines marked so.
"""

import logging
import math
from typing import Any

import lightning as L
import torch
import torch.nn.functional as F
from gpt import BATCH, CONTEXT, GPT, PEAK_LR, SHARES, arguments, decay_groups, sample, warm_up_and_cosine  # type: ignore[import-not-found]
from torch import Tensor
from torch.utils.data import DataLoader, Subset

import elastic
from elastic.integrations.lightning import ElasticStrategy  # the strategy of the Trainer below

logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)


class LanguageModel(L.LightningModule):  # type: ignore[misc]  # it has no types
    def __init__(self, layers: int, width: int, steps: int) -> None:
        super().__init__()
        self.steps = steps
        self.gpt = GPT(layers, width)

    def loss_of(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        inputs, targets = batch
        return F.cross_entropy(self.gpt(inputs).flatten(0, 1), targets.flatten())

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        loss = self.loss_of(batch)
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.log("validation_loss", self.loss_of(batch))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(decay_groups(self), lr=PEAK_LR, betas=(0.9, 0.95))
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: warm_up_and_cosine(step, self.steps))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def main() -> None:
    options = arguments(__doc__, "runs/gpt-lightning")
    L.seed_everything(options.seed, verbose=False)
    model = LanguageModel(options.layers, options.width, options.steps)
    held_out = elastic.TokenDataset(options.data / "val.npy", CONTEXT)
    validation_set = Subset(held_out, range(0, len(held_out), max(1, len(held_out) // options.validate)))
    trainer = L.Trainer(
        max_steps=options.steps,
        max_epochs=-1,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,  # the run is saved by itself, and goes on from there
        enable_progress_bar=False,
        enable_model_summary=False,
        strategy=ElasticStrategy(options.run, virtual_workers=SHARES, save_every=options.save_every),  # where it lives
    )
    training_set = elastic.TokenDataset(options.data / "train.npy", CONTEXT)
    trainer.fit(model, DataLoader(training_set, batch_size=BATCH, shuffle=True))
    (found,) = trainer.validate(model, DataLoader(validation_set, batch_size=BATCH), verbose=False)
    if trainer.is_global_zero:
        print(f"validation loss {found['validation_loss']:.3f} nats a byte; bytes alone have {math.log(256):.3f}")
        print(sample(model.gpt, "def ", options.sample))


if __name__ == "__main__":
    main()
