"""The Trainers of Lightning and transformers as they are, given an ElasticLoader.

    torchrun --nproc-per-node=3 -m tests.kit.programs.stock_trainer lightning|transformers FOLDER NAME STOP

For the test each rank notes in FOLDER what its steps read, and ends at once when it comes to step STOP (0: to none).
At the end rank 0 notes the weights.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import elastic

EXAMPLES, BATCH, EPOCHS, SAVE_EVERY = 93, 20, 2, 3


class Points:
    def __len__(self) -> int:
        return EXAMPLES

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": torch.arange(3) * index / EXAMPLES - 1, "index": index}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(3, 1)

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": (self.linear(x) - 1).square().mean()}


class Notes:
    def __init__(self, folder: Path, name: str, stop: int, loader: elastic.ElasticLoader) -> None:
        self.folder, self.name, self.stop, self.loader = folder, name, stop, loader

    def take(self, step: int, index: torch.Tensor) -> float:
        """Before the step that makes them `step` + 1; the batch's weight."""
        weight = self.loader.weight
        with (self.folder / f"{self.name}-{dist.get_rank()}").open("a") as notes:
            notes.write(f"{json.dumps([step + 1, index.tolist() if weight else []])}\n")
        if step + 1 == self.stop:
            os._exit(1)
        return weight


def lightning(net: Net, loader: elastic.ElasticLoader, notes: Notes) -> None:
    """It saves and loads the loader's state by itself."""
    pytorch: Any = import_module("lightning.pytorch")

    class Module(pytorch.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
            return self.net(**batch)["loss"] * notes.take(self.global_step, batch["index"])  # type: ignore[no-any-return]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    saves = pytorch.callbacks.ModelCheckpoint(notes.folder, save_last=True, every_n_train_steps=SAVE_EVERY)
    trainer = pytorch.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        devices=int(os.environ["WORLD_SIZE"]),
        strategy="ddp",
        callbacks=[saves],
        logger=False,
    )
    last = notes.folder / "last.ckpt"
    trainer.fit(Module(), loader, ckpt_path=last if last.exists() else None)


def transformers(net: Net, loader: elastic.ElasticLoader, notes: Notes) -> None:
    """One update a batch, so that the trainer's own count says where the data stands."""
    hf: Any = import_module("transformers")

    class Mine(hf.Trainer):  # type: ignore[misc]
        def get_train_dataloader(self) -> Any:
            return loader

        def compute_loss(self, model: Any, inputs: Any, **options: Any) -> Any:
            return super().compute_loss(model, inputs, **options) * notes.take(self.state.global_step, inputs["index"])

    class LoaderPosition(hf.TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            loader.load_state_dict({**loader.state_dict(), "step": state.global_step})

    arguments = hf.TrainingArguments(
        output_dir=str(notes.folder / "saved"),
        num_train_epochs=EPOCHS,
        learning_rate=1e-2,
        save_steps=SAVE_EVERY,
        ignore_data_skip=True,
        remove_unused_columns=False,
        use_cpu=True,
        ddp_backend="gloo",
        report_to=[],
    )
    trainer = Mine(model=net, args=arguments, train_dataset=Points(), callbacks=[LoaderPosition()])
    saved = notes.folder / "saved"
    last = hf.trainer_utils.get_last_checkpoint(str(saved)) if saved.exists() else None
    trainer.train(resume_from_checkpoint=last)


def main(which: str, folder: Path, name: str, stop: int) -> None:
    net = Net()
    loader = elastic.ElasticLoader(Points(), BATCH, seed=3)
    {"lightning": lightning, "transformers": transformers}[which](net, loader, Notes(folder, name, stop, loader))
    if dist.get_rank() == 0:
        torch.save(net.state_dict(), folder / f"{name}.pt")
    sys.stdout.flush()
    os._exit(0)  # a Trainer leaves its process group, whose threads may abort an orderly end


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
