"""The GPT of gpt.py under Hugging Face's Trainer: its loop, schedule, clipping and log, on any number of workers.

    python recipes/gpt_data.py                    # the source of Python's standard library, as token files
    elastic run --standalone --nproc-per-node=2 recipes/gpt_hf.py runs/gpt-hf

A model for the Trainer takes a batch by name and gives its loss and logits; the rest is the Trainer's.
What a script without elastic lacks are the two lines marked so.
"""

import math
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from gpt import BATCH, CONTEXT, GPT, PEAK_LR, SHARES, WARM_UP, arguments, decay_groups, sample  # type: ignore[import-not-found]  # beside this script
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset
from transformers import TrainingArguments, set_seed

import elastic
from elastic.integrations.transformers import ElasticTrainer  # in place of transformers' Trainer


class Windows(Dataset[dict[str, Tensor]]):
    """The windows of a token file, by the names that the model's forward has."""

    def __init__(self, file: Path) -> None:
        self.windows = elastic.TokenDataset(file, CONTEXT)

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        inputs, targets = self.windows[index]
        return {"inputs": inputs, "labels": targets}


class WithLoss(nn.Module):
    """The GPT as the Trainer wants a model: it gives its loss with its logits."""

    main_input_name = "inputs"

    def __init__(self, gpt: GPT) -> None:
        super().__init__()
        self.gpt = gpt

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.gpt(inputs)
        return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


def main() -> None:
    options = arguments(__doc__, "runs/gpt-hf")
    set_seed(options.seed)
    model = WithLoss(GPT(options.layers, options.width))
    held_out = Windows(options.data / "val.npy")
    trainer = ElasticTrainer(
        model=model,
        args=TrainingArguments(
            output_dir=f"{options.run}-out",
            max_steps=options.steps,
            per_device_train_batch_size=BATCH,  # of one update, on all workers together
            learning_rate=PEAK_LR,
            lr_scheduler_type="cosine",
            warmup_steps=WARM_UP,
            logging_steps=20,
            save_strategy="no",  # the run is saved by itself, and goes on from there
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=False,
            seed=options.seed,
        ),
        train_dataset=Windows(options.data / "train.npy"),
        eval_dataset=Subset(held_out, range(0, len(held_out), max(1, len(held_out) // options.validate))),
        optimizers=(torch.optim.AdamW(decay_groups(model), lr=PEAK_LR, betas=(0.9, 0.95)), None),
        elastic={
            "url": options.run,
            "virtual_workers": SHARES,
            "save_every": options.save_every,
        },  # where the run lives
    )
    trainer.train()
    loss: Any = trainer.evaluate()["eval_loss"]
    if trainer.is_world_process_zero():
        print(f"validation loss {loss:.3f} nats a byte; bytes alone have {math.log(256):.3f}")
        print(sample(model.gpt, "def ", options.sample))


if __name__ == "__main__":
    main()
