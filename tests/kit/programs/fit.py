"""A script of Lightning's Trainer, as its documentation has it; a run's are the lines marked so.

BatchNorm, dropout, clipping, early stopping, the best model kept, callbacks with a state of their own. Each worker
prints one line: the weights' digest, and that of what the Trainer knows at the end.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import signal
import time
import warnings
from typing import Any

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import EarlyStopping, EMAWeightAveraging, ModelCheckpoint, TQDMProgressBar
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins.io import TorchCheckpointIO
from losing import lose  # type: ignore[import-not-found]  # beside this script
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torn import Torn, torn  # type: ignore[import-not-found]  # likewise

import elastic
import elastic_checkpoint
from elastic.integrations.lightning import ElasticStrategy  # a run's

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore")


class Classifier(L.LightningModule):  # type: ignore[misc]
    def __init__(self, schedule: str) -> None:
        super().__init__()
        self.schedule = schedule
        self.net = nn.Sequential(nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 5))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        scores = self.net(x)
        loss = F.cross_entropy(scores, y)
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        self.log("train_accuracy", (scores.argmax(dim=1) == y).float().mean(), on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        self.log("val_loss", F.cross_entropy(self.net(x), y))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3)
        if self.schedule == "plateau":
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "val_loss"}}
        if self.schedule == "cycle":
            steps = self.trainer.estimated_stepping_batches
            cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=steps)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": cycle, "interval": "step"}}
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 24)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": cosine, "interval": self.schedule}}


class Unhurried(L.Callback):  # type: ignore[misc]
    """A run of few steps is to see its lost workers replaced."""

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        if trainer.strategy.run.world_size < self.workers:
            time.sleep(0.1)


class History(L.Callback):  # type: ignore[misc]
    """What was logged, step by step, and how many validations there were."""

    def __init__(self) -> None:
        self.logged: list[str] = []
        self.validations = 0

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        self.logged.append(json.dumps({name: float(value) for name, value in trainer.logged_metrics.items()}))

    def on_validation_end(self, trainer: L.Trainer, *_: Any) -> None:
        self.validations += not trainer.sanity_checking

    def state_dict(self) -> dict[str, Any]:
        return {"logged": "\n".join(self.logged), "validations": self.validations}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.logged, self.validations = state["logged"].splitlines(), state["validations"]


class Decaying(L.Callback):  # type: ignore[misc]
    """The rest of the run depends on it."""

    def __init__(self) -> None:
        self.steps = 0
        self.decays: list[tuple[int, float]] = []

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        self.steps += 1
        self.decays.append((self.steps, 0.01 * self.steps))
        for group in trainer.optimizers[0].param_groups:
            group["weight_decay"] = self.decays[-1][1]

    def state_dict(self) -> dict[str, Any]:
        return {"decays": [decay for _, decay in self.decays]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.decays = [*enumerate(state["decays"], 1)]
        self.steps = len(self.decays)


class Dying(TorchCheckpointIO):  # type: ignore[misc]
    """The worker that writes the best model of a step is killed in it, once."""

    def __init__(self, url: str, step: int | None) -> None:
        super().__init__()
        self.url, self.step = url, step

    def save_checkpoint(self, saved: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        if saved["global_step"] == self.step and not os.path.exists(died := f"{self.url}-died"):
            open(died, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        super().save_checkpoint(saved, path, storage_options)


class Losing(L.Callback):  # type: ignore[misc]
    """Once, in the middle of a run."""

    def __init__(self, step: int | None) -> None:
        self.step = step

    def on_train_start(self, trainer: L.Trainer, *_: Any) -> None:
        if self.step is not None:
            lose(self.step, trainer.strategy.run)


def points(count: int, seed: int) -> TensorDataset:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 20, generator=draw)
    return TensorDataset(x, (x @ torch.randn(20, 5, generator=torch.Generator().manual_seed(9))).argmax(dim=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--steps", type=int, default=24, help="of three epochs")
    parser.add_argument("--schedule", choices=("step", "epoch", "plateau", "cycle"), default="step")
    parser.add_argument("--check", type=float, default=1.0, help="val_check_interval")
    parser.add_argument("--patience", type=int, help="the first validation stays the best one")
    parser.add_argument("--average", action="store_true", help="weights are averaged as well")
    parser.add_argument("--bars", action="store_true", help="progress is drawn")
    parser.add_argument("--die", type=int, help="the step at whose checkpoint the one who writes it is killed")
    parser.add_argument("--torn", action="store_true", help="some examples cannot be read, and are left out")
    parser.add_argument("--num-workers", type=int, default=0)
    parser.add_argument("--unhurried", type=int, default=0, help="goes slowly while fewer workers than this share it")
    parser.add_argument("--lose", type=int, help="the step whose last message rank 1 loses")
    options = parser.parse_args()

    elastic.seed(0)  # a run's
    L.seed_everything(0, verbose=False)
    best = ModelCheckpoint(options.url + "-best", monitor="val_loss", filename="best")
    stopping = EarlyStopping("val_loss", patience=options.patience or 20, min_delta=10.0 if options.patience else 0.0)
    history, decaying = History(), Decaying()
    callbacks = [stopping, best, history, decaying, Unhurried(options.unhurried), Losing(options.lose)]
    bad_examples: dict[str, Any] = {"data": elastic.Data(on_bad_example="skip")} if options.torn else {}
    shares = 4 if options.torn else 8  # BatchNorm cannot train on what is left of three examples, where that is one
    trainer = L.Trainer(
        max_epochs=3,
        gradient_clip_val=1.0,
        val_check_interval=options.check,
        logger=CSVLogger(options.url + "-logs"),
        callbacks=[
            *callbacks,
            *([EMAWeightAveraging(decay=0.9)] if options.average else []),
            *([TQDMProgressBar()] if options.bars else []),
        ],
        plugins=[Dying(options.url, options.die)],
        enable_progress_bar=options.bars,
        enable_model_summary=False,
        log_every_n_steps=5,
        strategy=ElasticStrategy(options.url, virtual_workers=shares, save_every=3, **bad_examples),  # a run's
    )
    if trainer.is_global_zero:
        print("it begins")
    model = Classifier(options.schedule)
    dataset: Any = points(options.steps // 3 * 24 - 7, 1)
    if options.torn:
        raising = torn(len(dataset), batch_size=24, shares=shares, seed=0, whole=((3, 2), (5, 3)), every=37)
        dataset = Torn(dataset, raising)
    train = DataLoader(dataset, batch_size=24, shuffle=True, num_workers=options.num_workers)
    trainer.fit(model, train, DataLoader(points(100, 2), batch_size=32))

    told = {
        "global_step": trainer.global_step,
        "epoch": trainer.current_epoch,
        "stepped": trainer.fit_loop.epoch_loop._batches_that_stepped,
        "metrics": {name: float(value) for name, value in trainer.callback_metrics.items()},
        "stopping": (stopping.wait_count, stopping.stopped_epoch, float(stopping.best_score)),
        "history": history.state_dict(),
        "decays": decaying.decays,
        "best": (os.path.basename(best.best_model_path), float(best.best_model_score)),
        "rate": trainer.optimizers[0].param_groups[0]["lr"],
    }
    if trainer.is_global_zero:
        print(f"told: { {name: value for name, value in told.items() if name not in ('history', 'decays')} }")
        saved = torch.load(best.best_model_path, weights_only=False)
        print(f"the best model, of step {saved['global_step']}: {elastic_checkpoint.digest(saved['state_dict'])}")
    known = hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]
    line = f"took part: {elastic_checkpoint.digest(model)} knows {known}\n"
    os.write(1, line.encode())  # at once: print writes piece by piece


if __name__ == "__main__":
    main()
