"""A script of transformers' Trainer, as its documentation has it; a run's are the lines marked so.

Texts of unlike lengths, early stopping, a callback with a state, evaluation and saves every few steps. Each worker
prints one line: the weights' digest, and that of what the Trainer knows at the end.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import sys
import time
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1"} | ({} if "--bars" in sys.argv else {"TQDM_DISABLE": "1"})

import torch
from losing import lose  # type: ignore[import-not-found]  # beside this script
from torn import Torn, torn  # type: ignore[import-not-found]  # likewise
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    EarlyStoppingCallback,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_callback import ExportableState

import elastic
import elastic_checkpoint
from elastic.integrations.transformers import ElasticTrainer  # a run's


class Texts(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Sequences of 60 words, padded to 16; labels are the words, or which of three strides a text goes in."""

    def __init__(self, length: int, seed: int, *, classes: bool) -> None:
        draw = torch.Generator().manual_seed(seed)
        self.rows = []
        for _ in range(length):
            size = int(torch.randint(6, 17, (1,), generator=draw))
            start, stride = (
                int(torch.randint(1, 59, (1,), generator=draw)),
                int(torch.randint(1, 4, (1,), generator=draw)),
            )
            words = [(start + stride * i) % 59 + 1 for i in range(size)]
            padding = 16 - size
            labels = torch.tensor(stride - 1) if classes else torch.tensor(words + [-100] * padding)
            self.rows.append(
                {
                    "input_ids": torch.tensor(words + [0] * padding),
                    "attention_mask": torch.tensor([1] * size + [0] * padding),
                    "labels": labels,
                }
            )

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return self.rows[index]


class Unhurried(TrainerCallback):  # type: ignore[misc]
    """A run of few steps is to see its lost workers replaced."""

    def __init__(self, trainer: ElasticTrainer, workers: int) -> None:
        self.trainer, self.workers = trainer, workers

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.trainer.run is not None and self.trainer.run.world_size < self.workers:
            time.sleep(0.1)


class Losing(TrainerCallback):  # type: ignore[misc]
    """Once, in the middle of a run."""

    def __init__(self, trainer: ElasticTrainer, step: int | None) -> None:
        self.trainer, self.step = trainer, step

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.step is not None and self.trainer.run is not None:
            lose(self.step, self.trainer.run)


class Counting(TrainerCallback, ExportableState):  # type: ignore[misc]
    """A callback of one's own, as transformers' documentation has them."""

    def __init__(self) -> None:
        self.steps = self.evaluations = 0

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.steps += 1

    def on_evaluate(self, *_: Any, **__: Any) -> None:
        self.evaluations += 1

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": {"steps": self.steps, "evaluations": self.evaluations}}


class Decaying(TrainerCallback, ExportableState):  # type: ignore[misc]
    """Another one, on which the rest of the run depends."""

    def __init__(self) -> None:
        self.steps = 0
        self.decays: list[float] = []

    def on_step_end(self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any) -> None:
        self.steps += 1
        self.decays.append(0.01 * self.steps)
        for group in optimizer.param_groups:
            group["weight_decay"] = self.decays[-1]

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": {"steps": self.steps, "decays": self.decays}}


class Dying(ElasticTrainer):  # a run's; the worker that writes the checkpoint of a step is killed in it, once
    die: int | None = None

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        if self.state.global_step == self.die and not os.path.exists(died := f"{self.args.output_dir}-died"):
            open(died, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        super()._save(output_dir, state_dict)


def network(name: str) -> PreTrainedModel:
    if name == "gpt2":
        return GPT2LMHeadModel(
            GPT2Config(
                vocab_size=60, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=None, eos_token_id=None
            )
        )
    return BertForSequenceClassification(
        BertConfig(vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
                   max_position_embeddings=16, num_labels=3)
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--steps", type=int, default=24, help="of three epochs")
    parser.add_argument("--model", choices=("gpt2", "bert"), default="gpt2")
    parser.add_argument("--best", action="store_true", help="goes back to the best model at the end")
    parser.add_argument("--patience", type=int, help="the first evaluation stays the best one")
    parser.add_argument("--bars", action="store_true", help="progress is drawn")
    parser.add_argument("--die", type=int, help="the step at whose checkpoint the one who writes it is killed")
    parser.add_argument("--torn", action="store_true", help="some examples cannot be read, and are left out")
    parser.add_argument("--num-workers", type=int, default=0)
    parser.add_argument("--unhurried", type=int, default=0, help="goes slowly while fewer workers than this share it")
    parser.add_argument("--lose", type=int, help="the step whose last message rank 1 loses")
    options = parser.parse_args()

    elastic.seed(0)  # a run's
    set_seed(0)
    classes = options.model == "bert"
    args = TrainingArguments(
        output_dir=options.url + "-out",
        num_train_epochs=3,
        learning_rate=5e-3,
        warmup_steps=5,
        logging_steps=5,
        eval_strategy="steps",
        eval_steps=6,
        save_strategy="steps",
        save_steps=6,
        load_best_model_at_end=options.best,
        metric_for_best_model="eval_loss",
        report_to="none",
        dataloader_num_workers=options.num_workers,
        seed=0,
    )
    if args.should_log:
        print("it begins")
    stopping = EarlyStoppingCallback(options.patience or 50, 10.0 if options.patience else 0.0)
    counting, decaying = Counting(), Decaying()
    train: Any = Texts(options.steps // 3 * 24 - 7, 1, classes=classes)
    if options.torn:
        train = Torn(train, torn(len(train), batch_size=24, shares=8, seed=0, whole=((3, 2), (5, 7)), every=13))
    bad_examples = {"data": elastic.Data(on_bad_example="skip")} if options.torn else {}
    trainer = Dying(
        model=network(options.model),
        args=args,
        train_dataset=train,
        eval_dataset=Texts(70, 2, classes=classes),
        callbacks=[stopping, counting, decaying],
        elastic={
            "url": options.url,
            "batch_size": 24,
            "virtual_workers": 8,
            "save_every": 3,
            **bad_examples,
        },  # a run's
    )
    trainer.add_callback(Unhurried(trainer, options.unhurried))
    trainer.add_callback(Losing(trainer, options.lose))
    trainer.die = options.die
    trainer.train()

    told: dict[str, Any] = {
        name: getattr(trainer.state, name) for name in ("global_step", "epoch", "best_metric", "total_flos")
    }
    told |= counting.state()["attributes"] | {"patience": stopping.early_stopping_patience_counter}
    told["decays"] = decaying.decays
    told["log"] = [
        {name: value for name, value in entry.items() if not name.endswith(("_runtime", "_per_second"))}
        for entry in trainer.state.log_history
    ]
    known = hashlib.sha256(json.dumps(told, default=float).encode()).hexdigest()[:16]
    if trainer.is_world_process_zero():
        print(f"{len(told['log'])} lines of log, the last: {told['log'][-1]}")
        print(f"saved: {sorted(os.listdir(args.output_dir))}")
    line = f"took part: {elastic_checkpoint.digest(trainer.model)} knows {known}\n"
    os.write(1, line.encode())  # at once: print writes piece by piece


if __name__ == "__main__":
    main()
