"""A script of transformers' Trainer with a logger of its own: each step, each epoch, and a test behind the run."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}

import torch
from transformers import GPT2Config, GPT2LMHeadModel, TrainerCallback, TrainingArguments

import elastic
from elastic.integrations.transformers import ElasticTrainer

BATCH, PAUSE_S = 16, 0.02


class Unhurried(TrainerCallback):  # type: ignore[misc]  # it has no types
    def on_step_end(self, *_: Any, **__: Any) -> None:
        time.sleep(PAUSE_S)


def texts(batches: int) -> list[dict[str, torch.Tensor]]:
    words = [torch.arange(8) * (start % 3 + 1) + start % 20 for start in range(batches * BATCH)]
    return [{"input_ids": each, "labels": each} for each in words]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--curves", type=Path, required=True)
    options = parser.parse_args()
    elastic.seed(0)
    arguments = TrainingArguments(
        output_dir=str(options.curves),
        num_train_epochs=3,
        per_device_train_batch_size=BATCH,
        logging_steps=1,
        eval_strategy="epoch",
        save_strategy="no",
        report_to="tensorboard",
        use_cpu=True,
    )
    small = GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    trainer = ElasticTrainer(
        model=GPT2LMHeadModel(small),
        args=arguments,
        train_dataset=texts(options.steps // 3),
        eval_dataset=texts(1),
        callbacks=[Unhurried()],
        elastic={"url": options.url, "virtual_workers": 4, "save_every": 7},
    )
    trainer.train()
    trainer.evaluate(texts(2), metric_key_prefix="test")


if __name__ == "__main__":
    main()
